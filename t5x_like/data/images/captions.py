"""Captions of images: stored with the images as ids, and arranged in rows."""

from collections.abc import Iterator

import numpy as np

from t5x_like.corpora.sources import Record, Skip, field_value, json_type_name
from t5x_like.data.images.store import ImageStore, Notes
from t5x_like.errors import UserError
from t5x_like.vocabularies import Vocabulary


def notes(vocabulary: Vocabulary, caption_field: str) -> Notes:
  """Return a store's notes of captions: `tokens` int32 of all of an image's captions, `captions`
  int32 their lengths.

  Args:
    caption_field: the field of a caption or a list of captions. Adjacent records of the same path
      are one image.
  """

  def texts(record: Record, where: str) -> list[str]:
    found = field_value(record, caption_field, where)
    found = found if isinstance(found, list) else [] if found is None else [found]
    if bad := [one for one in found if not isinstance(one, str)]:
      raise UserError(
        f"{where}: found {json_type_name(bad[0])} in field {caption_field!r}, expected a caption or a "
        "list of them"
      )
    return [one.strip() for one in found]

  def joined(records: Iterator, image_field: str) -> Iterator[tuple[str, Record | Skip]]:
    held: tuple[str, Record] | None = None
    for where, record in records:
      if isinstance(record, Skip):
        yield where, record
        continue
      image = field_value(record, image_field, where)
      found = texts(record, where)
      if held and isinstance(image, str) and held[1][image_field] == image:
        held[1][caption_field] += found
        continue
      if held:
        yield held
      held = where, {image_field: image, caption_field: found}
    if held:
      yield held

  def of(record: Record, where: str) -> dict[str, np.ndarray] | Skip:
    ids = [
      one
      for one in vocabulary.encode_batch([text for text in texts(record, where) if text])
      if len(one)
    ]
    if not ids:
      return Skip("no caption")
    lengths = np.array([len(one) for one in ids], np.int32)
    return {"tokens": np.concatenate(ids).astype(np.int32), "captions": lengths}

  facts = {"captions": "v1", "field": caption_field, "vocabulary": vocabulary.fingerprint}
  return Notes((caption_field,), facts, of, joined)


class Captions:
  """The captions of a store as rows: the start of text where the vocabulary has one, the text, EOS,
  and padding.

  Args:
    length: length of a row; longer captions are cut, and still end in EOS.

  Attributes:
    first_N, number_N: the first caption and the number of captions of each image.
    cut: number of captions longer than a row.
  """

  def __init__(self, store: ImageStore, vocabulary: Vocabulary, length: int):
    self._tokens, (lengths_C, self.number_N) = store.notes["tokens"][0], store.notes["captions"]
    self.first_N = np.cumsum(self.number_N) - self.number_N
    self._start_C = np.cumsum(lengths_C, dtype=np.int64) - lengths_C
    self._lead = [] if vocabulary.bos_id is None else [vocabulary.bos_id]
    self._eos = vocabulary.eos_id
    self._length = length
    self._pad = vocabulary.eos_id if vocabulary.pad_id is None else vocabulary.pad_id
    room = length - len(self._lead) - 1
    if room < 1:
      raise UserError(
        f"config.task.length: found {length}, expected at least {len(self._lead) + 2}"
      )
    self._lengths_C, self.cut = np.minimum(lengths_C, room), int((lengths_C > room).sum())

  def __len__(self) -> int:
    return len(self._lengths_C)

  def rows(self, caption_B: np.ndarray) -> np.ndarray:
    """Return the rows of captions, int32 [B, length]."""
    length_B = self._lengths_C[caption_B]
    start_B = self._start_C[caption_B]
    places = np.arange(self._length - len(self._lead) - 1)
    valid_BT = places < length_B[:, None]
    tokens_BT = self._tokens[np.where(valid_BT, start_B[:, None] + places, 0)]
    rows_BT = np.full((len(caption_B), self._length), self._pad, np.int32)
    rows_BT[:, : len(self._lead)] = self._lead
    rows_BT[:, len(self._lead) : -1] = np.where(valid_BT, tokens_BT, self._pad)
    rows_BT[np.arange(len(caption_B)), len(self._lead) + length_B] = self._eos
    return rows_BT

  def of_images(self, index_B: np.ndarray, share_B: np.ndarray) -> np.ndarray:
    """Return one caption per image, int32 [B, length]: the one at this share, in [0, 1), of the
    image's captions."""
    return self.rows(
      self.first_N[index_B] + np.floor(share_B * self.number_N[index_B]).astype(np.int64)
    )

  def images(self) -> np.ndarray:
    """Return the image of each caption, int64 [C]."""
    return np.repeat(np.arange(len(self.number_N)), self.number_N)
