"""The base of formats with typed columns, which reads only the columns in use."""

import abc
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from t5x_like.corpora.sources import Record, Skip, check_fields, top_level_column
from t5x_like.corpora.sources._files import LONGEST, FileSource
from t5x_like.errors import UserError
from t5x_like.files.paths import as_path

MAX_RECORDS_AT_ONCE = 1024  # records that a format decodes together


class ColumnSource(FileSource):
  """A table with one record per row, of which only the columns in `fields` are read.

  A format defines `open_columns` and `damage_error`.
  """

  @abc.abstractmethod
  def open_columns(
    self, file: BinaryIO
  ) -> tuple[list[str], Callable[[list[str]], Iterable[list[Record]]]]:
    """Return the names of the columns, and a function that reads records.

    The function takes the columns in use and returns lists of at most `MAX_RECORDS_AT_ONCE`
    records.
    """

  @abc.abstractmethod
  def damage_error(self, path: str, error: Exception) -> UserError:
    """Return the error to raise for a file whose content cannot be read."""

  def read(self, path: str) -> Iterator[tuple[str, Record | Skip]]:
    import pyarrow

    number = 0
    try:
      with as_path(path).open("rb") as file:
        names, read_records = self.open_columns(file)
        check_fields(self.fields, names, path)
        columns = dict.fromkeys(top_level_column(field, names) for field in self.fields)
        for records in read_records(list(columns or names)):
          for record in records:
            number += 1
            if _has_long_text(record):
              record = Skip(f"text of over {LONGEST:,} characters")
            yield f"{path}, row {number}", record
    except (pyarrow.ArrowException, OSError, LookupError, OverflowError, ValueError) as error:
      raise self.damage_error(path, error) from error


def _has_long_text(record: dict[str, Any]) -> bool:
  """Return whether a cell of a record is a text of over `LONGEST` characters."""
  return any(isinstance(cell, str) and len(cell) > LONGEST for cell in record.values())
