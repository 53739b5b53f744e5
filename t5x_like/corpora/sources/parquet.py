"""`parquet:PATTERN`: the rows of Parquet files."""

from t5x_like.corpora.sources._columns import MAX_RECORDS_AT_ONCE, ColumnSource
from t5x_like.errors import UserError, one_line


class Source(ColumnSource):
  """The rows of Parquet files; see `ColumnSource`."""

  def open_columns(self, file):
    import pyarrow.parquet

    parquet_file = pyarrow.parquet.ParquetFile(file)

    def read_records(columns):
      for batch in parquet_file.iter_batches(batch_size=MAX_RECORDS_AT_ONCE, columns=columns):
        yield batch.to_pylist()

    return parquet_file.schema_arrow.names, read_records

  def damage_error(self, path, error):
    return UserError(
      f"{path}: found damaged Parquet data ({one_line(error)}), expected a complete file; fetch "
      "it again"
    )
