"""A vocabulary's directory: `vocabulary.json` and the model file of its kind."""

import json
import os
from typing import Any

from t5x_like.errors import UserError, one_line
from t5x_like.files import checked_json
from t5x_like.files.objects import Place, place
from t5x_like.files.storage import Storage
from t5x_like.vocabularies.protocol import Vocabulary

MANIFEST = "vocabulary.json"
FORMAT = "t5x_like.vocabulary.v1"


def save(directory, kind: str, vocabulary: Vocabulary, files: dict[str, bytes], **more: Any) -> None:
  """Write the files and the manifest, which includes `more`; raise UserError on failure.

  Each file replaces its predecessor atomically, because runs save their vocabulary at every start while others read it.
  """
  directory = place(directory)
  own = {name: getattr(vocabulary, name) for name in ("mask_id", "cls_id", "sep_id", "bos_id")}
  manifest = {
    "format": FORMAT,
    "kind": kind,
    "files": {name: {"bytes": len(data)} for name, data in files.items()},
    "size": vocabulary.size,
    "extra_ids": vocabulary.extra_ids,
    "pad_id": vocabulary.pad_id,
    "eos_id": vocabulary.eos_id,
    "unk_id": vocabulary.unk_id,
    **{name: i for name, i in own.items() if i is not None},
    **more,
    "fingerprint": vocabulary.fingerprint,
  }
  try:
    there = Storage(os.fspath(directory))
    for name, data in files.items():
      there.write(name, data)
    there.write(MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())
  except OSError as error:
    raise UserError(f"vocabulary {directory}: cannot be written ({one_line(error)})") from error


def manifest(path: Place) -> dict:
  """Read the manifest at a path; raise UserError if it is damaged or lacks a key."""
  found = checked_json.parsed(read(path), dict, str(path), "the manifest of a vocabulary; copy its directory again")
  if found.get("format") != FORMAT:
    raise UserError(f"{path}: found format {str(found.get('format'))[:80]!r}, expected {FORMAT!r}")
  missing = [key for key in ("kind", "size", "extra_ids", "fingerprint") if key not in found]
  if missing:
    raise UserError(f"{path}: found no key {missing[0]!r}, expected the file save wrote")
  return found


def read(path: Place) -> bytes:
  try:
    if os.path.exists(path) and not os.path.isfile(path):  # reading a pipe could block, and a device never end
      raise OSError("not a regular file")
    return path.read_bytes()
  except OSError as error:
    raise UserError(f"{path}: cannot be read ({one_line(error)})") from error
