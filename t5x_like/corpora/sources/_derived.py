"""The base of sources that derive their records from the records of another source.

Parts, sizes and modification times come from the other source; the facts add `_derivation`.
"""

from collections.abc import Iterator
from typing import Any

from t5x_like.corpora.sources import Record, Skip, Source, check_split


class Derived(Source):
  """A source whose records come from another source.

  It sets `_inner`, the other source, and `_derivation`, the facts about the derivation.
  """

  _inner: Source
  _derivation: dict[str, Any]

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record | Skip]]:
    check_split(self, split)
    for where, record in self._inner.records(split, part):
      if isinstance(record, Skip):
        yield where, record
      else:
        yield from self._derive(record, where, split)

  def _derive(self, record: Record, where: str, split: str) -> Iterator[tuple[str, Record | Skip]]:
    """Yield the records that a record of the other source becomes, each with its location."""
    yield where, record

  def parts(self, split: str, part_bytes: int) -> list[tuple[int, int]]:
    return self._inner.parts(split, part_bytes)

  def part_size(self, split: str, part: tuple[int, int]) -> int:
    return self._inner.part_size(split, part)

  def modification_times(self, split: str) -> list[int | None]:
    return self._inner.modification_times(split)

  def part_facts(self, split: str, field: str, part: tuple[int, int]) -> Any:
    inner = self._inner.part_facts(split, field, part)
    if not inner:
      return inner
    return [self._derivation, field, inner]

  def facts(self, field: str) -> dict[str, Any]:
    return self._derivation | {"of": self._inner.facts(field)}

  def split_facts(self, split: str) -> dict[str, Any]:
    return self._derivation | {"of": self._inner.split_facts(split)}
