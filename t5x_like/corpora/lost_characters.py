"""Measure the characters of a corpus that a vocabulary loses, before a model trains on its ids."""

import itertools
from collections import Counter
from collections.abc import Iterable

from t5x_like.vocabularies import Vocabulary

_MAX_CHARACTERS = 2**18  # characters that are measured


def describe_lost_characters(vocabulary: Vocabulary, texts: Iterable[str]) -> str:
  """Return a clause on the characters of the first texts that a vocabulary loses; empty for none.

  A line is encoded and decoded with its end. Characters count as lost where the decoded line has
  fewer of them.
  """
  lines = []
  num_characters = 0
  for line in itertools.chain.from_iterable(text.splitlines(keepends=True) for text in texts):
    lines.append(line[: _MAX_CHARACTERS - num_characters])
    num_characters += len(lines[-1])
    if num_characters >= _MAX_CHARACTERS:
      break
  lost: Counter[str] = Counter()
  for line, ids in zip(lines, vocabulary.encode_batch(lines), strict=True):
    decoded = vocabulary.decode(ids)
    if decoded != line:
      lost += Counter(line) - Counter(decoded)
  if not lost:
    return ""
  percentage = f"{100 * lost.total() / num_characters:.2g} %"
  commonest = ", ".join(f"{count:,} x {character!r}" for character, count in lost.most_common(3))
  return f"loses {percentage} of the characters ({commonest} of the first {num_characters:,})"
