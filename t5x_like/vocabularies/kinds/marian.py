"""Marian's tokenizers (opus-mt): a SentencePiece model of source texts, one of target texts, and
the ids of all pieces.

The ids are those of `transformers`: special pieces in a text become their ids, a language code such
as `>>fra<<` at the beginning of a text is a piece of its own, and a piece that `vocab.json` lacks
is unknown. As there, the source's model encodes a text; `for_targets` returns the vocabulary of the
texts that a decoder learns (`text_target` there), which has the same ids.
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
_CODE = re.compile(r">>.*?<<", re.DOTALL)


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
    specials = _check_special_pieces(_settings(original_files, origin), self._ids, origin)
    ids = [
      *published_ids.sentinels,
      *(
        getattr(published_ids, f"{name}_id")
        for name in ("pad", "eos", "unk", *protocol.SPECIAL_NAMES)
      ),
    ]
    invalid = [i for i in ids if i is not None and not 0 <= i < self.size]
    if invalid:
      raise UserError(
        f"{origin}: found the special id {invalid[0]}, expected ids from 0 to {self.size - 1}"
      )
    self._spellings = [""] * self.size
    for piece, i in self._ids.items():
      self._spellings[i] = piece
    self._processors = {
      name: open_processor(original_files[name], f"{origin}/{name}") for name in (SOURCE, TARGET)
    }
    self._side = SOURCE
    longest_first = sorted(specials, key=len, reverse=True)
    self._splitter = (
      re.compile(f"({'|'.join(map(re.escape, longest_first))})")
      if published_ids.specials_in_text
      else None
    )
    self.extra_ids = len(self.sentinels)
    self.special_ids = shared.special_ids(self) | {self._ids[piece] for piece in specials} - {
      self.unk_id
    }
    content = json.dumps([dataclasses.asdict(published_ids), sorted(specials)], sort_keys=True)
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
    parts = [text] if self._splitter is None else self._splitter.split(text)
    ids = []
    for number, part in enumerate(parts):
      if number % 2:  # a special piece
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
      run = []
      for i in part:
        if i != self.unk_id and i < self.size and self._spellings[i]:
          run.append(self._spellings[i])
        else:
          text += f"{self._join_pieces(run)}{self._spellings[self.unk_id]} "
          run = []
      text += self._join_pieces(run)
    return text.strip()

  def pieces_of(self, ids: Sequence[int]) -> list[str]:
    return [
      shared.sentinel_piece(self, i) or self._spellings[i] or f"<{i}?>" for i in map(int, ids)
    ]

  def bytes_of(self, ids: Sequence[int]) -> list[bytes]:
    return [b"" if int(i) in self.special_ids else self._data(int(i)) for i in ids]

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
    """Return the vocabulary to which text spelled like a special piece is text, by
    `split_special_tokens`."""
    config = json.loads(self.original_files.get(CONFIG, b"{}")) | {"split_special_tokens": True}
    original_files = self.original_files | {
      CONFIG: (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()
    }
    return MarianVocabulary(
      dataclasses.replace(self._published_ids, specials_in_text=False), original_files, self._origin
    )

  def _encode_plain(self, text: str) -> list[int]:
    """Encode text without special pieces, which may begin with the code of a language."""
    code = _CODE.match(text)
    pieces = []
    if code is not None:
      pieces.append(code[0])
      text = text[code.end() :]
    pieces += self._processors[self._side].encode(text, out_type=str)
    return [self._ids.get(piece, self.unk_id) for piece in pieces]

  def _data(self, i: int) -> bytes:
    if i == self.unk_id:
      return "\ufffd".encode()
    return self._spellings[i].replace(_WORD_START, " ").encode()

  def _join_pieces(self, pieces: list[str]) -> str:
    return self._processors[SOURCE].decode_pieces(pieces).replace(_WORD_START, " ")


def load(directory: AnyPath, manifest: dict[str, Any]) -> MarianVocabulary:
  """Open a directory written by `save`."""
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
  original_files = {
    name: vocabularies.read_file(directory / name)
    for name in shared.PUBLISHED_FILES
    if (directory / name).exists()
  }
  ids = _read_ids(original_files, where)
  config = _settings(original_files, where)
  _check_special_pieces(config, ids, where)
  named = {name: text_of(token) for name, token in _read_special_pieces(config).items()}
  model_config = tokenizer_files.read_file(directory, MODEL_CONFIG) or {}
  start = {name: value for name, value in model_config.items() if name == "decoder_start_token_id"}
  return MarianVocabulary(
    find_published_ids(where, ids, named, start, config, sentinels), original_files, where
  )


def _settings(original_files: dict[str, bytes], where: str) -> dict[str, Any]:
  """Return the settings of a tokenizer's files.

  Raises:
    UserError: one of them is not supported.
  """
  files = {}
  for name in (CONFIG, SPECIAL, ADDED):
    files[name] = (
      tokenizer_files.parse_file(original_files[name], f"{where}/{name}", name)
      if name in original_files
      else {}
    )
  config = files[CONFIG]
  if config.get("added_tokens_decoder") is None:  # older files
    added = {i: {"content": piece} for piece, i in files[ADDED].items()}
    config |= files[SPECIAL] | {"added_tokens_decoder": added}
  for name in ("separate_vocabs", "sp_model_kwargs"):
    if config.get(name):
      raise UserError(
        f"{where}/{CONFIG}: found {quote_name(config[name])} for {name!r}, expected none; such a "
        "tokenizer is not read here"
      )
  return config


def _read_special_pieces(config: dict[str, Any]) -> dict[str, Any]:
  tokens = {name: config.get(f"{name}_token", DEFAULTS.get(name)) for name in NAMES}
  return {name: token for name, token in tokens.items() if token}


def _check_special_pieces(config: dict[str, Any], ids: dict[str, int], where: str) -> list[str]:
  """Return the special and added pieces.

  Raises:
    UserError: a piece is not in `vocab.json`, or has flags that change the text around it.
  """
  extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
  added = config.get("added_tokens_decoder") or {}
  for i, token in added.items():
    if str(ids.get(token["content"])) != str(i):
      raise UserError(
        f"{where}: found the added piece {quote_name(token['content'])} with id {i}, expected its "
        f"id in {VOCABULARY}; add it"
      )
  tokens = [
    *_read_special_pieces(config).values(),
    *(extra.values() if isinstance(extra, dict) else extra),
    *added.values(),
  ]
  for token in tokens:
    piece = text_of(token)
    flags = [
      name
      for name in ("lstrip", "rstrip", "single_word")
      if isinstance(token, dict) and token.get(name)
    ]
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
  """Return the ids by piece.

  Raises:
    UserError: a file is missing, or the ids do not count the pieces.
  """
  for name in (SOURCE, TARGET, VOCABULARY):
    if name not in original_files:
      raise UserError(
        f"{where}: found no {name}, expected it beside the other files of a "
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
