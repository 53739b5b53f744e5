"""`hf:NAME[/config][@split]`: a data set of the Hugging Face Hub, or a local directory.

The library `datasets` loads it. NAME is `owner/name`, or only a name. The data set is downloaded
once, into `data_dir` or the cache of `datasets`. `@split` keeps one split. Class labels become
their names; images stay encoded, as bytes. Data sets whose files are Python scripts are refused by
the library: nothing read is executed.
"""

import os
import re
from collections.abc import Iterator
from typing import Any

from t5x_like import trust
from t5x_like.corpora.sources import Record, check_fields, check_split, top_level_column
from t5x_like.corpora.sources import Source as Base
from t5x_like.errors import UserError, did_you_mean, one_line
from t5x_like.files.file_names import is_inside, quote_name
from t5x_like.files.local import LocalPath

_ROWS_AT_ONCE = 256
# The card of a data set. YAML between its first two lines of dashes, the front matter, names files.
_CARD = "README.md"
_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---", re.DOTALL)
_REVISION = re.compile(r"@([0-9a-f]{40})/")


class Source(Base):
  """The records of a data set, with only the columns in `fields`."""

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    self._where = f"data set {spec}"
    path, _, split = spec.partition("@")
    # Paths in records must lead into one of these directories.
    self._roots = (path, *_cache_directories(data_dir))
    dataset = _load_dataset(spec, path, data_dir)
    if split and split not in dataset:
      raise UserError(
        f"source hf:{spec}: found no split {split!r}, expected one of "
        f"{', '.join(dataset)}{did_you_mean(split, dataset)}"
      )
    self.splits = (split,) if split else tuple(dataset)
    self.name = re.sub(r"[^A-Za-z0-9_.-]+", "_", path.rstrip("/").split("/")[-1]).strip("_.-")
    self._features = dataset[self.splits[0]].features
    feature_names = list(self._features)
    check_fields(fields, feature_names, self._where)
    columns = dict.fromkeys(top_level_column(field, feature_names) for field in fields)
    self._columns = list(columns) or feature_names
    self._splits = {name: self._select_columns(dataset[name]) for name in self.splits}

  def _select_columns(self, rows):
    """Return the rows with only the columns in use, and leave images and sounds encoded."""
    rows = rows.select_columns(self._columns)
    for name in self._columns:
      feature = self._features[name]
      if hasattr(feature, "decode"):
        rows = rows.cast_column(name, type(feature)(decode=False))
    return rows

  def classes(self, field: str) -> tuple[str, ...]:
    names = getattr(self._features.get(field), "names", None)
    return tuple(names) if names else super().classes(field)

  def parts(self, split: str, part_bytes: int) -> list[tuple[int, int]]:
    """Return runs of rows of about `part_bytes` each, as ranges [first, end)."""
    check_split(self, split)
    rows = len(self._splits[split])
    part_rows = max(1, int(part_bytes * rows / max(1, self._bytes(split))))
    return [(first, min(first + part_rows, rows)) for first in range(0, rows, part_rows)]

  def part_size(self, split: str, part: tuple[int, int]) -> int:
    return self._bytes(split) * (part[1] - part[0]) // max(1, len(self._splits[split]))

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record]]:
    rows = self._splits[split]
    first, end = part or (0, len(rows))
    for start in range(first, end, _ROWS_AT_ONCE):
      try:
        columns = rows[start : min(start + _ROWS_AT_ONCE, end)]
      except Exception as error:  # damaged files of the cache
        raise UserError(
          f"{self._where}: cannot be read ({type(error).__name__}: {one_line(error)[:200]}); "
          "delete it from the cache"
        ) from error
      for number, cells in enumerate(zip(*columns.values()), start):
        record = {name: self._to_plain(name, cell) for name, cell in zip(columns, cells)}
        yield f"{self._where}, split {split}, row {number}", record

  def facts(self, field: str) -> dict[str, Any]:
    splits = {split: self.split_facts(split) for split in self.splits}
    return {"form": "hf", "text_field": field, "splits": splits}

  def split_facts(self, split: str) -> dict[str, Any]:
    info = self._splits[split].info
    files = info.download_checksums or {}
    revisions = set()
    for file in files:
      match = _REVISION.search(file)
      if match:
        revisions.add(match[1])
    facts = {
      "form": "hf",
      "split": split,
      "examples": len(self._splits[split]),
      "name": info.dataset_name,
      "config": info.config_name,
      "version": str(info.version or ""),
    }
    if revisions:
      facts["revisions"] = sorted(revisions)
    else:
      facts["bytes"] = sorted(_size(file) for file in files.values())
    return facts

  def _bytes(self, split: str) -> int:
    """Return the size of a split in bytes, as its card states it, or else of its tables."""
    split_info = (self._splits[split].info.splits or {}).get(split)
    return int(getattr(split_info, "num_bytes", 0) or 0) or self._splits[split].data.nbytes

  def _to_plain(self, name: str, cell: Any) -> Any:
    """Convert a cell to plain types: images and sounds to bytes, class labels to names."""
    feature = self._features[name]
    if hasattr(feature, "decode") and isinstance(cell, dict):
      return _encoded_bytes(cell, f"{self._where}, column {name}", self._roots)
    if getattr(feature, "names", None) and isinstance(cell, int) and cell >= 0:
      return feature.int2str(cell)
    return cell


def _load_dataset(spec: str, path: str, data_dir: str | None):
  """Load the data set of a name or a directory; return its splits by name."""
  try:
    import datasets
  except ImportError as error:
    raise UserError(
      f"source hf:{spec}: needs the package datasets; pip install 't5x-like[hf]'"
    ) from error
  if LocalPath(path).is_dir():
    _check_card(LocalPath(path) / _CARD)
    name = path
    config = None
  else:
    name, config = _parse_name(path, spec)
  try:
    return datasets.load_dataset(name, config, cache_dir=data_dir)
  except Exception as error:  # the library, its clients and file readers raise types of their own
    raise UserError(
      f"source hf:{spec}: cannot be loaded ({type(error).__name__}: {one_line(error)[:300]}); "
      "check the name and the network, or download it on a machine with one: huggingface-cli "
      f"download --repo-type dataset {name}"
    ) from error


def _cache_directories(data_dir: str | None) -> list[str]:
  """Return the directories in which `datasets` and `huggingface_hub` keep downloaded files."""
  home = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
  return [folder for folder in (data_dir, os.environ.get("HF_DATASETS_CACHE"), home) if folder]


def _check_card(card: LocalPath) -> None:
  """Raise UserError if the card of a local data set names files elsewhere.

  `datasets` would open or fetch them.
  """
  match = _FRONT_MATTER.match(card.read_text(errors="replace")) if card.is_file() else None
  if match is None:
    return
  import yaml

  try:
    content = yaml.safe_load(match[1])
  except (yaml.YAMLError, ValueError, RecursionError):  # `datasets` refuses it too
    return
  if not isinstance(content, dict):
    return
  for config in content.get("configs") or ():
    if not isinstance(config, dict):
      continue
    for key in ("data_files", "data_dir"):
      for path in _file_names(config.get(key)):
        if "::" in path or "://" in path or not is_inside(path):
          raise UserError(
            f"{card}: {key}: found {quote_name(path)}, expected a path in this "
            "directory; correct the card"
          )


def _file_names(data_files: Any) -> Iterator[str]:
  """Yield the names and patterns of files in a value of `data_files`.

  The value is a name, a list, a dictionary by split, or a list of `{split: NAME, path: …}`.
  """
  if isinstance(data_files, str):
    yield data_files
  elif isinstance(data_files, dict):
    for key, value in data_files.items():
      if key != "split":
        yield from _file_names(value)
  elif isinstance(data_files, list):
    for value in data_files:
      yield from _file_names(value)


def _parse_name(path: str, spec: str) -> tuple[str, str | None]:
  """Split `owner/name/config` into the name, with its owner, and the configuration or None."""
  parts = path.split("/")
  if not all(parts) or len(parts) > 3:
    raise UserError(
      f"source hf:{spec}: found {path!r}, expected hf:NAME, hf:OWNER/NAME or hf:OWNER/NAME/CONFIG"
    )
  return "/".join(parts[:2]), parts[2] if len(parts) == 3 else None


def _encoded_bytes(encoded: dict[str, Any], where: str, roots: tuple[str, ...]) -> bytes | None:
  """Return the bytes of an encoded image or sound, which may be a file in one of `roots`."""
  if encoded.get("bytes") is not None or not encoded.get("path"):
    return encoded.get("bytes")
  if not any(trust.is_inside(encoded["path"], root, links=False) for root in roots):
    raise UserError(
      f"{where}: found the path {quote_name(encoded['path'])}, expected a file of the data "
      "set; embed its bytes"
    )
  try:
    return LocalPath(encoded["path"]).read_bytes()
  except OSError as error:
    raise UserError(
      f"{where}: {encoded['path']} cannot be read ({one_line(error)}); download the data set again"
    ) from error


def _size(checksum: Any) -> int:
  """Return the file size that `datasets` recorded with a checksum, in bytes; 0 if it has none."""
  return int(checksum.get("num_bytes") or 0) if isinstance(checksum, dict) else 0
