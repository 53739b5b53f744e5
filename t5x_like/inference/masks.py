"""Encode texts that contain masks and sentinels."""

import re
from collections.abc import Iterable

from t5x_like import vocabularies
from t5x_like.vocabularies import Vocabulary


def encode_pieces(vocabulary: Vocabulary, text: str) -> list[int]:
  """Encode a text that spells out sentinels and masks, without EOS."""
  if vocabulary.mask_id is None:
    return vocabularies.encode_sentinels(vocabulary, text)
  return encode_masks(
    vocabulary, text, vocabulary.mask_id, vocabulary.pieces_of([vocabulary.mask_id])
  )


def encode_masks(
  vocabulary: Vocabulary, text: str, mask_id: int, spellings: Iterable[str]
) -> list[int]:
  """Encode a text that spells out sentinels and, with any of `spellings`, masks; add no EOS.

  A mask replaces a piece and, because most vocabularies store it in the piece, the space before it.
  In vocabularies with `spaces_apart`, such as bytes, the space is kept as a separate id.
  """
  ids: list[int] = []
  parts = re.split("|".join(map(re.escape, spellings)), text)
  for number, part in enumerate(parts):
    is_before_mask = number < len(parts) - 1
    if is_before_mask and not vocabulary.spaces_apart:
      part = part.removesuffix(" ")
    ids += vocabularies.encode_sentinels(vocabulary, part)
    if is_before_mask:
      ids.append(mask_id)
  return ids
