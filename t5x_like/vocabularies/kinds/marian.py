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
from t5x_like.vocabularies.kinds._special_ids import SpecialIds, find_special_ids
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
    facts: the special ids.
    brought: the original files, by name, for export.
    origin: the name of the directory in messages.

  Raises:
    UserError: a file is missing or damaged, or the tokenizer has an option that is not supported.
  """

  def __init__(self, facts: SpecialIds, brought: dict[str, bytes], origin: str):
    self._facts = facts
    self.brought = brought
    self._origin = origin
    self._ids = _numbered(brought, origin)
    self.size = len(self._ids)
    for name, value in dataclasses.asdict(facts).items():
      setattr(self, name, value)
    specials = _specials(_settings(brought, origin), self._ids, origin)
    ids = [
      *facts.sentinels,
      *(getattr(facts, f"{name}_id") for name in ("pad", "eos", "unk", *protocol.SPECIAL_NAMES)),
    ]
    outside = [i for i in ids if i is not None and not 0 <= i < self.size]
    if outside:
      raise UserError(
        f"{origin}: found the special id {outside[0]}, expected ids from 0 to {self.size - 1}"
      )
    self._spelled = [""] * self.size
    for piece, i in self._ids.items():
      self._spelled[i] = piece
    self._processors = {
      name: open_processor(brought[name], f"{origin}/{name}") for name in (SOURCE, TARGET)
    }
    self._side = SOURCE
    longest_first = sorted(specials, key=len, reverse=True)
    self._splitter = (
      re.compile(f"({'|'.join(map(re.escape, longest_first))})") if facts.specials_in_text else None
    )
    self.extra_ids = len(self.sentinels)
    self.special_ids = shared.special_ids(self) | {self._ids[piece] for piece in specials} - {
      self.unk_id
    }
    content = json.dumps([dataclasses.asdict(facts), sorted(specials)], sort_keys=True)
    digest = hashlib.sha256(f"{KIND}\n{content}\n".encode())
    for name in (SOURCE, TARGET, VOCABULARY):
      digest.update(hashlib.sha256(brought[name]).digest())
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
        if i != self.unk_id and i < self.size and self._spelled[i]:
          run.append(self._spelled[i])
        else:
          text += f"{self._joined(run)}{self._spelled[self.unk_id]} "
          run = []
      text += self._joined(run)
    return text.strip()

  def pieces_of(self, ids: Sequence[int]) -> list[str]:
    return [shared.sentinel_piece(self, i) or self._spelled[i] or f"<{i}?>" for i in map(int, ids)]

  def bytes_of(self, ids: Sequence[int]) -> list[bytes]:
    return [b"" if int(i) in self.special_ids else self._data(int(i)) for i in ids]

  def save(self, directory) -> None:
    brought = {shared.ORIGINAL_PREFIX + name: data for name, data in self.brought.items()}
    shared.save(directory, KIND, self, brought, published=dataclasses.asdict(self._facts))

  def export_files(self) -> dict[str, bytes]:
    return self.brought

  def enclosing_ids(self) -> tuple[list[int], list[int]]:
    return [], [self.eos_id]

  def with_text_only(self) -> "MarianVocabulary":
    """Return the vocabulary to which text spelled like a special piece is text, by
    `split_special_tokens`."""
    config = json.loads(self.brought.get(CONFIG, b"{}")) | {"split_special_tokens": True}
    brought = self.brought | {
      CONFIG: (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()
    }
    return MarianVocabulary(
      dataclasses.replace(self._facts, specials_in_text=False), brought, self._origin
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
    return self._spelled[i].replace(_WORD_START, " ").encode()

  def _joined(self, pieces: list[str]) -> str:
    return self._processors[SOURCE].decode_pieces(pieces).replace(_WORD_START, " ")


def load(directory: AnyPath, manifest: dict[str, Any]) -> MarianVocabulary:
  """Open a directory written by `save`."""
  where = f"{directory / vocabularies.MANIFEST}"
  files = manifest.get("files")
  facts = SpecialIds(**slots.fill(f"{where}: published", manifest.get("published"), SpecialIds))
  if not isinstance(files, dict):
    raise UserError(
      f"{where}: found {quote_name(files)} in 'files', expected an object; copy the directory again"
    )
  brought = {}
  for name in files:
    original = name.removeprefix(shared.ORIGINAL_PREFIX)
    file_names.check_name(f"{where}: files", original, "copy the vocabulary again")
    brought[original] = vocabularies.read_file(directory / name)
  return MarianVocabulary(facts, brought, str(directory))


def read(directory: AnyPath, sentinels: str | None = None) -> MarianVocabulary:
  """Read a Hugging Face directory; see `published.read`."""
  where = str(directory)
  brought = {
    name: vocabularies.read_file(directory / name)
    for name in shared.PUBLISHED_FILES
    if (directory / name).exists()
  }
  ids = _numbered(brought, where)
  config = _settings(brought, where)
  _specials(config, ids, where)
  named = {name: text_of(token) for name, token in _named(config).items()}
  model_config = tokenizer_files.read_file(directory, MODEL_CONFIG) or {}
  start = {name: value for name, value in model_config.items() if name == "decoder_start_token_id"}
  return MarianVocabulary(
    find_special_ids(where, ids, named, start, config, sentinels), brought, where
  )


def _settings(brought: dict[str, bytes], where: str) -> dict[str, Any]:
  """Return the settings of a tokenizer's files.

  Raises:
    UserError: one of them is not supported.
  """
  files = {}
  for name in (CONFIG, SPECIAL, ADDED):
    files[name] = (
      tokenizer_files.parse_file(brought[name], f"{where}/{name}", name) if name in brought else {}
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


def _named(config: dict[str, Any]) -> dict[str, Any]:
  tokens = {name: config.get(f"{name}_token", DEFAULTS.get(name)) for name in NAMES}
  return {name: token for name, token in tokens.items() if token}


def _specials(config: dict[str, Any], ids: dict[str, int], where: str) -> list[str]:
  """Return the special and added pieces.

  Raises:
    UserError: a piece is not in `vocab.json`, or has flags that change the text around it.
  """
  extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
  added = config.get("added_tokens_decoder") or {}
  for i, token in added.items():
    if str(ids.get(token["content"])) != str(i):
      raise UserError(
        f"{where}: found the added piece {quote_name(token['content'])} with id {i}, expected its id "
        f"in {VOCABULARY}; add it"
      )
  tokens = [
    *_named(config).values(),
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
        f"{where}: found the special piece {quote_name(piece)} with {flags[0]!r}, which is not read here"
      )
    if not piece or piece not in ids:
      raise UserError(
        f"{where}: found the special piece {quote_name(piece)}, expected only pieces of "
        f"{VOCABULARY}; add it"
      )
  return sorted({text_of(token) for token in tokens})


def _numbered(brought: dict[str, bytes], where: str) -> dict[str, int]:
  """Return the ids by piece; raise UserError if a file is missing, or the ids do not count the
  pieces."""
  for name in (SOURCE, TARGET, VOCABULARY):
    if name not in brought:
      raise UserError(
        f"{where}: found no {name}, expected it beside the other files of a "
        "MarianTokenizer; copy it"
      )
  ids = tokenizer_files.parse_file(brought[VOCABULARY], f"{where}/{VOCABULARY}", VOCABULARY)
  numbers = sorted(i for i in ids.values() if i is not None)
  if not ids or numbers != list(range(len(ids))):
    raise UserError(
      f"{where}/{VOCABULARY}: found {len(ids)} pieces with ids up to {max(numbers, default=0)}, "
      f"expected the ids 0 to {max(len(ids), 1) - 1}, one a piece; copy the file again"
    )
  return ids
