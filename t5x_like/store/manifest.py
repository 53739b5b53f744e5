"""The manifest of a store, checked field by field on reading.

`manifest.json` names the arrays, the counts, the tables of shards with their SHA-256 (`shards.py`),
the skipped records and the fingerprint of the content. Its size does not depend on the number of
shards. Its last field is a checksum of the others.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

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
_WIDEST = 2**16
_MOST_DIGITS = 20


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
    return (
      json.dumps(
        {"format": FORMAT, **dataclasses.asdict(self), "checksum": self.checksum}, indent=1
      )
      + "\n"
    )


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
  found = data.pop("format", None) if isinstance(data, dict) else type(data).__name__
  if found != FORMAT:
    raise UserError(
      f"{where}: format: found {file_names.quote_name(found)}, expected {FORMAT!r}: {REMEDY}"
    )
  checksum = data.pop("checksum", None)
  manifest = _value(Manifest, data, where, "")
  check_manifest(manifest, where)
  if checksum != manifest.checksum:
    raise UserError(
      f"{where}: checksum: found {str(checksum)[:12]!r}, but the fields give "
      f"{manifest.checksum[:12]!r}: the "
      f"manifest was edited or damaged; {REMEDY}"
    )
  return manifest


def _value(declared: Any, found: Any, where: str, key: str) -> Any:
  """Check and convert a value of a declared type: a dataclass, a dict or list, or a plain type."""

  def refuse(key: str, what: str) -> None:
    raise UserError(f"{where}: {key or 'top level'}: {what}: {REMEDY}")

  kind, (*_, item) = (
    getattr(declared, "__origin__", declared),
    getattr(declared, "__args__", (Any,)),
  )
  fields = (
    {one.name: one.type for one in dataclasses.fields(kind)}
    if dataclasses.is_dataclass(kind)
    else {}
  )
  expected = dict if fields else kind
  prefix = f"{key}." if key else ""
  if type(found) is not expected:
    refuse(
      key, f"found {type(found).__name__}, expected {'an object' if fields else expected.__name__}"
    )
  if kind is int and found < 0:
    refuse(key, f"found {found}, expected at least 0")
  for name in fields and [*found, *fields]:
    if name not in fields:
      refuse(prefix + name, f"unknown field{did_you_mean(name, fields)}")
    if name not in found:
      refuse(prefix + name, "missing")
  if fields:
    return kind(
      **{name: _value(one, found[name], where, prefix + name) for name, one in fields.items()}
    )
  if item is not Any and kind is dict:
    return {name: _value(item, one, where, prefix + name) for name, one in found.items()}
  if item is not Any and kind is list:
    return [_value(item, one, where, f"{key}[{i}]") for i, one in enumerate(found)]
  return found


def vocabulary_facts(vocabulary: Any) -> dict[str, Any]:
  """Return a manifest's description of a vocabulary."""
  return {key: getattr(vocabulary, key) for key in ("fingerprint", "size", "extra_ids")}


def check_manifest(manifest: Manifest, where: str) -> None:
  """Raise UserError for values out of range and for names that are not valid file names."""
  file_names.check_name(f"{where}: name", manifest.name, REMEDY)
  file_names.check_name(f"{where}: split", manifest.split, REMEDY)
  check_arrays(manifest.arrays, where)
  for key, most in (("num_shards", 2**63), ("name_digits", _MOST_DIGITS)):
    if not 1 <= (found := getattr(manifest, key)) <= most:
      raise UserError(f"{where}: {key}: found {found}, expected 1 to {most}: {REMEDY}")


def check_arrays(arrays: Sequence[Array], where: object) -> None:
  """Raise UserError for arrays that no store can hold."""
  names = [array.name for array in arrays]
  file_names.check_names(f"{where}: arrays", names, REMEDY)
  if (
    not names
    or len(set(names)) < len(names)
    or any("." in name or name == VOCABULARY for name in names)
  ):
    raise UserError(
      f"{where}: arrays: found {file_names.quote_name(names)}, expected other names, "
      f"without dots: {REMEDY}"
    )
  for array in arrays:
    if array.dtype not in DTYPES:
      raise UserError(
        f"{where}: dtype: found {array.dtype!r}, expected one of {', '.join(DTYPES)}: {REMEDY}"
      )
    if not 1 <= array.width <= _WIDEST:
      raise UserError(f"{where}: width: found {array.width}, expected 1 to {_WIDEST}: {REMEDY}")
