"""`held_out:N@SOURCE`: another source's records, with one in N of `train` held out as `validation`.

The SHA-256 of a record's image, or of the whole record, decides. So about the same share of every
class and every file is held out, equal images stay together, and neither the order of records nor
their position matters. For `objects:`, hold out whole photographs by
`objects:held_out:10@voc:DIR`; otherwise objects of one photograph would be in both splits.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

from t5x_like.corpora.sources import Record, Skip, check_split, open_source
from t5x_like.corpora.sources._derived import Derived
from t5x_like.errors import UserError

_TRAIN = "train"
_VALIDATION = "validation"


class Source(Derived):
  """The splits of another source, its `train` divided into `train` and `validation`."""

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    number, _, inner = spec.partition("@")
    if not (number.isascii() and number.isdecimal() and int(number) > 1 and inner):
      raise UserError(
        f"source held_out:{spec}: expected held_out:N@SOURCE, N from 2, such as "
        "held_out:10@folders:DIR"
      )
    self._number = int(number)
    self._inner = open_source(inner, fields=fields, data_dir=data_dir)
    check_split(self._inner, _TRAIN)
    if _VALIDATION in self._inner.splits:
      raise UserError(
        f"source held_out:{spec}: {inner} has a split {_VALIDATION!r}, so leave "
        f"held_out:{number}@ out"
      )
    self._derivation = {"form": "held_out.v1", "number": self._number}
    self.name = self._inner.name
    self.splits = (_TRAIN, _VALIDATION, *(s for s in self._inner.splits if s != _TRAIN))

  def classes(self, field: str) -> tuple[str, ...]:
    return self._inner.classes(field)

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record | Skip]]:
    inner_split = _inner_split(split)
    for where, record in self._inner.records(inner_split, part):
      if inner_split != _TRAIN or self._is_held_out(record) == (split == _VALIDATION):
        yield where, record

  def _is_held_out(self, record: Record | Skip) -> bool:
    """Return whether a record of `train` belongs to `validation`, by a hash."""
    if isinstance(record, Skip):
      return False
    values = sorted(record.items())
    content = next((value for _, value in values if isinstance(value, bytes)), None)
    if not content:
      content = repr(values).encode()
    return int.from_bytes(hashlib.sha256(content).digest()[:8]) % self._number == 0

  def parts(self, split: str, part_bytes: int) -> list[tuple[int, int]]:
    return super().parts(_inner_split(split), part_bytes)

  def part_size(self, split: str, part: tuple[int, int]) -> int:
    return super().part_size(_inner_split(split), part)

  def modification_times(self, split: str) -> list[int | None]:
    return super().modification_times(_inner_split(split))

  def part_facts(self, split: str, field: str, part: tuple[int, int]) -> Any:
    inner = super().part_facts(_inner_split(split), field, part)
    return inner and [split, *inner]

  def split_facts(self, split: str) -> dict[str, Any]:
    return super().split_facts(_inner_split(split)) | {"split": split}


def _inner_split(split: str) -> str:
  """Return the split of the other source that has the records of a split."""
  return _TRAIN if split == _VALIDATION else split
