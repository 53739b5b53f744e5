"""Encoding of texts that contain masks and sentinels."""

import re
from collections.abc import Iterable

from t5x_like import vocabularies
from t5x_like.vocabularies import Vocabulary


def encode_pieces(vocabulary: Vocabulary, text: str) -> list[int]:
  """Encode a text with spelled-out sentinels and masks; add no EOS."""
  if vocabulary.mask_id is None:
    return vocabularies.encode_sentinels(vocabulary, text)
  return encode_masks(
    vocabulary, text, vocabulary.mask_id, vocabulary.pieces_of([vocabulary.mask_id])
  )


def encode_masks(
  vocabulary: Vocabulary, text: str, mask_id: int, spellings: Iterable[str]
) -> list[int]:
  """Encode a text with sentinels, in which each of `spellings` stands for the mask; no EOS.

  A mask stands for a piece and the space before it, as in the vocabulary; for bytes, the space is a
  separate piece.
  """
  ids: list[int] = []
  parts = re.split("|".join(map(re.escape, spellings)), text)
  for number, part in enumerate(parts):
    if number < len(parts) - 1 and not vocabulary.spaces_apart:
      part = part.removesuffix(" ")
    ids += [*vocabularies.encode_sentinels(vocabulary, part), mask_id]
  return ids[:-1]
