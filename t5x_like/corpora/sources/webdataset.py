"""`webdataset:PATTERN`: samples of WebDataset shards, tar files with a file for each field.

`0017.jpg`, `0017.cls` and `0017.json` are one record with the fields `jpg`, `cls` and `json`: a
file's name up to the first dot is the sample, the rest is the field. Hidden files, such as macOS's
`._0017.jpg`, are left out. Text (`txt`), JSON and classes (`cls`, `id`, `index`: whole numbers) are
decoded, and `json.caption` is a key within JSON. Everything else, such as images, stays bytes.
Python pickles are never opened. The fields `image` and `label`, if in use, are the sample's `jpg`,
`jpeg`, `png` or `webp`, and its `cls`. Shards are read by the standard library's `tarfile`, in one
pass, plain or compressed.
"""

import tarfile
from collections.abc import Iterator
from typing import Any

from t5x_like.corpora.sources import Record, Skip, _compression, field_value
from t5x_like.corpora.sources._files import LONGEST, FileSource, decode
from t5x_like.errors import UserError, one_line
from t5x_like.files import checked_json

_TEXTS = ("txt", "text", "transcript")
_NAMES = dict.fromkeys(("jpg", "jpeg", "png", "webp"), "image") | {"cls": "label"}
_MAX_CLASSES = 2**20
_MAX_READS_AT_END = 100
_NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")


class Source(FileSource):
  """One record per sample; only the parts in `fields` are decoded."""

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    if "pipe:" in spec:
      raise UserError(
        f"source webdataset:{spec}: found a command, expected files or addresses; no command is "
        "executed, so copy the shards first"
      )
    super().__init__(spec, fields=fields, data_dir=data_dir)
    self._spec = spec
    self._wanted_parts = {*fields, *(field.partition(".")[0] for field in fields)}

  def classes(self, field: str) -> tuple[str, ...]:
    """Read the classes from all shards: whole numbers from 0 to the largest, or sorted values."""
    labels = Source(self._spec, fields=(field,))
    class_values = set()
    for split in self.splits:
      for where, record in labels.records(split):
        if isinstance(record, Skip):
          continue
        value = field_value(record, field, where)
        class_values.add(value if type(value) is int else str(value))
    kinds = {type(label) for label in class_values}
    if len(kinds) > 1:
      number = next(label for label in class_values if type(label) is int)
      text = next(label for label in class_values if type(label) is str)
      raise UserError(
        f"source {self.name}: found numbers and texts in field {field!r}, such as {number!r} and "
        f"{text!r}, expected one kind; write the shards again"
      )
    if kinds == {str}:
      return tuple(sorted(map(str, class_values)))
    if not 0 <= min(class_values, default=0) <= max(class_values, default=0) < _MAX_CLASSES:
      raise UserError(
        f"source {self.name}: found classes {min(class_values)} to {max(class_values)} in field "
        f"{field!r}, expected 0 to at most {_MAX_CLASSES - 1}; write the shards again"
      )
    return tuple(str(number) for number in range(max(class_values, default=-1) + 1))

  def read(self, path: str) -> Iterator[tuple[str, Record | Skip]]:
    key = None
    parts = {}
    skip = None
    empty_sample = Skip(f"sample without {' and '.join(self.fields)}")
    for name, data in self._members(path):
      sample, field = _sample_and_field(name)
      if sample != key:
        if key is not None:
          yield f"{path}, sample {key}", skip or parts or empty_sample
        key = sample
        parts = {}
        skip = None
      where = f"{path}, {name}"
      standard_name = _NAMES.get(field)
      if field in parts:
        raise UserError(
          f"{where}: found a second part {field!r} of the sample, expected one; "
          "write the shard again"
        )
      if self._wanted_parts and not {field, standard_name} & self._wanted_parts:
        continue
      if isinstance(data, Skip):
        skip = data
      elif not self._wanted_parts or field in self._wanted_parts:
        parts[field] = _decode_part(field, data, where)
      else:
        parts.setdefault(standard_name, _decode_part(field, data, where))
    if key is not None:
      yield f"{path}, sample {key}", skip or parts or empty_sample

  def _members(self, path: str) -> Iterator[tuple[str, bytes | Skip]]:
    """Yield (name, content) of the parts in a shard; `Skip` for too long files and for links."""
    try:
      # Zeros end an archive; several archives in one file are one shard.
      options = {"tarinfo": _Header, "ignore_zeros": True}
      with (
        _compression.open_plain(path) as file,
        tarfile.open(fileobj=_FiniteFile(file), mode="r|", **options) as shard,
      ):
        for member in shard:
          if member.isdir() or not _is_part(member.name):
            continue
          if not member.isreg():
            content = Skip("part that is a link or no file")
          elif member.size > LONGEST:
            content = Skip(f"part of over {LONGEST >> 20} MiB")
          else:
            content = shard.extractfile(member).read()
          yield member.name.removeprefix("./"), content
    except (tarfile.TarError, *_compression.DAMAGED) as error:
      if isinstance(error, UserError):
        raise
      raise UserError(
        f"{path}: found a truncated or damaged shard ({one_line(error)[:200]}), expected a "
        "complete tar file; fetch it again"
      ) from error


class _FiniteFile:
  """A file for `tarfile` that raises an error if it is read many times at its end.

  `tarfile` skips a member by reading as many bytes as its header says. A damaged header may say
  2**60 bytes, and the library would read at the end of the file for years.
  """

  def __init__(self, file):
    self._file = file
    self._reads_at_end = 0

  def read(self, size: int) -> bytes:
    data = self._file.read(size)
    self._reads_at_end = 0 if data else self._reads_at_end + 1
    if self._reads_at_end > _MAX_READS_AT_END:
      raise tarfile.ReadError("a member is longer than the file")
    return data


def _is_part(name: str) -> bool:
  """Return whether a file is part of a sample: with a field, and not hidden as `._0017.jpg`."""
  sample, dot, field = name.rpartition("/")[2].partition(".")
  return bool(sample and dot and field)


class _Header(tarfile.TarInfo):
  """The header of a member, checked.

  A damaged header is an error, and so is a file that ends without the zeros that end an archive.
  The library would take both for the end.
  """

  @classmethod
  def fromtarfile(cls, shard: tarfile.TarFile) -> tarfile.TarInfo:
    try:
      header = super().fromtarfile(shard)
    except tarfile.EOFHeaderError:
      shard.ended = True
      raise
    except tarfile.HeaderError as error:
      if getattr(shard, "ended", False) and isinstance(error, tarfile.EmptyHeaderError):
        raise
      raise tarfile.ReadError(f"{error} at byte {shard.offset}") from error
    shard.ended = False
    return header


def _sample_and_field(name: str) -> tuple[str, str]:
  """Divide the name of a member into (sample, field)."""
  folder, slash, file = name.rpartition("/")
  sample, _, field = file.partition(".")
  return f"{folder}{slash}{sample}", field.lower()


def _decode_part(field: str, data: bytes, where: str) -> Any:
  """Decode text, JSON or a whole number, by the suffix of a part; return other parts as bytes."""
  kind = field.rpartition(".")[2]
  if kind in _TEXTS:
    return decode(data, where)
  if kind == "json":
    return checked_json.parse_json(data, object, where, "JSON")
  if kind in _NUMBERS:
    try:
      return int(data)
    except ValueError:
      raise UserError(
        f"{where}: found {data[:40]!r}, expected a whole number; write the shard again"
      ) from None
  return data
