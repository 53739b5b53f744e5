"""The vocabulary of bytes (ByT5, Xue et al. 2022)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import t5x_like.vocabularies.kinds._shared as shared
from t5x_like import vocabularies
from t5x_like.files.paths import AnyPath
from t5x_like.vocabularies.kinds._shared import BYT5_EXTRA_IDS
from t5x_like.vocabularies.protocol import Vocabulary

KIND = "bytes"

_BYTE_OFFSET = 3
_TEXT_SIZE = 256 + _BYTE_OFFSET
_UNUSED_BYTES = 11  # the last bytes, 0xF5 to 0xFF, which UTF-8 does not use


class ByteVocabulary(Vocabulary):
  """UTF-8 bytes: id = byte + 3, then `extra_ids` sentinels; `size` = 259 + extra_ids.

  Published ByT5 models have 384 ids too, but their sentinels are not the highest ids: they are the
  ids of the last eleven bytes, which UTF-8 does not use.

  Lone surrogates, which UTF-8 cannot encode, become U+FFFD. Bytes that are not UTF-8 and unknown
  ids decode to U+FFFD. There is no mask, CLS, SEP or BOS; `vocabularies.special_id` returns
  sentinels instead.
  """

  mask_id = cls_id = sep_id = bos_id = None
  spaces_apart = True

  def __init__(self, extra_ids: int = BYT5_EXTRA_IDS, bytes_as_sentinels: bool = False):
    """Create the vocabulary.

    Args:
      extra_ids: the number of sentinels above the bytes.
      bytes_as_sentinels: whether the unused bytes are the sentinels, as in published ByT5 models;
        `extra_ids` is then ignored.
    """
    self.bytes_as_sentinels = bytes_as_sentinels
    if not bytes_as_sentinels:
      self.extra_ids = shared.check_extra_ids(extra_ids, "byte vocabulary")
      self.size = _TEXT_SIZE + self.extra_ids
      self.sentinels = shared.top_ids(self.size, self.extra_ids)
    else:
      self.extra_ids = _UNUSED_BYTES
      self.size = _TEXT_SIZE + BYT5_EXTRA_IDS
      self.sentinels = shared.top_ids(_TEXT_SIZE, self.extra_ids)
    self.special_ids = shared.special_ids(self)
    kind = f"last {KIND}" if bytes_as_sentinels else KIND
    self.fingerprint = shared.fingerprint(kind, b"", self.extra_ids)

  def encode(self, text: str) -> list[int]:
    return [byte + _BYTE_OFFSET for byte in shared.well_formed(text).encode()]

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    encoded = (shared.well_formed(text).encode() for text in texts)
    return [np.frombuffer(utf8, np.uint8).astype(np.int32) + _BYTE_OFFSET for utf8 in encoded]

  def decode(self, ids: Sequence[int]) -> str:
    text = ""
    for part in shared.split_at_sentinels(ids, self):
      if not isinstance(part, str):
        part = b"".join(map(_byte, part)).decode(errors="replace")
      text += part
    return text

  def pieces_of(self, ids: Sequence[int]) -> list[str]:
    return [shared.sentinel_piece(self, i) or _spell(i) for i in map(int, ids)]

  def _text_bytes(self, i: int) -> bytes:
    return _byte(i)

  def save(self, directory) -> None:
    facts = {"own": False} if self.bytes_as_sentinels else {}
    shared.save(directory, KIND, self, {}, **facts)


def load(directory: AnyPath, manifest: dict[str, Any]) -> ByteVocabulary:
  """Open a directory written by `save`."""
  extra_ids = shared.check_extra_ids(manifest["extra_ids"], str(directory / vocabularies.MANIFEST))
  return ByteVocabulary(extra_ids, bytes_as_sentinels=manifest.get("own", True) is False)


def _byte(i: int) -> bytes:
  """Return the byte of an id, or U+FFFD in UTF-8 for an id that has none."""
  if _BYTE_OFFSET <= i < _TEXT_SIZE:
    return bytes([i - _BYTE_OFFSET])
  return "\ufffd".encode()


def _spell(i: int) -> str:
  """Return a special piece, an ASCII character, or another byte in hexadecimal, for display."""
  byte = i - _BYTE_OFFSET
  if byte < 0:
    return ("<pad>", "</s>", "<unk>")[i]
  return chr(byte) if 0x20 <= byte < 0x7F else f"<0x{byte:02X}>"
