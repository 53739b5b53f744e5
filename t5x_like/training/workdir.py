"""Lock a workdir, write the files that identify its run, and check changes of its config.

`config.json` is the run's identity (`saved_model/workdir.py` reads it); `history.jsonl` has a line
for each start, first save and rollback.
"""

import contextlib
import datetime
import json
import pathlib
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

from t5x_like import config as config_lib
from t5x_like import data, trust
from t5x_like.errors import UserError, one_line
from t5x_like.files import exclusive, file_names, local
from t5x_like.files.leases import Lease
from t5x_like.files.locks import Lock
from t5x_like.files.paths import as_path, is_remote
from t5x_like.redaction import redact_config, redact_word
from t5x_like.runtime import compile_cache, process
from t5x_like.saved_model.workdir import (
  HISTORY_FILE,
  IDENTITY_FILE,
  Rows,
  identity_digest,
  last_config,
  read_history,
)

IMPORTED_FILE = "imported.json"  # describes weights that were trained elsewhere
# Keys that may not change: the state or the order of the data would not fit the run.
_FIXED_KEYS = (
  "model.",
  "seed",
  "batch_size",
  "fingerprints.",
  "optimizer.name",
  "objective.name",
  "tuning.",
  "teacher.",
)
# Exceptions: they change only how the same model is computed, or follow from the vocabulary.
_FREE_KEYS = (
  "model.dtype",
  "model.layers",
  "model.remat",
  "model.pipeline",
  "model.tokens",
  "teacher.model.dtype",
  "teacher.model.layers",
  "model.design.quantization",
)
# Keys that may not change in a workdir with imported weights and no data yet.
_IMPORTED_FIXED_KEYS = ("model.", "fingerprints.vocabulary", "optimizer.name")
_EDITION = "data_edition"  # `data.EDITION`


def build_identity(config, task, early: dict[str, Any] = {}) -> dict[str, Any]:
  """Return the content of `config.json`: the config, fingerprints of the data, feature shapes.

  Passwords in addresses and secrets of trackers are left out: the next start reads them from its
  flags.

  Args:
    config: the resolved config.
    task: the task of the last phase.
    early: the tasks of earlier phases, by phase.
  """
  fingerprints = {
    "data": task.fingerprint,
    _EDITION: data.EDITION,
    "vocabulary": task.vocabulary.fingerprint,
  }
  for phase, early_task in early.items():
    fingerprints[f"data_{phase}"] = early_task.fingerprint
  features = {name: list(feature.shape) for name, feature in task.features.items()}
  return redact_config(config.to_dict()) | {"fingerprints": fingerprints, "features": features}


def read_imported(workdir) -> dict[str, Any] | None:
  """Return the `model` and the `vocabulary` fingerprint of imported weights, if there are any."""
  path = f"{workdir}/{IMPORTED_FILE}"
  try:
    content = (as_path(workdir) / IMPORTED_FILE).read()
    if content is None:
      return None
    record = json.loads(content)
    trust.record_file(path, record, workdir)
    return {"model": dict(record["model"]), "vocabulary": str(record["vocabulary"])}
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise UserError(
      f"{path}: damaged ({one_line(error)}); convert the weights into a new workdir"
    ) from None


def check_identity(
  saved: dict[str, Any], current: dict[str, Any], workdir, *, other_optimizer: bool = False
) -> list[str]:
  """Compare two identities.

  Args:
    other_optimizer: whether the optimizer may change.
  Returns:
    One line for each changed key that may change.
  Raises:
    UserError: the run's data are of another edition, or keys have changed that may not; the message
      lists all of them.
  """
  current = json.loads(json.dumps(current))  # tuples become lists, as in the saved one
  before = config_lib.flatten(redact_config(saved))
  now = config_lib.flatten(redact_config(current))
  edition = now.get(f"fingerprints.{_EDITION}")  # None if only models are compared
  saved_edition = before.get(f"fingerprints.{_EDITION}", 1)
  if edition is not None and saved_edition != edition:
    raise UserError(
      f"{workdir}: holds a run on data of edition {saved_edition}, and this version of t5x_like "
      f"makes edition {edition}, other batches at every step; finish the run with the version that "
      "began it, or begin a new one in another --workdir"
    )
  changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
  has_data = edition is None or "fingerprints.data" in before
  fixed = _FIXED_KEYS if has_data else _IMPORTED_FIXED_KEYS
  free = (*_FREE_KEYS, "optimizer.name") if other_optimizer else _FREE_KEYS
  refused = [key for key in changed if key.startswith(fixed) and not key.startswith(free)]
  if refused:
    changes = ", ".join(
      f"{key}: {_shorten(before.get(key))} there, {_shorten(now.get(key))} here" for key in refused
    )
    remedy = (
      f"use a new --workdir, with --config.init.workdir={workdir} to begin with its weights, or "
      "the config that run was started with"
    )
    if "batch_size" in refused:
      remedy += "; config.phases changes the batch size within a run"
    raise UserError(f"{workdir}: holds a run of another config ({changes}); {remedy}")
  if not has_data:
    return []
  return [f"{key}: {before.get(key)!r} -> {now.get(key)!r}" for key in changed]


def write_identity(workdir, identity: dict[str, Any]) -> None:
  """Write `config.json` atomically with this user's signature.

  Raises:
    UserError: it cannot be written.
  """
  content = json.loads(json.dumps(identity))
  signature = trust.sign(content)
  if signature:
    content[trust.SIGNATURE] = signature
  write_json(workdir, IDENTITY_FILE, content)


def write_json(workdir, name: str, content: dict[str, Any]) -> None:
  """Write a JSON file atomically; raise UserError if it cannot be written."""
  _replace(workdir, name, json.dumps(content, indent=2, sort_keys=True) + "\n")


def write_text(workdir, name: str, text: str) -> None:
  """Write a text file atomically; raise UserError if it cannot be written."""
  _replace(workdir, name, text)


def write_lines(workdir, name: str, rows: list[dict[str, Any]]) -> None:
  """Write a JSONL file atomically; raise UserError if it cannot be written."""
  _replace(workdir, name, "".join(json.dumps(row) + "\n" for row in rows))


def _replace(workdir, name: str, text: str) -> None:
  file_names.check_name(f"{workdir}: a file's name", name)
  try:
    (as_path(workdir) / name).write_text(text)
  except OSError as error:
    why = error.strerror or one_line(error)
    raise UserError(
      f"{workdir}/{name}: cannot be written: {why}; free space, or use another --workdir"
    ) from error


def lock_workdir(workdir) -> Lock | Lease:
  """Keep other runs out of a workdir until the returned lock or lease is closed.

  Raises:
    UserError: another process has it, or the directory cannot be written.
  """
  activity = "is training in it ({}); wait for it or stop it, or use another --workdir"
  try:
    return exclusive.hold_directory(as_path(workdir), "lock", activity, lease_name="lease")
  except (FileExistsError, NotADirectoryError) as error:
    raise UserError(f"{workdir}: Not a directory; use another --workdir") from error
  except OSError as error:
    raise UserError(
      f"{workdir}/lock: cannot be written: {error.strerror}; use another --workdir"
    ) from error


@contextlib.contextmanager
def remove_if_refused(address: str) -> Iterator[None]:
  """Remove a local workdir that this start created, if the start is refused before a run begins.

  Data that it has prepared there are kept: the next start reads them.
  """
  missing = []
  if not is_remote(address):
    path = pathlib.Path(address)
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
  try:
    yield
  except UserError:
    if missing and process.is_first():
      with contextlib.suppress(OSError, UserError):
        _remove_without_run(missing[0])
        for folder in missing:
          folder.rmdir()
    raise


def _remove_without_run(workdir: pathlib.Path) -> None:
  """Remove the content of a workdir that holds no run, except for prepared data.

  Raises:
    UserError: another process has the workdir.
    OSError: there is no workdir, or a file cannot be removed.
  """
  workdir.stat()
  with lock_workdir(workdir):
    if (workdir / IDENTITY_FILE).exists():
      return
    compile_cache.forget(workdir)
    for path in sorted(workdir.iterdir()):
      if path.name == "data":
        with contextlib.suppress(OSError):
          path.rmdir()
      elif path.is_dir():
        shutil.rmtree(path)
      else:
        path.unlink()


def _shorten(value: Any) -> str:
  text = repr(value)
  return text if len(text) <= 24 else f"{text[:18]}…"


def last_from_step(rows: Rows) -> int | None:
  """Return the `--from_step` of the last start, if it had one."""
  for row in reversed(rows):
    if "environment" in row:
      return _integer_or_none(row.get("from_step"))
  return None


def first_start_time(rows: Rows) -> float:
  """Return the time of the first start, in seconds since the epoch; now for a new run."""
  if rows:
    return datetime.datetime.fromisoformat(rows[0]["time"]).timestamp()
  return datetime.datetime.now(datetime.UTC).timestamp()


def find_saved_step(rows: Rows) -> int | None:
  """Return a saved step after 0, since the run last started from step 0; None if none is known."""
  step = None
  for row in rows:
    if _integer_or_none(row.get("from_step")) == 0 and _integer_or_none(row.get("step")) == 0:
      step = None
    step = _integer_or_none(row.get("saved")) or _integer_or_none(row.get("step")) or step
  return step


def add_start(
  workdir,
  step: int,
  identity: dict[str, Any],
  changes: list[str],
  environment: dict,
  from_step: int | None = None,
  flags: Sequence[str] = (),
) -> None:
  """Add a line to `history.jsonl` for a start: time, step, config digest, changes and environment.

  It also has the recipe's flags, without secrets. The first line, and every line after a change of
  the config, has the config.

  Raises:
    UserError: the file cannot be written.
  """
  digest = identity_digest(identity)
  row = {"step": step, "config_digest": digest, "changes": changes, "environment": environment}
  if flags:
    row["flags"] = [redact_word(word) for word in flags]
  if from_step is not None:
    row["from_step"] = from_step
  recorded_config = last_config(read_history(workdir))
  if changes or recorded_config is None or identity_digest(recorded_config) != digest:
    row["config"] = identity
    row[trust.SIGNATURE] = trust.sign(json.loads(json.dumps(identity)))
  add_line(workdir, row)


def add_line(workdir, row: dict[str, Any]) -> None:
  """Add a line to `history.jsonl`, with the time; raise UserError if the file cannot be written."""
  path = pathlib.Path(workdir) / HISTORY_FILE
  try:
    timed = {"time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")} | row
    local.append_line(path, json.dumps(timed).encode())
  except OSError as error:
    raise UserError(
      f"{path}: cannot be written: {error.strerror}; free space, or use another --workdir"
    ) from error


def _integer_or_none(value: Any) -> int | None:
  return value if type(value) is int else None
