"""The manifest of a token store: what one directory of tokens says about itself, checked field by field when read.

`manifest.json` names the corpus and split, the vocabulary, the dtype, the counts, every file with its size and
SHA-256, and a fingerprint: the SHA-256 of the fields that determine the token stream. Two stores with one fingerprint
hold the same tokens and documents under the same vocabulary; name, split and provenance are not part of it.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

from t5x_like.errors import UserError, did_you_mean, one_line

FORMAT = "t5x_like.token_store.v1"
FILE = "manifest.json"
VOCABULARY = "vocabulary"
ARRAYS = {"tokens": "tokens", "document_ends": "documents"}  # array -> the count that is its length
DTYPES = ("uint16", "int32")
REMEDY = "make the store again with python -m tools.prepare_data"


@dataclasses.dataclass(frozen=True)
class StoredFile:
  bytes: int
  sha256: str


@dataclasses.dataclass(frozen=True)
class Shard:
  """One shard: `tokens` ids of `documents` whole documents, and its files by path relative to the shard."""

  name: str
  tokens: int
  documents: int
  files: dict[str, StoredFile]


@dataclasses.dataclass(frozen=True)
class VocabularyRecord:
  fingerprint: str
  size: int
  extra_ids: int


@dataclasses.dataclass(frozen=True)
class Manifest:
  """What `manifest.json` holds; `source` is provenance (how the store was made) and may be any JSON object."""

  name: str
  split: str
  vocabulary: VocabularyRecord
  append_eos: bool
  dtype: str
  num_tokens: int
  num_documents: int
  shards: tuple[Shard, ...]
  source: dict[str, Any]

  @property
  def fingerprint(self) -> str:
    """SHA-256 over what determines the token stream; independent of names, provenance and TensorStore's metadata."""
    content = {
      "format": FORMAT,
      "vocabulary": dataclasses.asdict(self.vocabulary),
      "append_eos": self.append_eos,
      "dtype": self.dtype,
      "num_tokens": self.num_tokens,
      "num_documents": self.num_documents,
      "shards": [
        [shard.tokens, shard.documents, *(shard.files[f"{array}/c/0"].sha256 for array in ARRAYS)]
        for shard in self.shards
      ],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

  def files(self) -> Iterator[tuple[str, StoredFile]]:
    """Every data file, as its path relative to the store and what it must be."""
    for shard in self.shards:
      for name, file in shard.files.items():
        yield f"shards/{shard.name}/{name}", file

  def to_json(self) -> str:
    return json.dumps({"format": FORMAT, **dataclasses.asdict(self), "fingerprint": self.fingerprint}, indent=1) + "\n"


def parse(text: bytes, where: str) -> Manifest:
  """Reads a manifest.

  Args:
    text: the file's bytes.
    where: the file's path, for messages.

  Raises:
    UserError: not JSON, another format, a field missing, unknown, of the wrong type or out of range, counts that do
      not add up, or a fingerprint that is not that of the fields.
  """
  try:
    data = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise UserError(f"{where}: not valid JSON ({one_line(error)}): {REMEDY}") from error
  if not isinstance(data, dict) or data.get("format") != FORMAT:
    found = data.get("format") if isinstance(data, dict) else type(data).__name__
    raise UserError(f"{where}: format: found {found!r}, expected {FORMAT!r}: {REMEDY}")
  data.pop("format")
  fingerprint = data.pop("fingerprint", None)
  manifest = _read(Manifest, data, where, "")
  _check(manifest, where)
  if fingerprint != manifest.fingerprint:
    raise UserError(
      f"{where}: fingerprint: found {str(fingerprint)[:12]!r}, but the fields give {manifest.fingerprint[:12]!r}: the "
      f"manifest was edited or damaged; {REMEDY}"
    )
  return manifest


def _read(kind: type, data: Any, where: str, key: str) -> Any:
  """A dataclass from the JSON object at `key`, its fields present, known and of the declared types."""
  if not isinstance(data, dict):
    raise UserError(f"{where}: {key or 'top level'}: found {type(data).__name__}, expected an object: {REMEDY}")
  fields = {field.name: field.type for field in dataclasses.fields(kind)}
  prefix = f"{key}." if key else ""
  for name in data:
    if name not in fields:
      raise UserError(f"{where}: {prefix}{name}: unknown field{did_you_mean(name, fields)}: {REMEDY}")
  values = {}
  for name, declared in fields.items():
    if name not in data:
      raise UserError(f"{where}: {prefix}{name}: missing: {REMEDY}")
    values[name] = _value(declared, data[name], where, prefix + name)
  return kind(**values)


def _value(declared: Any, value: Any, where: str, key: str) -> Any:
  if dataclasses.is_dataclass(declared):
    return _read(declared, value, where, key)
  if declared == tuple[Shard, ...]:
    items = _typed(list, value, where, key)
    return tuple(_read(Shard, item, where, f"{key}[{i}]") for i, item in enumerate(items))
  if declared == dict[str, StoredFile]:
    return {
      name: _read(StoredFile, item, where, f"{key}.{name}") for name, item in _typed(dict, value, where, key).items()
    }
  return _typed(dict if declared == dict[str, Any] else declared, value, where, key)


def _typed(kind: type, value: Any, where: str, key: str) -> Any:
  if type(value) is not kind:
    raise UserError(f"{where}: {key}: found {type(value).__name__}, expected {kind.__name__}: {REMEDY}")
  if kind is int and value < 0:
    raise UserError(f"{where}: {key}: found {value}, expected at least 0: {REMEDY}")
  return value


def _check(manifest: Manifest, where: str) -> None:
  def refuse(key: str, found: Any, expected: Any) -> None:
    raise UserError(f"{where}: {key}: found {found!r}, expected {expected}: {REMEDY}")

  if manifest.dtype not in DTYPES:
    refuse("dtype", manifest.dtype, f"one of {', '.join(DTYPES)}")
  if not manifest.shards:
    refuse("shards", [], "at least one shard")
  needed = {f"{array}/{file}" for array in ARRAYS for file in ("zarr.json", "c/0")}
  for i, shard in enumerate(manifest.shards):
    if not re.fullmatch(r"[0-9]{1,12}", shard.name):
      refuse(f"shards[{i}].name", shard.name, "digits")
    if set(shard.files) != needed:
      refuse(f"shards[{i}].files", sorted(shard.files), sorted(needed))
    if not 0 < shard.documents <= shard.tokens:
      refuse(f"shards[{i}].documents", shard.documents, f"1 to {shard.tokens} (the shard's tokens)")
  for total, part in (("num_tokens", "tokens"), ("num_documents", "documents")):
    expected = sum(getattr(shard, part) for shard in manifest.shards)
    if getattr(manifest, total) != expected:
      refuse(total, getattr(manifest, total), f"{expected} (the sum over the shards)")
