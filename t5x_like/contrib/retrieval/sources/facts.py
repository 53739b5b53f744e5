"""`facts:2000`: a world of 2,000 facts about people, drawn by a seed.

They can be looked up but not guessed.

Each person has a home, a work and a pet. The split `passages` has a passage for each person, field
`text`:

    Kq home mo. Kq work ti. Kq pet su.

The splits `train` and `validation` ask for one fact each, fields `question` (`Kq work?`) and
`answer` (`ti`). The facts of `validation`, a fifth of all, are in no question of `train`, so a
model that knows them has read the passages. `facts:2000:7` is the world of seed 7.
"""

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from t5x_like.corpora.sources import Record, check_split
from t5x_like.corpora.sources import Source as Base
from t5x_like.errors import UserError

VERSION = 1  # raise it when the facts change
_RELATIONS = ("home", "work", "pet")
_NAMES = [
  first + second
  for first in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
  for second in "abcdefghijklmnopqrstuvwxyz"
]
_VALUES = [consonant + vowel for consonant in "bcdfghjklmnpqrstvwxz" for vowel in "aeiou"]
_MOST = len(_RELATIONS) * len(_NAMES)


class Source(Base):
  """The questions of two splits, and the passages."""

  splits = ("train", "validation", "passages")

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    del fields, data_dir
    match = re.fullmatch(r"(\d{1,4})(?::(\d{1,9}))?", spec)
    if not match or not 30 <= int(match[1]) <= _MOST:
      raise UserError(
        f"source facts:{spec}: found {spec!r}, expected a number of facts, 30 to "
        f"{_MOST:,}: facts:2000"
      )
    self._people = int(match[1]) // len(_RELATIONS)
    self._seed = int(match[2] or 0)
    self.name = f"facts{match[1]}"

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record]]:
    check_split(self, split)
    generator = np.random.default_rng(self._seed)
    names = generator.permutation(_NAMES)[: self._people].tolist()
    values = generator.choice(_VALUES, (self._people, len(_RELATIONS))).tolist()
    for name, row in zip(names, values):
      where = f"{self.name}, {name}"
      facts = dict(zip(_RELATIONS, row))
      if split == "passages":
        yield (
          where,
          {"text": " ".join(f"{name} {relation} {value}." for relation, value in facts.items())},
        )
        continue
      for relation, value in facts.items():
        is_held_out = (
          hashlib.sha256(f"{self._seed} {name} {relation}".encode()).digest()[0] % 5 == 0
        )
        if is_held_out == (split == "validation"):
          yield where, {"question": f"{name} {relation}?", "answer": value}

  def facts(self, field: str) -> dict[str, Any]:
    return self.split_facts("train")

  def split_facts(self, split: str) -> dict[str, Any]:
    shape = {"people": self._people, "seed": self._seed, "split": split}
    return {"form": "facts", "version": VERSION} | shape
