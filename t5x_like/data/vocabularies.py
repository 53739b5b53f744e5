"""Vocabularies: text to ids and back, behind one protocol, with T5's special ids and sentinels.

Every vocabulary has pad 0, eos 1, unk 2, and `extra_ids` sentinels at the top: sentinel i is id `size - 1 - i` and is
spelled `<extra_id_i>`. Two kinds exist:

- `SentencePieceVocabulary`: a SentencePiece model (Kudo and Richardson 2018); the sentinels are added on top of its
  pieces, so T5's model of 32,000 pieces has size 32,100 and sentinel 0 is id 32,099 (Raffel et al. 2020). What the
  model's normaliser folds does not come back from `decode`: NFKC forms, runs of spaces, line ends and, without byte
  fallback, characters that are in no piece. Text after a sentinel starts a new word.
- `ByteVocabulary`: UTF-8 bytes (ByT5, Xue et al. 2022), id = byte + 3; `decode(encode(text)) == text` for any Unicode
  text. 125 sentinels by default, so 384 ids as in the released models' embedding tables. (Those models were pretrained
  with the last bytes, ids 258, 257, ..., as sentinels; here no byte is spent on them.)

This file never imports TensorFlow: prediction works on a machine without it.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import sentencepiece
from etils import epath

from t5x_like.errors import UserError, one_line

PAD_ID, EOS_ID, UNK_ID = 0, 1, 2
MANIFEST = "vocabulary.json"
FORMAT = "t5x_like.vocabulary.v1"
MODEL_FILE = "sentencepiece.model"
T5_EXTRA_IDS = 100
BYT5_EXTRA_IDS = 125

_SENTINEL = re.compile(r"<extra_id_(0|[1-9][0-9]{0,8})>")
_BYTE_OFFSET = 3
_WORD_START = "\u2581"
_UNKNOWN_CHARACTER = "\ufffd"


class Vocabulary(Protocol):
  """What the rest of the system knows of a vocabulary; ids are 0..size-1."""

  size: int
  extra_ids: int
  pad_id: int = PAD_ID
  eos_id: int = EOS_ID
  unk_id: int = UNK_ID
  fingerprint: str

  def encode(self, text: str) -> list[int]:
    """Ids of plain text, without EOS; `<extra_id_0>` in the text is spelled out like any other text."""

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """`encode` of each text as an int32 array [length]."""

  def decode(self, ids: Sequence[int]) -> str:
    """Text of ids: pad and EOS are dropped, sentinel i is rendered `<extra_id_i>`.

    Ids at or above `size` are rendered as unknown, since a model's table may be padded beyond the vocabulary. Raises
    UserError for a negative id.
    """

  def save(self, directory) -> None:
    """Writes a directory that `load` reads; saving the same vocabulary again writes the same bytes."""


class SentencePieceVocabulary:
  """A SentencePiece model with sentinels on top; `size` = pieces + extra_ids.

  Args:
    model: the serialised model (the bytes of a `.model` file).
    extra_ids: the number of sentinels.
    origin: what to call the model in messages.

  Raises:
    UserError: the bytes are no SentencePiece model, or its pad, eos and unk ids are not 0, 1 and 2, or it already
      holds sentinels as pieces.
  """

  pad_id, eos_id, unk_id = PAD_ID, EOS_ID, UNK_ID

  def __init__(self, model: bytes, extra_ids: int = T5_EXTRA_IDS, origin: str = "SentencePiece model"):
    self._processor = _processor(model, origin)
    self._model = model
    self.extra_ids = _checked_extra_ids(extra_ids, origin)
    self.pieces = self._processor.vocab_size()
    self.size = self.pieces + self.extra_ids
    self.fingerprint = _fingerprint("sentencepiece", model, self.extra_ids)

  def encode(self, text: str) -> list[int]:
    return self._processor.encode(_well_formed(text))

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    # One thread: tools that tokenise much text run one process a core.
    batch = self._processor.encode([_well_formed(text) for text in texts], num_threads=1)
    return [np.asarray(ids, np.int32) for ids in batch]

  def decode(self, ids: Sequence[int]) -> str:
    text = ""
    for part in _parts(ids, self):
      if isinstance(part, str):
        text += f" {part}" if text else part
        continue
      part = [i if i < self.pieces else UNK_ID for i in part]
      decoded = self._processor.decode(part)
      starts_word = self._processor.id_to_piece(part[0]).startswith(_WORD_START)
      text += f" {decoded}" if text and starts_word and not decoded.startswith(" ") else decoded
    return text

  def save(self, directory) -> None:
    _save(directory, "sentencepiece", self, {MODEL_FILE: self._model})


class ByteVocabulary:
  """UTF-8 bytes: id = byte + 3, then `extra_ids` sentinels; `size` = 259 + extra_ids.

  Lone surrogates, which UTF-8 cannot hold, are encoded as U+FFFD; bytes that are not UTF-8 and unknown ids are decoded
  to U+FFFD.
  """

  pad_id, eos_id, unk_id = PAD_ID, EOS_ID, UNK_ID

  def __init__(self, extra_ids: int = BYT5_EXTRA_IDS):
    self.extra_ids = _checked_extra_ids(extra_ids, "byte vocabulary")
    self.size = 256 + _BYTE_OFFSET + self.extra_ids
    self.fingerprint = _fingerprint("bytes", b"", self.extra_ids)

  def encode(self, text: str) -> list[int]:
    return [byte + _BYTE_OFFSET for byte in _well_formed(text).encode()]

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    return [np.frombuffer(_well_formed(text).encode(), np.uint8).astype(np.int32) + _BYTE_OFFSET for text in texts]

  def decode(self, ids: Sequence[int]) -> str:
    text = ""
    for part in _parts(ids, self):
      if isinstance(part, str):
        text += part
        continue
      known = (bytes([i - _BYTE_OFFSET]) if 0 <= i - _BYTE_OFFSET < 256 else _UNKNOWN_CHARACTER.encode() for i in part)
      text += b"".join(known).decode(errors="replace")
    return text

  def save(self, directory) -> None:
    _save(directory, "bytes", self, {})


def load(path_or_name: str) -> Vocabulary:
  """Opens a vocabulary.

  Args:
    path_or_name: a directory written by `save`, a SentencePiece `*.model` file (100 sentinels, as T5's), or `bytes`.

  Raises:
    UserError: there is no such file, or it is damaged, or its contents are not those its manifest states.
  """
  if str(path_or_name) == "bytes":
    return ByteVocabulary()
  path = epath.Path(path_or_name)
  if path.is_dir():
    return _load_directory(path)
  if not path.exists():
    raise UserError(
      f"vocabulary {path}: found nothing there, expected a directory with {MANIFEST}, a SentencePiece .model file or "
      "the name 'bytes' (python -m tools.train_vocabulary makes a vocabulary)"
    )
  return SentencePieceVocabulary(_read(path), T5_EXTRA_IDS, origin=f"vocabulary {path}")


def encode_sentinels(vocabulary: Vocabulary, text: str) -> list[int]:
  """Ids of text in which each `<extra_id_N>`, N < extra_ids, stands for its sentinel; no EOS.

  Each stretch of text between sentinels is encoded on its own. A sentinel the vocabulary lacks is plain text.
  """
  ids, start = [], 0
  for match in _SENTINEL.finditer(text):
    if int(match[1]) < vocabulary.extra_ids:
      ids += vocabulary.encode(text[start : match.start()])
      ids.append(vocabulary.size - 1 - int(match[1]))
      start = match.end()
  return ids + vocabulary.encode(text[start:])


def _parts(ids: Sequence[int], vocabulary: Vocabulary):
  """Yields runs of ids that are neither pad, EOS nor sentinel as lists, and sentinels as their spelling."""
  run = []
  first_sentinel = vocabulary.size - vocabulary.extra_ids
  for i in map(int, ids):
    if i < 0:
      raise UserError(f"decode: found id {i}, expected ids in 0..{vocabulary.size - 1} (the vocabulary's size is "
                      f"{vocabulary.size})")
    if first_sentinel <= i < vocabulary.size:
      if run:
        yield run
      run = []
      yield f"<extra_id_{vocabulary.size - 1 - i}>"
    elif i not in (PAD_ID, EOS_ID):
      run.append(i)
  if run:
    yield run


def _processor(model: bytes, origin: str) -> sentencepiece.SentencePieceProcessor:
  processor = sentencepiece.SentencePieceProcessor()
  try:
    processor.LoadFromSerializedProto(model)
  except (RuntimeError, ValueError) as error:
    raise UserError(
      f"{origin}: found {len(model)} bytes that are not a SentencePiece model, expected a complete .model file "
      f"({one_line(error)})"
    ) from None
  found = {"pad": processor.pad_id(), "eos": processor.eos_id(), "unk": processor.unk_id()}
  expected = {"pad": PAD_ID, "eos": EOS_ID, "unk": UNK_ID}
  for name, expected_id in expected.items():
    if found[name] != expected_id:
      raise UserError(
        f"{origin}: found {name} id {found[name]}, expected {expected_id}; train the model with pad_id=0, eos_id=1, "
        "unk_id=2, bos_id=-1 (python -m tools.train_vocabulary does)"
      )
  for spelling in ("<extra_id_0>", f"{_WORD_START}<extra_id_0>"):
    piece_id = processor.piece_to_id(spelling)
    if piece_id != UNK_ID:
      raise UserError(
        f"{origin}: found the sentinel {spelling!r} among its pieces (id {piece_id}), expected a model without "
        "sentinels, since they are added on top of it"
      )
  return processor


def _checked_extra_ids(extra_ids, origin: str) -> int:
  if not isinstance(extra_ids, int) or isinstance(extra_ids, bool) or extra_ids < 0:
    raise UserError(f"{origin}: found extra_ids {extra_ids!r}, expected a whole number of sentinels, 0 or more")
  return extra_ids


def _fingerprint(kind: str, model: bytes, extra_ids: int) -> str:
  return hashlib.sha256(f"{kind}\n{extra_ids}\n".encode() + model).hexdigest()


def _well_formed(text: str) -> str:
  """The text with lone surrogates, which no UTF-8 can hold, replaced by U+FFFD (and surrogate pairs joined)."""
  try:
    text.encode()
    return text
  except UnicodeEncodeError:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _save(directory, kind: str, vocabulary: Vocabulary, files: dict[str, bytes]) -> None:
  directory = epath.Path(directory)
  manifest = {
    "format": FORMAT,
    "kind": kind,
    "files": {name: {"bytes": len(data)} for name, data in files.items()},
    "size": vocabulary.size,
    "extra_ids": vocabulary.extra_ids,
    "pad_id": PAD_ID,
    "eos_id": EOS_ID,
    "unk_id": UNK_ID,
    "fingerprint": vocabulary.fingerprint,
  }
  try:
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
      (directory / name).write_bytes(data)
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
  except OSError as error:
    raise UserError(f"vocabulary {directory}: cannot be written ({one_line(error)})") from error


def _load_directory(directory: epath.Path) -> Vocabulary:
  path = directory / MANIFEST
  if not path.exists():
    raise UserError(f"vocabulary {directory}: found no {MANIFEST} there, expected a directory written by "
                    "python -m tools.train_vocabulary")
  manifest = _manifest(path)
  kind, extra_ids = manifest["kind"], _checked_extra_ids(manifest["extra_ids"], str(path))
  if kind == "sentencepiece":
    model_path = directory / MODEL_FILE
    model = _read(model_path)
    expected = _fingerprint("sentencepiece", model, extra_ids)
    if expected != manifest["fingerprint"]:
      raise UserError(
        f"{model_path}: found a model of {len(model)} bytes with fingerprint {expected[:12]}, expected "
        f"{str(manifest['fingerprint'])[:12]} as {MANIFEST} states; the directory is damaged, copy or train it again"
      )
    vocabulary = SentencePieceVocabulary(model, extra_ids, origin=str(model_path))
  elif kind == "bytes":
    vocabulary = ByteVocabulary(extra_ids)
  else:
    raise UserError(f"{path}: found kind {kind!r}, expected 'sentencepiece' or 'bytes'")
  for key in ("size", "fingerprint"):
    if getattr(vocabulary, key) != manifest[key]:
      found, expected = manifest[key], getattr(vocabulary, key)
      raise UserError(f"{path}: found {key} {found!r}, expected {expected!r}; the file is damaged")
  return vocabulary


def _manifest(path: epath.Path) -> dict:
  try:
    manifest = json.loads(_read(path))
  except (ValueError, RecursionError) as error:
    raise UserError(f"{path}: found damaged JSON ({one_line(error)}), expected the file save wrote") from None
  if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
    found = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
    raise UserError(f"{path}: found format {found!r}, expected {FORMAT!r}")
  missing = [key for key in ("kind", "size", "extra_ids", "fingerprint") if key not in manifest]
  if missing:
    raise UserError(f"{path}: found no key {missing[0]!r}, expected the file save wrote")
  return manifest


def _read(path: epath.Path) -> bytes:
  try:
    return path.read_bytes()
  except OSError as error:
    raise UserError(f"{path}: cannot be read ({one_line(error)})") from error
