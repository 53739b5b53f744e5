"""The manifest of a store, checked field by field on reading.

`manifest.json` names the arrays, the counts, the tables of shards with their SHA-256 (`shards.py`),
the skipped records and the fingerprint of the content. Its size does not depend on the number of
shards. Its last field is a checksum of the others.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, NoReturn

from t5x_like.errors import UserError, did_you_mean, one_line
from t5x_like.files import checked_json, file_names

FORMAT = "t5x_like.store.v3"
FILE = "manifest.json"
VOCABULARY = "vocabulary"
DTYPES = (
  "bool",
  "uint8",
  "int8",
  "uint16",
  "int16",
  "uint32",
  "int32",
  "int64",
  "float32",
  "float64",
)
REMEDY = "make the store again with python -m tools.prepare_data"
_MAX_WIDTH = 2**16
_MAX_DIGITS = 20


@dataclasses.dataclass(frozen=True)
class Array:
  """A ragged array: any number of values for each item of the store.

  Attributes:
    name: the name, and the directory of its files.
    dtype: dtype of the numbers in the files.
    width: numbers per value; above 1, values are rows.
    num_values: values of all items.
  """

  name: str
  dtype: str
  width: int = 1
  num_values: int = 0


@dataclasses.dataclass(frozen=True)
class Manifest:
  """The contents of `manifest.json`.

  Attributes:
    name, split: the corpus and its split; informative.
    arrays: the arrays, each with values for every item.
    facts: the meaning of the values, such as their vocabulary; any JSON object, part of the
      fingerprint.
    skipped: the number of records that gave no item, by reason.
    num_items, num_shards: totals; an item is a document, an example or an image.
    name_digits: number of digits in a shard's name.
    tables: SHA-256 of each table of shards, by file.
    source: provenance; any JSON object.
    fingerprint: SHA-256 of everything that determines the content, see `shards.fingerprint`;
      excludes names, provenance and skipped records.
  """

  name: str
  split: str
  arrays: list[Array]
  facts: dict[str, Any]
  skipped: dict[str, int]
  num_items: int
  num_shards: int
  name_digits: int
  tables: dict[str, str]
  source: dict[str, Any]
  fingerprint: str

  @property
  def checksum(self) -> str:
    """The SHA-256 of all fields."""
    return checked_json.digest(dataclasses.asdict(self))

  def to_json(self) -> str:
    content = {"format": FORMAT, **dataclasses.asdict(self), "checksum": self.checksum}
    return json.dumps(content, indent=1) + "\n"


def parse(text: bytes, where: str) -> Manifest:
  """Read a manifest.

  Args:
    text: the file's contents.
    where: the file's path, for messages.

  Raises:
    UserError: the file is not JSON or of another format, a field is missing, unknown, of the wrong
      type or out of range, or the checksum does not match the fields.
  """
  try:
    data = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise UserError(f"{where}: not valid JSON ({one_line(error)[:200]}): {REMEDY}") from error
  format = data.pop("format", None) if isinstance(data, dict) else type(data).__name__
  if format != FORMAT:
    raise UserError(
      f"{where}: format: found {file_names.quote_name(format)}, expected {FORMAT!r}: {REMEDY}"
    )
  checksum = data.pop("checksum", None)
  manifest = _convert(Manifest, data, where, "")
  check_manifest(manifest, where)
  if checksum != manifest.checksum:
    raise UserError(
      f"{where}: checksum: found {str(checksum)[:12]!r}, but the fields give "
      f"{manifest.checksum[:12]!r}: the "
      f"manifest was edited or damaged; {REMEDY}"
    )
  return manifest


def _convert(declared: Any, content: Any, where: str, key: str) -> Any:
  """Check and convert JSON content to a declared type: a dataclass, a dict, a list or a plain type.

  Args:
    declared: the declared type.
    content: the content.
    where: the file, for messages.
    key: the path of the content in the file, for messages; empty at the top level.
  """
  kind = getattr(declared, "__origin__", declared)  # `list` for `list[Array]`
  item_type = getattr(declared, "__args__", (Any,))[-1]  # `Array` for it; Any for other types
  if dataclasses.is_dataclass(kind):
    return _convert_dataclass(kind, content, where, key)
  if type(content) is not kind:
    _refuse(where, key, f"found {type(content).__name__}, expected {kind.__name__}")
  if kind is int and content < 0:
    _refuse(where, key, f"found {content}, expected at least 0")
  if item_type is Any:
    return content
  if kind is dict:
    prefix = f"{key}." if key else ""
    converted = {}
    for name, item in content.items():
      converted[name] = _convert(item_type, item, where, prefix + name)
    return converted
  if kind is list:
    return [_convert(item_type, item, where, f"{key}[{i}]") for i, item in enumerate(content)]
  return content


def _convert_dataclass(kind: type, content: Any, where: str, key: str) -> Any:
  """Convert a JSON object to a dataclass; UserError for unknown and missing fields."""
  if type(content) is not dict:
    _refuse(where, key, f"found {type(content).__name__}, expected an object")
  fields = {field.name: field.type for field in dataclasses.fields(kind)}
  prefix = f"{key}." if key else ""
  for name in [*content, *fields]:
    if name not in fields:
      _refuse(where, prefix + name, f"unknown field{did_you_mean(name, fields)}")
    if name not in content:
      _refuse(where, prefix + name, "missing")
  converted = {}
  for name, declared in fields.items():
    converted[name] = _convert(declared, content[name], where, prefix + name)
  return kind(**converted)


def _refuse(where: str, key: str, problem: str) -> NoReturn:
  """Raise the error of a damaged manifest."""
  raise UserError(f"{where}: {key or 'top level'}: {problem}: {REMEDY}")


def vocabulary_facts(vocabulary: Any) -> dict[str, Any]:
  """Return a manifest's description of a vocabulary."""
  return {key: getattr(vocabulary, key) for key in ("fingerprint", "size", "extra_ids")}


def check_manifest(manifest: Manifest, where: str) -> None:
  """Raise UserError for values out of range and for names that are not valid file names."""
  file_names.check_name(f"{where}: name", manifest.name, REMEDY)
  file_names.check_name(f"{where}: split", manifest.split, REMEDY)
  check_arrays(manifest.arrays, where)
  for key, maximum in (("num_shards", 2**63), ("name_digits", _MAX_DIGITS)):
    number = getattr(manifest, key)
    if not 1 <= number <= maximum:
      raise UserError(f"{where}: {key}: found {number}, expected 1 to {maximum}: {REMEDY}")


def check_arrays(arrays: Sequence[Array], where: object) -> None:
  """Raise UserError for arrays that no store can hold."""
  names = [array.name for array in arrays]
  file_names.check_names(f"{where}: arrays", names, REMEDY)
  are_distinct = len(set(names)) == len(names)
  has_reserved_name = any("." in name or name == VOCABULARY for name in names)
  if not names or not are_distinct or has_reserved_name:
    raise UserError(
      f"{where}: arrays: found {file_names.quote_name(names)}, expected other names, "
      f"without dots: {REMEDY}"
    )
  for array in arrays:
    if array.dtype not in DTYPES:
      raise UserError(
        f"{where}: dtype: found {array.dtype!r}, expected one of {', '.join(DTYPES)}: {REMEDY}"
      )
    if not 1 <= array.width <= _MAX_WIDTH:
      raise UserError(f"{where}: width: found {array.width}, expected 1 to {_MAX_WIDTH}: {REMEDY}")
