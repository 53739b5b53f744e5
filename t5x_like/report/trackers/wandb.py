"""Weights & Biases: one run for a workdir, however often it is started. Extra: t5x-like[wandb].

W&B accepts the lines of a run in the order of their steps and changes none later. A step that it
has is therefore not logged again, even after the run went back to an earlier one, and a step is
logged when its evaluation is known.
"""

import dataclasses
import functools
import pathlib
import uuid
from typing import Any, Literal

from t5x_like.report.trackers import _following, require_library
from t5x_like.runtime import process

# Sizes in bytes in the files of offline runs, which have LevelDB's log format.
_BLOCK_SIZE = 32768
_FILE_HEADER_SIZE = 7
_RECORD_HEADER_SIZE = 7
_WHOLE_RECORD = 1
_FIRST_PART = 2
_MIDDLE_PART = 3
_LAST_PART = 4


@dataclasses.dataclass(frozen=True)
class Tracker:
  """Logs to a project of Weights & Biases.

  Attributes:
    project, entity, group: see `wandb.init`; None uses W&B's settings.
    mode: `offline` writes to `wandb/` in the workdir, for `wandb sync`; None uses `WANDB_MODE`.
  """

  project: str = "t5x_like"
  entity: str | None = None
  group: str | None = None
  mode: Literal["online", "offline"] | None = None

  def __post_init__(self):
    require_library("wandb", "wandb")

  def open(
    self, workdir: pathlib.Path, name: str, step: int, config: dict[str, Any]
  ) -> _following.Following:
    connect = functools.partial(_Run, self, workdir, name, config)
    return _following.Following("wandb", workdir, connect)


class _Run:
  """A new or continued run of W&B; `_last` is its last step, -1 for none."""

  def __init__(self, tracker: Tracker, workdir: pathlib.Path, name: str, config: dict[str, Any]):
    import wandb

    run_id = _following.read_id(workdir, "wandb")
    if run_id is None:
      run_id = uuid.uuid4().hex[:12]
      _following.write_id(workdir, "wandb", run_id)
    self._run = wandb.init(
      project=tracker.project,
      entity=tracker.entity,
      group=tracker.group,
      mode=tracker.mode,
      id=run_id,
      name=name,
      resume="allow",
      config=config,
      dir=str(workdir),
      settings=wandb.Settings(console="off", silent=True, save_code=False),
    )
    self._last = max(self._run.step - 1, _last_offline(workdir, run_id))
    self._pending: tuple[int, dict[str, float]] | None = None
    process.log(f"wandb: {self._run.dir if self._run.offline else self._run.url}")

  def send(self, rows: list[tuple[int, dict[str, float]]]) -> None:
    """Log the rows but the last step's, which wait for its evaluation: W&B drops later values."""
    for step, values in rows:
      if self._pending is None:
        self._pending = (step, values)
        continue
      pending_step, pending_values = self._pending
      if pending_step == step:
        self._pending = (step, pending_values | values)
      else:
        self._log(pending_step, pending_values)
        self._pending = (step, values)

  def _log(self, step: int, values: dict[str, float]) -> None:
    if step > self._last:
      self._run.log(values, step=step)
      self._last = step

  def close(self, outcome: str) -> None:
    if outcome != "paused" and self._pending:
      self._log(*self._pending)
    self._run.finish(exit_code=int(outcome == "failed"))


def _last_offline(workdir: pathlib.Path, run_id: str) -> int:
  """Return the last step in the files of earlier starts without a network, -1 for none.

  The library has no reader of its files, and a killed run loses what was not yet in them.
  """
  from wandb.proto import wandb_internal_pb2

  last = -1
  for path in workdir.glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb"):
    for content in read_records(path.read_bytes()):
      record = wandb_internal_pb2.Record.FromString(content)
      if record.WhichOneof("record_type") == "history":
        last = max(last, record.history.step.num)
  return last


def read_records(content: bytes) -> list[bytes]:
  """Return the complete records of a W&B file: a header, then LevelDB's log format.

  A record that was cut off at the end of the file is left out.
  """
  records = []
  record = b""
  offset = _FILE_HEADER_SIZE
  while offset + _RECORD_HEADER_SIZE <= len(content):
    remaining = _BLOCK_SIZE - offset % _BLOCK_SIZE
    if remaining < _RECORD_HEADER_SIZE:  # the end of a block that is too short for a header
      offset += remaining
      continue
    size = int.from_bytes(content[offset + 4 : offset + 6], "little")
    kind = content[offset + 6]
    start = offset + _RECORD_HEADER_SIZE
    end = start + size
    if kind not in (_WHOLE_RECORD, _FIRST_PART, _MIDDLE_PART, _LAST_PART) or end > len(content):
      break
    if kind in (_WHOLE_RECORD, _FIRST_PART):
      record = b""
    record += content[start:end]
    offset = end
    if kind in (_WHOLE_RECORD, _LAST_PART):
      records.append(record)
  return records
