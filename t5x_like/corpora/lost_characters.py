"""The characters of a corpus that a vocabulary does not give back, measured before anything is
trained on its ids."""

import itertools
from collections import Counter
from collections.abc import Iterable

from t5x_like.vocabularies import Vocabulary

_CHARACTERS = 2**18  # to measure on


def describe_lost_characters(vocabulary: Vocabulary, texts: Iterable[str]) -> str:
  """Return a clause on the characters of the first texts that a vocabulary loses; empty if it loses
  none.

  A line is encoded and decoded with its end. Characters count as lost where the result has fewer of
  them.
  """
  lines = []
  held = 0
  for line in itertools.chain.from_iterable(text.splitlines(keepends=True) for text in texts):
    lines.append(line[: _CHARACTERS - held])
    held += len(lines[-1])
    if held >= _CHARACTERS:
      break
  lost: Counter[str] = Counter()
  for line, ids in zip(lines, vocabulary.encode_batch(lines), strict=True):
    if (found := vocabulary.decode(ids)) != line:
      lost += Counter(line) - Counter(found)
  if not lost:
    return ""
  most = ", ".join(f"{count:,} x {character!r}" for character, count in lost.most_common(3))
  return f"loses {100 * lost.total() / held:.2g} % of the characters ({most} of the first {held:,})"
