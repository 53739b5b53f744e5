"""Files of JSON lines: a JSON value on each line."""

import json
import pathlib


def read(path) -> list:
  """Return the values of a file."""
  return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def write(path, rows) -> None:
  """Write rows to a file and make its directory."""
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
