"""The manifest of a token store, checked field by field on reading.

`manifest.json` names the corpus and split, the vocabulary, the dtype, the counts, the tables of shards with their
SHA-256, and the fingerprint of the content. Its size does not depend on the number of shards, because the tables list
them (`shards.py`). Its last field is a checksum of the others.
"""

import dataclasses
import hashlib
import json
from typing import Any

from t5x_like.errors import UserError, did_you_mean
from t5x_like.files import file_names

FORMAT = "t5x_like.token_store.v2"
FILE = "manifest.json"
VOCABULARY = "vocabulary"
DTYPES = ("uint16", "int32")
REMEDY = "make the store again with python -m tools.prepare_data"


@dataclasses.dataclass(frozen=True)
class VocabularyRecord:
  fingerprint: str
  size: int
  extra_ids: int


@dataclasses.dataclass(frozen=True)
class Manifest:
  """The contents of `manifest.json`.

  Attributes:
    name, split: the corpus and its split; informative.
    vocabulary: the vocabulary of the ids.
    append_eos: whether EOS ends every document.
    dtype: dtype of the ids in the files.
    num_tokens, num_documents, num_shards: totals.
    name_digits: number of digits in a shard's name.
    tables: SHA-256 of each table of shards, by file.
    source: provenance; any JSON object.
    fingerprint: SHA-256 of everything that determines the token stream, see `shards.fingerprint`. It excludes names,
      provenance and the edition of the format.
  """

  name: str
  split: str
  vocabulary: VocabularyRecord
  append_eos: bool
  dtype: str
  num_tokens: int
  num_documents: int
  num_shards: int
  name_digits: int
  tables: dict[str, str]
  source: dict[str, Any]
  fingerprint: str

  @property
  def checksum(self) -> str:
    """The SHA-256 of all fields."""
    return hashlib.sha256(json.dumps(dataclasses.asdict(self), sort_keys=True).encode()).hexdigest()

  def to_json(self) -> str:
    return json.dumps({"format": FORMAT, **dataclasses.asdict(self), "checksum": self.checksum}, indent=1) + "\n"


def parse(data: dict[str, Any], where: str) -> Manifest:
  """Read a manifest.

  Args:
    data: the file's JSON object.
    where: the file's path, for messages.

  Raises:
    UserError: a field is missing, unknown, of the wrong type or out of range, or the checksum does not match the
      fields.
  """
  data = dict(data)
  data.pop("format")
  checksum = data.pop("checksum", None)
  manifest = read(Manifest, data, where, "")
  check(manifest, where)
  if checksum != manifest.checksum:
    raise UserError(
      f"{where}: checksum: found {str(checksum)[:12]!r}, but the fields give {manifest.checksum[:12]!r}: the "
      f"manifest was edited or damaged; {REMEDY}"
    )
  return manifest


def read(kind: type, data: Any, where: str, key: str, remedy: str = REMEDY) -> Any:
  """Read a dataclass from the JSON object at `key`; raise UserError for a missing, unknown or mistyped field."""
  if not isinstance(data, dict):
    raise UserError(f"{where}: {key or 'top level'}: found {type(data).__name__}, expected an object: {remedy}")
  fields = {field.name: field.type for field in dataclasses.fields(kind)}
  optional = {field.name for field in dataclasses.fields(kind) if field.default is not dataclasses.MISSING}
  prefix = f"{key}." if key else ""
  for name in data:
    if name not in fields:
      raise UserError(f"{where}: {prefix}{name}: unknown field{did_you_mean(name, fields)}: {remedy}")
  values = {}
  for name, declared in fields.items():
    if name not in data and name in optional:
      continue
    if name not in data:
      raise UserError(f"{where}: {prefix}{name}: missing: {remedy}")
    values[name] = value(declared, data[name], where, prefix + name, remedy)
  return kind(**values)


def value(declared: Any, found: Any, where: str, key: str, remedy: str = REMEDY) -> Any:
  """Check and convert a value of a declared type: a dataclass, a dict or list, or a plain type."""
  if dataclasses.is_dataclass(declared):
    return read(declared, found, where, key, remedy)
  kind, (*_, item) = getattr(declared, "__origin__", declared), getattr(declared, "__args__", (Any,))
  if type(found) is not kind:
    raise UserError(f"{where}: {key}: found {type(found).__name__}, expected {kind.__name__}: {remedy}")
  if kind is int and found < 0:
    raise UserError(f"{where}: {key}: found {found}, expected at least 0: {remedy}")
  if item is not Any and kind is dict:
    return {name: value(item, one, where, f"{key}.{name}", remedy) for name, one in found.items()}
  if item is not Any and kind is list:
    return [value(item, one, where, f"{key}[{i}]", remedy) for i, one in enumerate(found)]
  return found


def check(manifest: Manifest, where: str) -> None:
  """Raise UserError for values out of range and for names that are not valid file names."""
  file_names.check(f"{where}: name", manifest.name, REMEDY)
  file_names.check(f"{where}: split", manifest.split, REMEDY)
  if manifest.dtype not in DTYPES:
    raise UserError(f"{where}: dtype: found {manifest.dtype!r}, expected one of {', '.join(DTYPES)}: {REMEDY}")
  for key, found in (("num_shards", manifest.num_shards), ("name_digits", manifest.name_digits)):
    if not found:
      raise UserError(f"{where}: {key}: found 0, expected at least 1: {REMEDY}")
