"""`history.jsonl` of a workdir: a line for each start, first save and rollback."""

import datetime
import hashlib
import json
import pathlib
from typing import Any

from t5x_like.errors import UserError
from t5x_like.files import checked_json, local

FILE = "history.jsonl"
Rows = list[dict[str, Any]]


def read(workdir, address=None) -> Rows:
  """Return the lines of a local workdir, without torn and foreign ones; [] if there is no file.

  Args:
    address: the workdir's address, for warnings, if it differs.
  """
  content = local.content(pathlib.Path(workdir) / FILE)
  return parsed(content or b"", f"{address or workdir}/{FILE}")


def parsed(content: bytes, where) -> Rows:
  """Return the lines of a file with this content, without torn and foreign ones."""
  return [row for row, _ in checked_json.rows(content, where, _check)]


def went_back(rows: Rows) -> int | None:
  """Return the step that the last start was asked to go back to, if any."""
  return next((_whole(row.get("from_step")) for row in reversed(rows) if "environment" in row), None)


def began(rows: Rows) -> float:
  """Return the time of the run's first start, in seconds since the epoch; the present for a new run."""
  time = datetime.datetime.fromisoformat(rows[0]["time"]) if rows else datetime.datetime.now(datetime.UTC)
  return time.timestamp()


def saved(rows: Rows) -> int | None:
  """Return a step after 0 that was saved since the run began, or began anew; None if none is known."""
  step = None
  for row in rows:
    if _whole(row.get("from_step")) == 0 and _whole(row.get("step")) == 0:
      step = None
    step = _whole(row.get("saved")) or _whole(row.get("step")) or step
  return step


def config(rows: Rows) -> dict[str, Any] | None:
  """Return the content of `config.json` at the last start; None if no line has it, or its digest differs."""
  starts = [row for row in rows if "config_digest" in row]
  found = next((row["config"] for row in reversed(starts) if isinstance(row.get("config"), dict)), None)
  return found if found is not None and _digest(found) == starts[-1]["config_digest"] else None


def add_start(
  workdir, step: int, identity: dict[str, Any], changes: list[str], environment: dict, from_step: int | None = None
) -> None:
  """Add a line for a start: time, step, config digest, changes and environment.

  The first line, and every line after a change of the config, also has the config.

  Raises:
    UserError: the file cannot be written.
  """
  digest = _digest(identity)
  row = {"step": step, "config_digest": digest, "changes": changes, "environment": environment}
  if from_step is not None:
    row["from_step"] = from_step
  known = config(read(workdir))
  if changes or known is None or _digest(known) != digest:
    row["config"] = identity
  add(workdir, row)


def add(workdir, row: dict[str, Any]) -> None:
  """Add a line, with the time.

  Raises:
    UserError: the file cannot be written.
  """
  path = pathlib.Path(workdir) / FILE
  try:
    timed = {"time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")} | row
    local.append(path, json.dumps(timed).encode())
  except OSError as error:
    raise UserError(f"{path}: cannot be written: {error.strerror}; free space, or use another --workdir") from error


def _check(row: dict[str, Any]) -> None:
  if not isinstance(row.get("time"), str):
    raise ValueError("an object without a time")
  datetime.datetime.fromisoformat(row["time"])


def _digest(identity: dict[str, Any]) -> str:
  return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _whole(value: Any) -> int | None:
  return value if type(value) is int else None
