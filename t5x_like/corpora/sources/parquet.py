"""`parquet:PATTERN`: the rows of Parquet files."""

from collections.abc import Iterator

from t5x_like.corpora.sources import Record, Skip, check_fields, column_of, text_of
from t5x_like.corpora.sources._files import LONGEST, FileSource
from t5x_like.errors import UserError, one_line
from t5x_like.files.places import place

_AT_ONCE = 1024


class Source(FileSource):
  """One record per row; only the columns in `fields` are read."""

  def read(self, path: str) -> Iterator[tuple[str, Record | Skip]]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
      with place(path).open("rb") as file:
        table = pyarrow.parquet.ParquetFile(file)
        names = table.schema_arrow.names
        check_fields(self.fields, names, path)
        columns = list({column_of(field, names): None for field in self.fields} or names)
        for batch in table.iter_batches(batch_size=_AT_ONCE, columns=columns):
          for record in batch.to_pylist():
            number += 1
            long = any(isinstance(cell, str) and len(cell) > LONGEST for cell in record.values())
            yield f"{path}, row {number}", Skip(f"text of over {LONGEST >> 20} Mi characters") if long else record
    except (pyarrow.ArrowException, OSError, LookupError, OverflowError, ValueError) as error:
      raise UserError(
        f"{path}: found damaged Parquet data ({one_line(error)}), expected a complete file; fetch it again"
      ) from error

  def documents_of(self, path: str, field: str) -> Iterator[str | Skip]:
    for where, record in self.read(path):
      if isinstance(record, Skip):
        yield record
      else:
        yield Skip("null") if record.get(field, "") is None else text_of(record, field, where)
