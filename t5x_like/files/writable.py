"""Whether the places where a program will write can be written to, before it works for hours."""

import os
import uuid
from collections.abc import Sequence

from t5x_like.errors import UserError, one_line
from t5x_like.files.storage import Storage, is_remote


def check(flag: str, directory, folders: Sequence[str] = ()) -> None:
  """Write a file into a directory, made if missing, and into those of its folders that are there, and remove it.

  Args:
    flag: that names the directory, for messages.
    folders: relative to it.

  Raises:
    UserError: one cannot be written to, or is a file.
    TransientError: an object store stays out of reach.
  """
  there = [f"{directory}/{folder}" for folder in folders if os.path.lexists(f"{directory}/{folder}")]
  for where in (str(directory), *there):
    storage, name = Storage(where), f".writable-{uuid.uuid4().hex[:8]}"
    try:
      storage.write(name, b"")
      storage.delete(name)
    except OSError as error:
      if is_remote(where):
        raise
      why = error.strerror or one_line(error)
      raise UserError(
        f"{where}: cannot be written to: {why}; make it a directory of yours, or use another {flag}"
      ) from error
