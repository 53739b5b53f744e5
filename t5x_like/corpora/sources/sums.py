"""`sums:99`: all sums of two numbers from 0 to 99, a small task for learning from rewards."""

import hashlib
from collections.abc import Iterator
from typing import Any

from t5x_like.corpora.sources import Record, check_split
from t5x_like.corpora.sources import Source as Base
from t5x_like.errors import UserError

_LIMIT = 999


class Source(Base):
  """A source of all pairs of numbers up to a greatest one, as texts in `a`, `b` and `sum`.

  A tenth of the pairs is the validation split.
  """

  splits = ("train", "validation")

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    del fields, data_dir
    if not spec.isdecimal() or not 4 <= int(spec) <= _LIMIT:
      raise UserError(
        f"source sums:{spec}: found {spec!r}, expected the greatest number, 4 to {_LIMIT}: sums:99"
      )
    self._greatest = int(spec)
    self.name = f"sums{self._greatest}"

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record]]:
    check_split(self, split)
    for pair in range((self._greatest + 1) ** 2):
      is_held_out = hashlib.sha256(str(pair).encode()).digest()[0] % 10 == 0
      if is_held_out == (split == "validation"):
        a, b = divmod(pair, self._greatest + 1)
        yield f"{self.name}, pair {pair}", {"a": str(a), "b": str(b), "sum": str(a + b)}

  def facts(self, field: str) -> dict[str, Any]:
    return self.split_facts("train")

  def split_facts(self, split: str) -> dict[str, Any]:
    return {"form": "sums.v1", "most": self._greatest, "split": split}
