"""Weights & Biases: one run for a workdir, however often it is started. Extra: t5x-like[wandb].

W&B takes the lines of a run in the order of their steps and changes none later. So steps that it
has are not logged again, also after the run went back to an earlier one, and a step is logged once
its evaluation is known.
"""

import dataclasses
import functools
import pathlib
import uuid
from typing import Any, Literal

from t5x_like.report.trackers import _following, need
from t5x_like.runtime import process

_BLOCK = 32768  # of the files that runs without a network are written to
_HEADER = 7


@dataclasses.dataclass(frozen=True)
class Tracker:
  """Logs to a project of Weights & Biases.

  Attributes:
    project, entity, group: as `wandb.init`; None are those of its settings.
    mode: `offline` writes to `wandb/` in the workdir, for `wandb sync`; None follows `WANDB_MODE`.
  """

  project: str = "t5x_like"
  entity: str | None = None
  group: str | None = None
  mode: Literal["online", "offline"] | None = None

  def __post_init__(self):
    need("wandb", "wandb")

  def open(
    self, workdir: pathlib.Path, name: str, step: int, config: dict[str, Any]
  ) -> _following.Following:
    return _following.Following(
      "wandb", workdir, functools.partial(_Run, self, workdir, name, config)
    )


class _Run:
  """A run of W&B, opened or continued; `_last` is the last step that it has, -1 for none."""

  def __init__(self, tracker: Tracker, workdir: pathlib.Path, name: str, config: dict[str, Any]):
    import wandb

    run_id = _following.kept_id(workdir, "wandb")
    if run_id is None:
      run_id = uuid.uuid4().hex[:12]
      _following.keep_id(workdir, "wandb", run_id)
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
    self._held: tuple[int, dict[str, float]] | None = None
    process.log(f"wandb: {self._run.dir if self._run.offline else self._run.url}")

  def send(self, rows: list[tuple[int, dict[str, float]]]) -> None:
    """Log the rows; those of the last step are held, as W&B drops what comes for a step after
    it."""
    for step, values in rows:
      held = self._held
      self._held = (step, values)
      if held and held[0] == step:
        self._held = step, held[1] | values
      elif held:
        self._log(*held)

  def _log(self, step: int, values: dict[str, float]) -> None:
    if step > self._last:
      self._run.log(values, step=step)
      self._last = step

  def close(self, outcome: str) -> None:
    if outcome != "paused" and self._held:
      self._log(*self._held)
    self._run.finish(exit_code=int(outcome == "failed"))


def _last_offline(workdir: pathlib.Path, run_id: str) -> int:
  """Return the last step in the files of earlier starts without a network, -1 for none.

  The library has no reader of its files, and a killed run loses what was not yet in them.
  """
  from wandb.proto import wandb_internal_pb2

  last = -1
  for path in workdir.glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb"):
    for content in records(path.read_bytes()):
      record = wandb_internal_pb2.Record.FromString(content)
      if record.WhichOneof("record_type") == "history":
        last = max(last, record.history.step.num)
  return last


def records(content: bytes) -> list[bytes]:
  """Return the whole records of a W&B file: a header, then LevelDB's log format; a torn end is left
  out."""
  found = []
  parts = b""
  at = _HEADER
  while at + 7 <= len(content):
    left = _BLOCK - at % _BLOCK
    if left < 7:  # no record's header fits into the rest of a block
      at += left
      continue
    size = int.from_bytes(content[at + 4 : at + 6], "little")
    kind = content[at + 6]
    if kind not in (1, 2, 3, 4) or at + 7 + size > len(content):
      break
    parts = (b"" if kind in (1, 2) else parts) + content[at + 7 : at + 7 + size]
    at += 7 + size
    if kind in (1, 4):  # whole, or the last part
      found.append(parts)
  return found
