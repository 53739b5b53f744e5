"""`parquet:PATTERN`: one document a row of Parquet files, from the column `text_field`; nulls are skipped."""

import functools
from collections.abc import Iterator

from t5x_like.data.sources import Skip, _filesystem
from t5x_like.data.sources._files import LONGEST, FileSource
from t5x_like.errors import UserError, did_you_mean, one_line

_ROWS = 1024


def open_form(rest: str, *, data_dir: str | None, text_field: str) -> FileSource:
  return FileSource("parquet", rest, functools.partial(_documents, column=text_field), text_field=text_field)


def _documents(path: str, column: str) -> Iterator[str | Skip]:
  import pyarrow
  import pyarrow.parquet

  try:
    with _filesystem.open_file(path) as file:
      table = pyarrow.parquet.ParquetFile(file)
      names = table.schema_arrow.names
      if column not in names:
        raise UserError(
          f"{path}: found no column {column!r} among {', '.join(names[:12]) or 'none'}, expected the document's text "
          f"there{did_you_mean(column, names)}; choose the column with the text field option"
        )
      if names.count(column) > 1:
        raise UserError(f"{path}: found {names.count(column)} columns {column!r}, expected one; name them apart")
      kind = table.schema_arrow.field(column).type
      if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
        raise UserError(f"{path}: found column {column!r} of type {kind}, expected string")
      for batch in table.iter_batches(batch_size=_ROWS, columns=[column]):
        for text in batch.column(0).to_pylist():
          if text is None:
            yield Skip("null")
          else:
            yield text if len(text) <= LONGEST else Skip(f"text of over {LONGEST >> 20} Mi characters")
  except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
    raise UserError(
      f"{path}: found damaged Parquet data ({one_line(error)}), expected a complete file; fetch it again"
    ) from error
