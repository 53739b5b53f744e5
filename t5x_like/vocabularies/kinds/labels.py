"""The names of classes, for tasks whose examples are not text."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

import t5x_like.vocabularies.kinds._shared as shared
from t5x_like import vocabularies
from t5x_like.errors import UserError
from t5x_like.files import checked_json
from t5x_like.files.paths import AnyPath
from t5x_like.vocabularies.protocol import Vocabulary

KIND = "labels"
FILE = "labels.json"


class LabelVocabulary(Vocabulary):
  """The names of classes as a vocabulary: id i is class i, and there are no special ids.

  Text cannot be encoded. `decode` returns the names of classes.
  """

  pad_id = eos_id = unk_id = mask_id = cls_id = sep_id = bos_id = decoder_start_id = None
  sentinels = ()
  extra_ids = 0
  special_ids = frozenset()

  def __init__(self, names: Sequence[str]):
    self.names = tuple(names)
    self.size = len(self.names)
    self.starts_word = np.ones(self.size, bool)
    self.fingerprint = shared.fingerprint(KIND, self._content(), 0)

  def encode(self, text: str) -> list[int]:
    raise UserError(
      f"found the text {text[:40]!r}, but this run was trained on images: it takes no text"
    )

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    return [np.asarray(self.encode(text), np.int32) for text in texts]

  def decode(self, ids: Sequence[int]) -> str:
    return " ".join(self.pieces_of(ids))

  def pieces_of(self, ids: Sequence[int]) -> list[str]:
    return [self.names[i] if 0 <= i < self.size else f"<{i}?>" for i in map(int, ids)]

  def save(self, directory) -> None:
    shared.save(directory, KIND, self, {FILE: self._content()})

  def _content(self) -> bytes:
    return json.dumps(list(self.names)).encode()


def load(directory: AnyPath, manifest: dict[str, Any]) -> LabelVocabulary:
  """Open a directory written by `save`."""
  path = directory / FILE
  names = checked_json.parse_json(
    vocabularies.read_file(path), list, str(path), "a list of class names; copy it again"
  )
  if not all(isinstance(name, str) for name in names):
    raise UserError(
      f"{path}: found a name that is not text, expected a list of class names; copy it again"
    )
  return LabelVocabulary(names)
