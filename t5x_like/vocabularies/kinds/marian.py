"""Marian's tokenizers (opus-mt): two SentencePiece models, and one table of ids.

One model splits source texts, the other target texts; `vocab.json` has the ids of the pieces of
both. A text gets the same ids as in `transformers`: special pieces in it become their ids, a
language code such as `>>fra<<` at its beginning is one piece, and a piece that `vocab.json` lacks
is unknown. `encode` uses the source model; `for_targets` returns the vocabulary that uses the
target model (`text_target` in `transformers`).
"""

import copy
import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

import t5x_like.vocabularies.kinds._shared as shared
import t5x_like.vocabularies.protocol as protocol
from t5x_like import slots, vocabularies
from t5x_like.errors import UserError
from t5x_like.files import file_names
from t5x_like.files.file_names import quote_name
from t5x_like.files.paths import AnyPath
from t5x_like.vocabularies import CONFIG
from t5x_like.vocabularies.kinds import _tokenizer_files as tokenizer_files
from t5x_like.vocabularies.kinds._pipelines import text_of
from t5x_like.vocabularies.kinds._published_ids import PublishedIds, find_published_ids
from t5x_like.vocabularies.kinds._tokenizer_files import (
  ADDED,
  MODEL_CONFIG,
  NAMES,
  SPECIAL,
  VOCABULARY,
)
from t5x_like.vocabularies.kinds.sentencepiece import open_processor
from t5x_like.vocabularies.protocol import Vocabulary

KIND = "marian"
SOURCE = "source.spm"
TARGET = "target.spm"
DEFAULTS = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}

_WORD_START = "\u2581"
_LANGUAGE_CODE = re.compile(r">>.*?<<", re.DOTALL)


class MarianVocabulary(Vocabulary):
  """The tokenizer of a Marian directory.

  Args:
    published_ids: the special ids, and the decoder's first input.
    original_files: the original files, by name, for export.
    origin: the name of the directory in messages.

  Raises:
    UserError: a file is missing or damaged, or the tokenizer has an option that is not supported.
  """

  def __init__(self, published_ids: PublishedIds, original_files: dict[str, bytes], origin: str):
    self._published_ids = published_ids
    self.original_files = original_files
    self._origin = origin
    self._ids = _read_ids(original_files, origin)
    self.size = len(self._ids)
    for name, value in dataclasses.asdict(published_ids).items():
      setattr(self, name, value)
    settings = _read_settings(original_files, origin)
    special_pieces = _list_special_pieces(settings, self._ids, origin)
    ids = list(published_ids.sentinels)
    for name in ("pad", "eos", "unk", *protocol.SPECIAL_NAMES):
      ids.append(getattr(published_ids, f"{name}_id"))
    invalid = [i for i in ids if i is not None and not 0 <= i < self.size]
    if invalid:
      raise UserError(
        f"{origin}: found the special id {invalid[0]}, expected ids from 0 to {self.size - 1}"
      )
    self._spellings = [""] * self.size
    for piece, i in self._ids.items():
      self._spellings[i] = piece
    self._processors = {}
    for name in (SOURCE, TARGET):
      self._processors[name] = open_processor(original_files[name], f"{origin}/{name}")
    self._side = SOURCE
    self._special_pattern = None
    if published_ids.specials_in_text:
      longest_first = sorted(special_pieces, key=len, reverse=True)
      alternatives = "|".join(re.escape(piece) for piece in longest_first)
      self._special_pattern = re.compile(f"({alternatives})")
    self.extra_ids = len(self.sentinels)
    special_piece_ids = {self._ids[piece] for piece in special_pieces}
    self.special_ids = shared.special_ids(self) | (special_piece_ids - {self.unk_id})
    content = json.dumps(
      [dataclasses.asdict(published_ids), sorted(special_pieces)], sort_keys=True
    )
    digest = hashlib.sha256(f"{KIND}\n{content}\n".encode())
    for name in (SOURCE, TARGET, VOCABULARY):
      digest.update(hashlib.sha256(original_files[name]).digest())
    self.fingerprint = digest.hexdigest()

  def for_targets(self) -> "MarianVocabulary":
    vocabulary = copy.copy(self)
    vocabulary._side = TARGET
    return vocabulary

  def encode(self, text: str) -> list[int]:
    text = shared.well_formed(text)
    if self._special_pattern is None:
      return self._encode_plain(text) if text else []
    ids = []
    # `split` returns plain text and special pieces in turn
    for number, part in enumerate(self._special_pattern.split(text)):
      is_special = number % 2 == 1
      if is_special:
        ids.append(self._ids[part])
      elif part:
        ids += self._encode_plain(part)
    return ids

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    return [np.asarray(self.encode(text), np.int32) for text in texts]

  def decode(self, ids: Sequence[int]) -> str:
    text = ""
    for part in shared.split_at_sentinels(ids, self):
      if isinstance(part, str):
        text += f"{part} "
        continue
      known_pieces = []
      for i in part:
        if i != self.unk_id and i < self.size and self._spellings[i]:
          known_pieces.append(self._spellings[i])
        else:
          text += f"{self._join_pieces(known_pieces)}{self._spellings[self.unk_id]} "
          known_pieces = []
      text += self._join_pieces(known_pieces)
    return text.strip()

  def pieces_of(self, ids: Sequence[int]) -> list[str]:
    return [
      shared.sentinel_piece(self, i) or self._spellings[i] or f"<{i}?>" for i in map(int, ids)
    ]

  def save(self, directory) -> None:
    original_files = {
      shared.ORIGINAL_PREFIX + name: data for name, data in self.original_files.items()
    }
    shared.save(
      directory, KIND, self, original_files, published=dataclasses.asdict(self._published_ids)
    )

  def export_files(self) -> dict[str, bytes]:
    return self.original_files

  def enclosing_ids(self) -> tuple[list[int], list[int]]:
    return [], [self.eos_id]

  def with_text_only(self) -> "MarianVocabulary":
    """Return the vocabulary that encodes text spelled like a special piece as plain text.

    Its exported files set `split_special_tokens`, so that `transformers` does the same.
    """
    config = json.loads(self.original_files.get(CONFIG, b"{}"))
    config["split_special_tokens"] = True
    config_text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    original_files = self.original_files | {CONFIG: config_text.encode()}
    published_ids = dataclasses.replace(self._published_ids, specials_in_text=False)
    return MarianVocabulary(published_ids, original_files, self._origin)

  def _encode_plain(self, text: str) -> list[int]:
    """Encode text without special pieces; it may begin with a language code."""
    code = _LANGUAGE_CODE.match(text)
    pieces = []
    if code is not None:
      pieces.append(code[0])
      text = text[code.end() :]
    pieces += self._processors[self._side].encode(text, out_type=str)
    return [self._ids.get(piece, self.unk_id) for piece in pieces]

  def _text_bytes(self, i: int) -> bytes:
    if i == self.unk_id:
      return "\ufffd".encode()
    return self._spellings[i].replace(_WORD_START, " ").encode()

  def _join_pieces(self, pieces: list[str]) -> str:
    return self._processors[SOURCE].decode_pieces(pieces).replace(_WORD_START, " ")


def load(directory: AnyPath, manifest: dict[str, Any]) -> MarianVocabulary:
  """Open a directory written by `MarianVocabulary.save`."""
  where = f"{directory / vocabularies.MANIFEST}"
  files = manifest.get("files")
  published_ids = PublishedIds(
    **slots.fill(f"{where}: published", manifest.get("published"), PublishedIds)
  )
  if not isinstance(files, dict):
    raise UserError(
      f"{where}: found {quote_name(files)} in 'files', expected an object; copy the directory again"
    )
  original_files = {}
  for name in files:
    original = name.removeprefix(shared.ORIGINAL_PREFIX)
    file_names.check_name(f"{where}: files", original, "copy the vocabulary again")
    original_files[original] = vocabularies.read_file(directory / name)
  return MarianVocabulary(published_ids, original_files, str(directory))


def read(directory: AnyPath, sentinels: str | None = None) -> MarianVocabulary:
  """Read a Hugging Face directory; see `published.read`."""
  where = str(directory)
  original_files = {}
  for name in shared.PUBLISHED_FILES:
    if (directory / name).exists():
      original_files[name] = vocabularies.read_file(directory / name)
  ids = _read_ids(original_files, where)
  config = _read_settings(original_files, where)
  _list_special_pieces(config, ids, where)  # raises UserError for pieces that are not supported
  pieces_by_name = {name: text_of(token) for name, token in _named_tokens(config).items()}
  model_config = tokenizer_files.read_file(directory, MODEL_CONFIG) or {}
  # The other special ids come from the tokenizer's files alone.
  start_config = {}
  if "decoder_start_token_id" in model_config:
    start_config["decoder_start_token_id"] = model_config["decoder_start_token_id"]
  published_ids = find_published_ids(where, ids, pieces_by_name, start_config, config, sentinels)
  return MarianVocabulary(published_ids, original_files, where)


def _read_settings(original_files: dict[str, bytes], where: str) -> dict[str, Any]:
  """Return the settings of a tokenizer's files.

  Raises:
    UserError: one of them is not supported.
  """
  files = {}
  for name in (CONFIG, SPECIAL, ADDED):
    if name in original_files:
      files[name] = tokenizer_files.parse_file(original_files[name], f"{where}/{name}", name)
    else:
      files[name] = {}
  config = files[CONFIG]
  if config.get("added_tokens_decoder") is None:  # written by an older `transformers`
    added = {i: {"content": piece} for piece, i in files[ADDED].items()}
    config |= files[SPECIAL] | {"added_tokens_decoder": added}
  for name in ("separate_vocabs", "sp_model_kwargs"):
    if config.get(name):
      raise UserError(
        f"{where}/{CONFIG}: found {quote_name(config[name])} for {name!r}, expected none; such a "
        "tokenizer is not read here"
      )
  return config


def _named_tokens(config: dict[str, Any]) -> dict[str, Any]:
  """Return the special tokens that the settings name (`eos_token`, …), by name."""
  tokens = {name: config.get(f"{name}_token", DEFAULTS.get(name)) for name in NAMES}
  return {name: token for name, token in tokens.items() if token}


def _list_special_pieces(config: dict[str, Any], ids: dict[str, int], where: str) -> list[str]:
  """Return the special and added pieces, sorted.

  Raises:
    UserError: a piece is not in `vocab.json`, or has flags that change the text around it.
  """
  extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
  if isinstance(extra, dict):
    extra = extra.values()
  added = config.get("added_tokens_decoder") or {}
  for i, token in added.items():
    if str(ids.get(token["content"])) != str(i):
      raise UserError(
        f"{where}: found the added piece {quote_name(token['content'])} with id {i}, expected its "
        f"id in {VOCABULARY}; add it"
      )
  tokens = [*_named_tokens(config).values(), *extra, *added.values()]
  for token in tokens:
    piece = text_of(token)
    flags = []
    if isinstance(token, dict):
      flags = [name for name in ("lstrip", "rstrip", "single_word") if token.get(name)]
    if flags:
      raise UserError(
        f"{where}: found the special piece {quote_name(piece)} with {flags[0]!r}, which is not "
        "read here"
      )
    if not piece or piece not in ids:
      raise UserError(
        f"{where}: found the special piece {quote_name(piece)}, expected only pieces of "
        f"{VOCABULARY}; add it"
      )
  return sorted({text_of(token) for token in tokens})


def _read_ids(original_files: dict[str, bytes], where: str) -> dict[str, int]:
  """Return the id of each piece in `vocab.json`.

  Raises:
    UserError: a file is missing, or the ids are not 0 to the number of pieces - 1.
  """
  for name in (SOURCE, TARGET, VOCABULARY):
    if name not in original_files:
      raise UserError(
        f"{where}: found no {name}, expected it next to the other files of a "
        "MarianTokenizer; copy it"
      )
  ids = tokenizer_files.parse_file(original_files[VOCABULARY], f"{where}/{VOCABULARY}", VOCABULARY)
  numbers = sorted(i for i in ids.values() if i is not None)
  if not ids or numbers != list(range(len(ids))):
    raise UserError(
      f"{where}/{VOCABULARY}: found {len(ids)} pieces with ids up to {max(numbers, default=0)}, "
      f"expected the ids 0 to {max(len(ids), 1) - 1}, one a piece; copy the file again"
    )
  return ids
