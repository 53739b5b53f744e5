"""The base of sources whose records are made of another source's: parts, sizes and facts are the other's."""

from typing import Any

from t5x_like.corpora.sources import Source


class Derived(Source):
  """A source that sets `_inner`, the other source, and `_own`, the facts about what it makes of its records."""

  _inner: Source
  _own: dict[str, Any]

  def parts(self, split: str, part_bytes: int) -> list[tuple[int, int]]:
    return self._inner.parts(split, part_bytes)

  def part_size(self, split: str, part: tuple[int, int]) -> int:
    return self._inner.part_size(split, part)

  def changed(self, split: str) -> list[int | None]:
    return self._inner.changed(split)

  def part_facts(self, split: str, field: str, part: tuple[int, int]) -> Any:
    inner = self._inner.part_facts(split, field, part)
    return inner and [self._own, field, inner]

  def facts(self, field: str) -> dict[str, Any]:
    return self._own | {"of": self._inner.facts(field)}

  def split_facts(self, split: str) -> dict[str, Any]:
    return self._own | {"of": self._inner.split_facts(split)}
