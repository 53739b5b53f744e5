"""The reading that formats of typed columns share: only the columns in use, a row a record."""

import abc
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from t5x_like.corpora.sources import Record, Skip, check_fields, top_level_column
from t5x_like.corpora.sources._files import LONGEST, FileSource
from t5x_like.errors import UserError
from t5x_like.files.paths import as_path

AT_ONCE = 1024


class ColumnSource(FileSource):
  """One record per row; only the columns in `fields` are read. A format defines `open_columns` and
  `damage_error`."""

  @abc.abstractmethod
  def open_columns(
    self, file: BinaryIO
  ) -> tuple[list[str], Callable[[list[str]], Iterable[list[Record]]]]:
    """Return (names of columns, a function from the columns in use to lists of at most `AT_ONCE`
    records)."""

  @abc.abstractmethod
  def damage_error(self, path: str, error: Exception) -> UserError:
    """Return the error of a file whose content cannot be read."""

  def read(self, path: str) -> Iterator[tuple[str, Record | Skip]]:
    import pyarrow

    number = 0
    try:
      with as_path(path).open("rb") as file:
        names, records_of = self.open_columns(file)
        check_fields(self.fields, names, path)
        for records in records_of(
          list({top_level_column(field, names): None for field in self.fields} or names)
        ):
          for record in records:
            number += 1
            yield (
              f"{path}, row {number}",
              Skip(f"text of over {LONGEST:,} characters") if _long(record) else record,
            )
    except (pyarrow.ArrowException, OSError, LookupError, OverflowError, ValueError) as error:
      raise self.damage_error(path, error) from error


def _long(record: dict[str, Any]) -> bool:
  return any(isinstance(cell, str) and len(cell) > LONGEST for cell in record.values())
