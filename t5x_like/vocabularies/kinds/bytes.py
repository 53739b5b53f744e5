"""The vocabulary of bytes (ByT5, Xue et al. 2022)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import t5x_like.vocabularies.kinds._shared as shared
from t5x_like import vocabularies
from t5x_like.files.places import Place
from t5x_like.vocabularies.kinds._shared import BYT5_EXTRA_IDS
from t5x_like.vocabularies.protocol import Vocabulary

KIND = "bytes"

_BYTE_OFFSET = 3
_UNKNOWN_CHARACTER = "\ufffd"
_WHITESPACE = b" \t\n\r\v\f"


class ByteVocabulary(Vocabulary):
  """UTF-8 bytes: id = byte + 3, then `extra_ids` sentinels; `size` = 259 + extra_ids. (ByT5's own are its last bytes.)

  Lone surrogates, which UTF-8 cannot encode, become U+FFFD; bytes that are not UTF-8 and unknown ids decode to U+FFFD.
  An ASCII whitespace byte starts a word. There is no mask, CLS, SEP or BOS; `vocabularies.special` lends sentinels.
  """

  mask_id = cls_id = sep_id = bos_id = None
  spaces_apart = True

  def __init__(self, extra_ids: int = BYT5_EXTRA_IDS):
    self.extra_ids = shared.checked_extra_ids(extra_ids, "byte vocabulary")
    self.size = 256 + _BYTE_OFFSET + self.extra_ids
    self.sentinels = shared.top(self.size, self.extra_ids)
    self.special_ids = shared.special_ids(self)
    self.starts_word = shared.words(
      self, (i - _BYTE_OFFSET in _WHITESPACE if i >= _BYTE_OFFSET else False for i in range(256 + _BYTE_OFFSET))
    )
    self.fingerprint = shared.fingerprint(KIND, b"", self.extra_ids)

  def encode(self, text: str) -> list[int]:
    return [byte + _BYTE_OFFSET for byte in shared.well_formed(text).encode()]

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    encoded = (shared.well_formed(text).encode() for text in texts)
    return [np.frombuffer(data, np.uint8).astype(np.int32) + _BYTE_OFFSET for data in encoded]

  def decode(self, ids: Sequence[int]) -> str:
    text = ""
    for part in shared.parts(ids, self):
      if isinstance(part, str):
        text += part
        continue
      known = (bytes([i - _BYTE_OFFSET]) if 0 <= i - _BYTE_OFFSET < 256 else _UNKNOWN_CHARACTER.encode() for i in part)
      text += b"".join(known).decode(errors="replace")
    return text

  def pieces_of(self, ids: Sequence[int]) -> list[str]:
    return [shared.sentinel_piece(self, i) or _spelled(i) for i in map(int, ids)]

  def save(self, directory) -> None:
    shared.save(directory, KIND, self, {})


def load(directory: Place, manifest: dict[str, Any]) -> ByteVocabulary:
  return ByteVocabulary(shared.checked_extra_ids(manifest["extra_ids"], str(directory / vocabularies.MANIFEST)))


def _spelled(i: int) -> str:
  byte = i - _BYTE_OFFSET
  if byte < 0:
    return ("<pad>", "</s>", "<unk>")[i]
  return chr(byte) if 0x20 <= byte < 0x7F else f"<0x{byte:02X}>"
