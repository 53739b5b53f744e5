"""`parallel:PATTERN`: one file of lines per field, such as one per language; line n of all files is record n.

The pattern contains `{field}` and, unless everything is the split `train`, `{split}`: `corpus/{split}.{field}.gz`.
"""

import fnmatch
import itertools
import re
from collections.abc import Iterator
from typing import Any

from t5x_like.corpora.sources import Record, Skip, lines
from t5x_like.corpora.sources import Source as Base
from t5x_like.errors import UserError
from t5x_like.files import globs


class Source(Base):
  """The lines of the files of `fields`, side by side."""

  def __init__(self, rest: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    if "{field}" not in rest:
      raise UserError(
        f"source parallel:{rest}: found no {{field}}, expected a path such as parallel:corpus/{{split}}.{{field}}.gz"
      )
    if not fields:
      raise UserError(f"source parallel:{rest}: found no fields, expected those that name its files")
    self._pattern, self._fields = rest, fields
    self.splits = self._splits() if "{split}" in rest else ("train",)
    self.name = lines.Source(self._path(self.splits[0], fields[0])).name
    if self.name in (*self.splits, "lines") and "/" in rest:
      self.name = rest.rsplit("/", 2)[-2]

  def _path(self, split: str, field: str) -> str:
    return self._pattern.replace("{split}", split).replace("{field}", field)

  def _splits(self) -> tuple[str, ...]:
    """Return the values of {split} for which the first field has a file."""
    first = self._fields[0]
    splits = {
      word
      for path in globs.matches(globs.expand(self._path("*", first))[0])
      for word in re.findall("[A-Za-z0-9_]+", path)
      if fnmatch.fnmatch(path, globs.expand(self._path(word, first))[0])
    }
    if not splits:
      raise UserError(f"source parallel:{self._path('{split}', first)}: found no such files for any split")
    return tuple(sorted(splits))

  def _sides(self, split: str) -> dict[str, lines.Source]:
    return {field: lines.Source(self._path(split, field)) for field in self._fields}

  def records(self, split: str, part: tuple[int, int] | None = None) -> Iterator[tuple[str, Record | Skip]]:
    paths = {field: self._path(split, field) for field in self._fields}
    end = ("", None)
    columns = (side.records("train") for side in self._sides(split).values())  # a pattern without split names
    for number, row in enumerate(itertools.zip_longest(*columns, fillvalue=end), 1):
      short = [path for path, line in zip(paths.values(), row) if line is end]
      if short:
        raise UserError(
          f"{short[0]}: found {number - 1} lines, expected as many as in the other files "
          f"({', '.join(path for path in paths.values() if path not in short)})"
        )
      skip = next((line for _, line in row if isinstance(line, Skip)), None)
      yield f"{self._pattern}:{number}", skip or {field: line["text"] for field, (_, line) in zip(paths, row)}

  def part_size(self, split: str, part: tuple[int, int]) -> int:
    return sum(side.part_size("train", (0, None)) for side in self._sides(split).values())

  def changed(self, split: str) -> list[int | None]:
    return [time for side in self._sides(split).values() for time in side.changed("train")]

  def facts(self, field: str) -> dict[str, Any]:
    return {
      "form": "parallel",
      "text_field": field,
      "splits": {split: self.split_facts(split) for split in self.splits},
    }

  def split_facts(self, split: str) -> dict[str, Any]:
    return {field: side.split_facts("train") for field, side in self._sides(split).items()}
