"""Prompts for a model of images and texts, as rows in the format of its captions."""

from collections.abc import Sequence

import numpy as np

from t5x_like.errors import UserError
from t5x_like.vocabularies import Vocabulary


def encode_rows(texts: Sequence[str], vocabulary: Vocabulary, length: int) -> np.ndarray:
  """Encode texts as rows, int32 [N, length].

  A row is the start of text if the vocabulary has one, the text, EOS and padding. Longer texts are
  cut, and still end in EOS.

  Raises:
    UserError: rows have no room for text.
  """
  opening_ids = [] if vocabulary.bos_id is None else [vocabulary.bos_id]
  room = length - len(opening_ids) - 1
  if room < 1:
    raise UserError(f"config.task.length: found {length}, expected at least {len(opening_ids) + 2}")
  pad = vocabulary.eos_id if vocabulary.pad_id is None else vocabulary.pad_id
  rows = np.full((len(texts), length), pad, np.int32)
  for row, ids in zip(rows, vocabulary.encode_batch(texts)):
    row_ids = [*opening_ids, *ids[:room], vocabulary.eos_id]
    row[: len(row_ids)] = row_ids
  return rows
