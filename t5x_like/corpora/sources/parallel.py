"""`parallel:PATTERN`: one file of lines per field, such as one per language.

Record n consists of line n of each file.

The pattern contains `{field}` and, unless all records belong to the split `train`, `{split}`, as in
`corpus/{split}.{field}.gz`. Several patterns, separated by commas, are read one after another.
`{a|b}` stands for `a` in the first field's file and for `b` in the second field's, as in
`newsdev2016-enro-{src|ref}.{field}.sgm`. The lines of a `.sgm` file are its segments.
"""

import fnmatch
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from t5x_like.corpora.sources import Record, Skip, lines, sgm
from t5x_like.corpora.sources import Source as Base
from t5x_like.corpora.sources._files import FileSource
from t5x_like.errors import UserError
from t5x_like.files import globs

_ALTERNATIVES = re.compile(r"\{([^{}|]*(?:\|[^{}|]*)+)\}")  # {a|b}


def field_path(pattern: str, fields: Sequence[str], field: str) -> str:
  """Return the path of a field's file; raise UserError if `{a|b}` has no alternative for it."""

  def choose(match: re.Match) -> str:
    alternatives = match[1].split("|")
    index = list(fields).index(field)
    if index >= len(alternatives):
      raise UserError(
        f"source parallel:{pattern}: found {match[0]}, expected a part for each of "
        f"{', '.join(fields)}"
      )
    return alternatives[index]

  return _ALTERNATIVES.sub(choose, pattern).replace("{field}", field)


class Source(Base):
  """Records made of one line from the file of each field."""

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    self._patterns = spec.split(",")
    self._fields = fields
    if not all("{field}" in pattern for pattern in self._patterns):
      raise UserError(
        f"source parallel:{spec}: found no {{field}}, expected a path such as "
        f"parallel:corpus/{{split}}.{{field}}.gz"
      )
    if not fields:
      raise UserError(
        f"source parallel:{spec}: found no fields, expected the names that {{field}} stands for"
      )
    self.splits = self._splits() if "{split}" in spec else ("train",)
    self.name = lines.Source(self._path(self._patterns[0], self.splits[0], fields[0])).name
    if self.name in (*self.splits, "lines") and "/" in spec:
      # A file that is named after its split gives its folder's name.
      self.name = self._patterns[0].rsplit("/", 2)[-2]

  def _path(self, pattern: str, split: str, field: str) -> str:
    return field_path(pattern, self._fields, field).replace("{split}", split)

  def _splits(self) -> tuple[str, ...]:
    """Return the values of {split} for which the first field has a file."""
    first = self._fields[0]
    pattern = self._patterns[0]
    splits = set()
    for path in globs.find_matches(globs.expand(self._path(pattern, "*", first))[0]):
      for candidate in re.findall("[A-Za-z0-9_]+", path):
        if fnmatch.fnmatch(path, globs.expand(self._path(pattern, candidate, first))[0]):
          splits.add(candidate)
    if not splits:
      raise UserError(
        f"source parallel:{self._path(pattern, '{split}', first)}: found no such "
        "files for any split"
      )
    return tuple(sorted(splits))

  def _corpora(self, split: str) -> list[dict[str, FileSource]]:
    """Return the file of each field, for each pattern."""
    corpora = []
    for pattern in self._patterns:
      sides = {}
      for field in self._fields:
        path = self._path(pattern, split, field)
        is_sgm = re.search(r"\.sgm(\.\w+)?$", path)
        sides[field] = sgm.Source(path) if is_sgm else lines.Source(path)
      corpora.append(sides)
    return corpora

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record | Skip]]:
    for pattern, sides in zip(self._patterns, self._corpora(split)):
      yield from self._rows(pattern, split, sides)

  def _rows(
    self, pattern: str, split: str, sides: dict[str, FileSource]
  ) -> Iterator[tuple[str, Record | Skip]]:
    """Yield the records of one pattern; raise UserError if its files differ in length."""
    paths = [self._path(pattern, split, field) for field in self._fields]
    past_end = ("", None)
    columns = (side.records("train") for side in sides.values())  # a pattern without split names
    for number, row in enumerate(itertools.zip_longest(*columns, fillvalue=past_end), 1):
      short_paths = [path for path, cell in zip(paths, row) if cell is past_end]
      if short_paths:
        longer_paths = [path for path in paths if path not in short_paths]
        raise UserError(
          f"{short_paths[0]}: found {number - 1} lines, expected as many as in the other files "
          f"({', '.join(longer_paths)})"
        )
      line_records = [line_record for _, line_record in row]
      record = next((skip for skip in line_records if isinstance(skip, Skip)), None)
      if record is None:
        record = {field: line["text"] for field, line in zip(self._fields, line_records)}
      yield f"{pattern}:{number}", record

  def part_size(self, split: str, part: tuple[int, int]) -> int:
    size = 0
    for sides in self._corpora(split):
      for side in sides.values():
        size += side.part_size("train", (0, None))
    return size

  def modification_times(self, split: str) -> list[int | None]:
    times = []
    for sides in self._corpora(split):
      for side in sides.values():
        times += side.modification_times("train")
    return times

  def facts(self, field: str) -> dict[str, Any]:
    return {
      "form": "parallel",
      "text_field": field,
      "splits": {split: self.split_facts(split) for split in self.splits},
    }

  def split_facts(self, split: str) -> dict[str, Any]:
    corpora = []
    for sides in self._corpora(split):
      corpora.append({field: side.split_facts("train") for field, side in sides.items()})
    first, *further = corpora
    if further:
      return first | {"further": further}
    return first
