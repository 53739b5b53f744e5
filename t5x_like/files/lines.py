"""Files of JSON objects, one a line, that a run appends to: a loss of power may tear a line, and users edit them."""

import json
import logging
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from t5x_like.errors import one_line
from t5x_like.files.storage import synced

Row = dict[str, Any]
_log = logging.getLogger("t5x_like.workdir")
_told: set[tuple[str, int, bytes]] = set()


def rows(content: bytes, where, check: Callable[[Row], Any]) -> Iterator[tuple[Row, bytes]]:
  """Yields each line that holds an object as the file has them, parsed and raw; others are told once, and skipped.

  Args:
    content: of the file.
    where: the file, for the warning.
    check: raises ValueError, TypeError or KeyError for an object that is no line of this file.
  """
  for number, line in enumerate(content.split(b"\n"), start=1):
    if not line.strip():
      continue
    try:
      row = json.loads(line)
      if not isinstance(row, dict):
        raise ValueError("not a JSON object")
      check(row)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
      if (str(where), number, line) not in _told:
        _told.add((str(where), number, line))
        _log.warning("%s:%d: torn or foreign line is skipped (%s)", where, number, one_line(error)[:100])
      continue
    yield row, line + b"\n"


def append(path: pathlib.Path, row: Row) -> None:
  """Appends a line and puts it on disk; after a torn last line it begins a new one."""
  made = not path.exists()
  with open(path, "ab+") as file:
    size = file.seek(0, os.SEEK_END)
    torn = size and (file.seek(size - 1), file.read(1))[1] != b"\n"
    file.write((b"\n" if torn else b"") + json.dumps(row).encode() + b"\n")
    file.flush()
    os.fsync(file.fileno())
  if made:
    synced(path.parent)
