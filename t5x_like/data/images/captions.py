"""Captions of images: stored with the images as ids, and arranged in rows."""

from collections.abc import Iterator

import numpy as np

from t5x_like.corpora.sources import Record, Skip, field_value, json_type_name
from t5x_like.data.images.store import ImageNotes, ImageStore
from t5x_like.errors import UserError
from t5x_like.vocabularies import Vocabulary


def make_notes(vocabulary: Vocabulary, caption_field: str) -> ImageNotes:
  """Return the notes by which a store of images keeps their captions.

  Its arrays are `tokens`, int32, the ids of all captions of an image, and `captions`, int32, their
  lengths.

  Args:
    vocabulary: the vocabulary of the ids.
    caption_field: the field of a caption or a list of captions. Adjacent records of the same path
      are one image.
  """

  def merge(records: Iterator, image_field: str) -> Iterator[tuple[str, Record | Skip]]:
    return _merge_by_path(records, image_field, caption_field)

  def encode(record: Record, where: str) -> dict[str, np.ndarray] | Skip:
    texts = [text for text in _texts(record, caption_field, where) if text]
    captions = [ids for ids in vocabulary.encode_batch(texts) if len(ids)]
    if not captions:
      return Skip("no caption")
    lengths = np.array([len(ids) for ids in captions], np.int32)
    return {"tokens": np.concatenate(captions).astype(np.int32), "captions": lengths}

  facts = {"captions": "v1", "field": caption_field, "vocabulary": vocabulary.fingerprint}
  return ImageNotes((caption_field,), facts, encode, merge)


def _texts(record: Record, field: str, where: str) -> list[str]:
  """Return the captions of a record."""
  captions = field_value(record, field, where)
  if captions is None:
    captions = []
  elif not isinstance(captions, list):
    captions = [captions]
  for caption in captions:
    if not isinstance(caption, str):
      raise UserError(
        f"{where}: found {json_type_name(caption)} in field {field!r}, expected a caption or a "
        "list of them"
      )
  return [caption.strip() for caption in captions]


def _merge_by_path(
  records: Iterator, image_field: str, caption_field: str
) -> Iterator[tuple[str, Record | Skip]]:
  """Merge adjacent records of the same image path into one with all captions."""
  pending: tuple[str, Record] | None = None
  for where, record in records:
    if isinstance(record, Skip):
      yield where, record
      continue
    image = field_value(record, image_field, where)
    texts = _texts(record, caption_field, where)
    if pending and isinstance(image, str) and pending[1][image_field] == image:
      pending[1][caption_field] += texts
      continue
    if pending:
      yield pending
    pending = where, {image_field: image, caption_field: texts}
  if pending:
    yield pending


class Captions:
  """The captions of a store as rows.

  A row is the start of text where the vocabulary has one, the text, EOS and padding.

  Args:
    store: the store, with the notes of `make_notes`.
    vocabulary: the vocabulary of the ids.
    length: length of a row; longer captions are cut, and still end in EOS.

  Attributes:
    first_N, number_N: the first caption and the number of captions of each image.
    num_cut: number of captions longer than a row.
  """

  def __init__(self, store: ImageStore, vocabulary: Vocabulary, length: int):
    self._tokens, _ = store.notes["tokens"]
    lengths_C, self.number_N = store.notes["captions"]
    self.first_N = np.cumsum(self.number_N) - self.number_N
    self._start_C = np.cumsum(lengths_C, dtype=np.int64) - lengths_C
    self._opening_ids = [] if vocabulary.bos_id is None else [vocabulary.bos_id]
    self._eos = vocabulary.eos_id
    self._length = length
    self._pad = vocabulary.eos_id if vocabulary.pad_id is None else vocabulary.pad_id
    room = length - len(self._opening_ids) - 1
    if room < 1:
      raise UserError(
        f"config.task.length: found {length}, expected at least {len(self._opening_ids) + 2}"
      )
    self._lengths_C = np.minimum(lengths_C, room)
    self.num_cut = int((lengths_C > room).sum())

  def __len__(self) -> int:
    return len(self._lengths_C)

  def rows(self, caption_B: np.ndarray) -> np.ndarray:
    """Return the rows of captions, int32 [B, length]."""
    length_B = self._lengths_C[caption_B]
    start_B = self._start_C[caption_B]
    num_opening = len(self._opening_ids)
    positions = np.arange(self._length - num_opening - 1)
    valid_BT = positions < length_B[:, None]
    tokens_BT = self._tokens[np.where(valid_BT, start_B[:, None] + positions, 0)]
    rows_BT = np.full((len(caption_B), self._length), self._pad, np.int32)
    rows_BT[:, :num_opening] = self._opening_ids
    rows_BT[:, num_opening:-1] = np.where(valid_BT, tokens_BT, self._pad)
    rows_BT[np.arange(len(caption_B)), num_opening + length_B] = self._eos
    return rows_BT

  def rows_of_images(self, index_B: np.ndarray, share_B: np.ndarray) -> np.ndarray:
    """Return the row of one caption per image, int32 [B, length].

    Args:
      index_B: the images.
      share_B: the place of a caption among those of its image, in [0, 1): 0 is the first, 0.5 the
        middle one.
    """
    within_B = np.floor(share_B * self.number_N[index_B]).astype(np.int64)
    return self.rows(self.first_N[index_B] + within_B)

  def images(self) -> np.ndarray:
    """Return the image of each caption, int64 [C]."""
    return np.repeat(np.arange(len(self.number_N)), self.number_N)
