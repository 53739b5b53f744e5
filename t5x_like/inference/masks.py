"""Texts with masks and sentinels in them, as ids."""

import re
from collections.abc import Iterable

from t5x_like.data import vocabularies
from t5x_like.data.vocabularies import ByteVocabulary, Vocabulary


def encode_pieces(vocabulary: Vocabulary, text: str) -> list[int]:
  """Ids of a text whose sentinels, and the mask piece of a vocabulary that has one, are spelled out in it; no EOS."""
  if vocabulary.mask_id is None:
    return vocabularies.encode_sentinels(vocabulary, text)
  return encode_masks(vocabulary, text, vocabulary.mask_id, vocabulary.pieces_of([vocabulary.mask_id]))


def encode_masks(vocabulary: Vocabulary, text: str, mask_id: int, spellings: Iterable[str]) -> list[int]:
  """Ids of a text in which each of the spellings stands for the mask, besides sentinels; no EOS.

  A mask stands for a piece with the space before it, as pieces have it; bytes are pieces of their own.
  """
  ids: list[int] = []
  parts = re.split("|".join(map(re.escape, spellings)), text)
  for number, part in enumerate(parts):
    if number < len(parts) - 1 and not isinstance(vocabulary, ByteVocabulary):
      part = part.removesuffix(" ")
    ids += [*vocabularies.encode_sentinels(vocabulary, part), mask_id]
  return ids[:-1]
