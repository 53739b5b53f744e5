"""The records and arrays of prepared data, checked on reading.

A record is a JSON file beside prepared data. It repeats the request that the data answer, and lists their checksums.
"""

import hashlib
import io
import json
from typing import Any

import numpy as np

from t5x_like.errors import UserError, one_line
from t5x_like.files import ranges
from t5x_like.store import manifest as manifests


def read(kind: type, path: str, file: str, content: dict[str, Any], remedy: str) -> Any:
  """Read the record of a directory of prepared data.

  Args:
    kind: a dataclass of the fields that preparation adds to `content`.
    path, file: the directory, and the name of the record in it.
    content: the request, which the record must repeat.
    remedy: the closing words of error messages.

  Raises:
    UserError: the file is missing or not JSON, its content differs, or a field is missing, unknown or mistyped.
  """
  files = ranges.at(path)
  where, text = files.name(file), files.read(file)
  if text is None:
    raise UserError(f"{where}: found no such file: {remedy}")
  try:
    data = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise UserError(f"{where}: not valid JSON ({one_line(error)[:200]}): {remedy}") from error
  if not isinstance(data, dict):
    raise UserError(f"{where}: found {type(data).__name__}, expected an object: {remedy}")
  for key, expected in json.loads(json.dumps(content)).items():
    if json.dumps(data.pop(key, None), sort_keys=True) != json.dumps(expected, sort_keys=True):
      raise UserError(f"{where}: {key}: not as the task asks for it; the record is damaged: {remedy}")
  return manifests.read(kind, data, where, "", remedy)


def array(path: str, file: str, sha256: str, remedy: str) -> np.ndarray:
  """Read an `.npy` file of a known checksum.

  Raises:
    UserError: the file is missing, has another checksum, or is not an array.
  """
  files = ranges.at(path)
  data = files.read(file)
  found = "no such file" if data is None else hashlib.sha256(data).hexdigest()
  if found != sha256:
    raise UserError(
      f"{files.name(file)}: found SHA-256 {found[:12]}, expected {sha256[:12]}: the file is missing or was changed;"
      f" {remedy}"
    )
  try:
    return np.load(io.BytesIO(data), allow_pickle=False)
  except (ValueError, EOFError) as error:
    raise UserError(f"{files.name(file)}: not a NumPy array ({one_line(error)[:200]}); {remedy}") from error
