"""`arrow:PATTERN` or `arrow:DIR`: rows of Arrow files.

Files have the stream format of Hugging Face `datasets` or the format of Feather. DIR is a data set
written by `save_to_disk`, with its splits or, if it has none, the split `train`. Class labels
become their names and images their bytes if the metadata of `datasets` in the file declare them.
"""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from t5x_like.corpora.sources._columns import MAX_RECORDS_AT_ONCE, ColumnSource
from t5x_like.errors import UserError, one_line
from t5x_like.files import checked_json, file_names
from t5x_like.files.paths import AnyPath, as_path

_SPLITS = "dataset_dict.json"
_STATE = "state.json"
_REMEDY = "write it again with save_to_disk"


class Source(ColumnSource):
  """The rows of Arrow files."""

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    saved_splits = _saved_splits(spec)
    if saved_splits is None:
      super().__init__(spec, fields=fields, data_dir=data_dir)
      return
    patterns = [f"{split}={path}" for split, paths in saved_splits.items() for path in paths]
    super().__init__(",".join(patterns), fields=fields, data_dir=data_dir)
    self.name = os.path.basename(spec.rstrip("/")) or self.name

  def classes(self, field: str) -> tuple[str, ...]:
    import pyarrow

    path = next(iter(self._files.values()))[0]
    try:
      with as_path(path).open("rb") as file:
        class_names = _described_features(_reader(file).schema).get(field, {}).get("names")
    except (pyarrow.ArrowException, OSError, ValueError) as error:
      raise self.damage_error(path, error) from error
    return tuple(class_names) if class_names else super().classes(field)

  def open_columns(self, file):
    reader = _reader(file)

    def read_records(columns):
      converters = {}
      for name, feature in _described_features(reader.schema).items():
        if name in columns:
          converters[name] = _converter(feature)
      for batch in _batches(reader):
        batch.validate(full=True)
        columns_batch = batch.select(columns)
        for start in range(0, columns_batch.num_rows, MAX_RECORDS_AT_ONCE):
          records = columns_batch.slice(start, MAX_RECORDS_AT_ONCE).to_pylist()
          for record in records:
            for name, convert in converters.items():
              record[name] = convert(record[name])
          yield records

    return reader.schema.names, read_records

  def damage_error(self, path, error):
    return UserError(
      f"{path}: found damaged Arrow data ({one_line(error)[:200]}), expected a complete file; "
      "fetch it again"
    )


def _reader(file):
  """Open an Arrow file of either format."""
  import pyarrow.ipc

  head = file.read(6)
  file.seek(0)
  return pyarrow.ipc.open_file(file) if head == b"ARROW1" else pyarrow.ipc.open_stream(file)


def _batches(reader) -> Iterator:
  """Iterate over the record batches of a reader of either format."""
  if hasattr(reader, "num_record_batches"):
    return (reader.get_batch(number) for number in range(reader.num_record_batches))
  return iter(reader)


def _described_features(schema) -> dict[str, dict[str, Any]]:
  """Return the features of the library `datasets` that are class labels or images, by column."""
  try:
    metadata = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = metadata["info"]["features"].items()
    return {
      name: feature for name, feature in features if feature.get("_type") in ("ClassLabel", "Image")
    }
  except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
    return {}  # files of other programs have no such metadata


def _converter(feature: dict[str, Any]) -> Callable[[Any], Any]:
  """Return the function that converts a cell to an image's bytes or a class's name."""
  names = feature.get("names") or []

  def read_image(cell: Any) -> Any:
    return cell.get("bytes") if isinstance(cell, dict) else cell

  def read_class(cell: Any) -> Any:
    return names[cell] if isinstance(cell, int) and 0 <= cell < len(names) else cell

  return read_image if feature["_type"] == "Image" else read_class


def _saved_splits(spec: str) -> dict[str, list[str]] | None:
  """Return the files of a directory written by `save_to_disk` by split, or None for other paths."""
  if not spec:
    return None
  folder = as_path(spec)
  splits_file = folder / _SPLITS
  if splits_file.is_file():
    splits = _json(splits_file).get("splits")
    if not isinstance(splits, list) or not splits:
      raise UserError(
        f"{splits_file}: found no list 'splits', expected the names of splits; {_REMEDY}"
      )
    file_names.check_names(f"{splits_file}: splits", splits, _REMEDY)
    return {split: _data_files(folder / split) for split in splits}
  return {"train": _data_files(folder)} if (folder / _STATE).is_file() else None


def _data_files(folder: AnyPath) -> list[str]:
  """Return the files of a split, as its `state.json` lists them."""
  state_file = folder / _STATE
  files = _json(state_file).get("_data_files")
  names = []
  if isinstance(files, list):
    names = [file.get("filename") for file in files if isinstance(file, dict)]
  if not names:
    raise UserError(
      f"{state_file}: found no list '_data_files', expected the names of Arrow files; {_REMEDY}"
    )
  file_names.check_names(f"{state_file}: _data_files", names, _REMEDY)
  return [f"{folder}/{name}" for name in names]


def _json(file: AnyPath) -> dict[str, Any]:
  """Read a JSON object; raise UserError if the file is unreadable or another value."""
  try:
    content = file.read_bytes()
  except OSError as error:
    raise UserError(f"{file}: cannot be read ({one_line(error)}); {_REMEDY}") from error
  return checked_json.parse_json(content, dict, str(file), f"a file of save_to_disk; {_REMEDY}")
