"""Kill a run again and again, watch it from outside, and compare it with an unbroken one."""

import collections
import dataclasses
import json
import os
import pathlib
import random
import re
import signal
import time
import uuid
from collections.abc import Callable

import psutil

from t5x_like.report.writer import read_metrics
from tests.runs import Process, count_metrics, losses, steps_being_saved

MARK = "T5X_LIKE_DRILL"  # in the environment of all that a drill starts
# Steps between checkpoints and between evaluations.
EVERY = 5
EVALUATE = 10
FLAGS = (
  f"--config.checkpoint.every={EVERY}",
  f"--config.eval_every={EVALUATE}",
  "--config.evals.loss.max_examples=16",
  "--config.batch_size=8",
)
MOMENTS = ("time", "step", "saving", "evaluating", "starting")


def saving_objects(workdir) -> list[int]:
  """Return the steps being saved in a bucket, where a step exists once it has a manifest."""
  folders = (pathlib.Path(workdir) / "checkpoints").glob("*-*")
  unfinished = [folder for folder in folders if not (folder / "manifest.json").exists()]
  return [int(folder.name.split("-")[0]) for folder in unfinished]


@dataclasses.dataclass
class Drill:
  """Kills a run.

  Attributes:
    command: the command of the run, the same at every start.
    workdir: the local directory of the run's files.
    total: the last step of the run.
    random: draws the moments of kills.
    process_options: keywords of `Process`.
    launcher: whether the command starts processes, one of which is killed half of the time.
    saving: returns the steps that are being saved in a workdir.
    table: (the moment that was drawn, the phase in which the run was killed) of each kill.
    starts: the number of starts so far.
    seconds: the seconds from a start to its first step.
  """

  command: list[str]
  workdir: pathlib.Path
  total: int
  random: random.Random
  process_options: dict
  launcher: bool = False
  saving: Callable[[pathlib.Path], list[int]] = steps_being_saved
  table: list[tuple[str, str]] = dataclasses.field(default_factory=list)
  starts: int = 0
  seconds: float = 60.0

  def run(self, kills: int) -> None:
    """Kill the run so many times, then let it end; every start but the last is killed."""
    os.environ[MARK] = uuid.uuid4().hex
    try:
      for number in range(kills):
        if number < len(MOMENTS):
          self._kill(MOMENTS[number])
        else:
          self._kill(self.random.choice(MOMENTS))
      self.starts += 1
      with Process(self.command, **self.process_options) as process:
        code, output = process.end(1_800)
      assert code == 0, output
      self._no_orphans()
    finally:
      del os.environ[MARK]

  def _kill(self, moment: str) -> None:
    self.starts += 1
    before = count_metrics(self.workdir)
    under_way = set(self.saving(self.workdir))
    since = time.monotonic()
    with Process(self.command, **self.process_options) as process:
      if moment == "starting":
        wait = self.random.uniform(0, self.seconds)
        process.until(lambda: time.monotonic() - since > wait)
      elif moment == "time":
        wait = self.random.uniform(0, 1.5 * self.seconds)
        process.until(
          lambda: (
            time.monotonic() - since > wait or count_metrics(self.workdir) > before + 2 * EVERY
          )
        )
      else:
        steps = self.random.randint(1, EVERY)
        wait = self.random.uniform(0, 0.03)
        # Count lines of this start: a start drops the lines after its step.
        process.until(lambda: count_metrics(self.workdir) not in (0, before))
        self.seconds = min(self.seconds, time.monotonic() - since)
        start = count_metrics(self.workdir)
        steps_to_wait = {"step": steps}.get(moment, 4 * EVALUATE)
        reached = {
          "step": lambda: False,
          "saving": lambda: set(self.saving(self.workdir)) - under_way,
          "evaluating": lambda: self._is_evaluating(),
        }[moment]
        process.until(lambda: reached() or count_metrics(self.workdir) >= start + steps_to_wait)
        time.sleep(wait if moment != "saving" else wait / 10)
      phase = self._phase(process.output_so_far(), under_way)
      workers = process.children() if self.launcher else []
      if workers and self.random.random() < 0.5:
        os.kill(self.random.choice(workers), signal.SIGKILL)
      else:
        process.send(signal.SIGKILL)
      code, output = process.end()
    assert code != 0, (
      f"it ended before it could be killed in {len(self.table)} kills: {output[-2000:]}"
    )
    # A process that has lost its peer shows the stack of its wait.
    lost = self.launcher and "transient error: " in output
    assert "Traceback" not in output or lost, output
    self.table.append((moment, phase))
    self._no_orphans()

  def _phase(self, said: str, under_way: set[int]) -> str:
    begun = re.search(r"from step (\d+) of|new run in", said)
    if begun is None:
      return "starting"
    if set(self.saving(self.workdir)) - under_way:
      return "saving"
    if self._last().get("step", 0) <= int(begun[1] or 0):
      return "compiling"
    return "evaluating" if self._is_evaluating() else "stepping"

  def _is_evaluating(self) -> bool:
    """Return whether the last metrics are of a step that is evaluated next."""
    last = self._last()
    return last.get("step", 1) % EVALUATE == 0 and "train/loss" in last

  def _last(self) -> dict:
    """Return the last line of metrics."""
    try:
      with open(self.workdir / "metrics.jsonl", "rb") as file:
        file.seek(max(0, file.seek(0, 2) - 4_096))
        return json.loads(file.read().rpartition(b"\n")[0].splitlines()[-1])
    except (OSError, ValueError, IndexError):
      return {}

  def _no_orphans(self) -> None:
    deadline = time.monotonic() + 60
    while orphans := drill_processes(os.environ[MARK]):
      assert time.monotonic() < deadline, f"left behind: {orphans}"
      time.sleep(0.05)

  def summary(self, name: str) -> str:
    """The table of a drill."""
    rows = [f"{name}: {len(self.table)} kills, {self.starts} starts, {self.total} steps: same bits"]
    for phase, count in collections.Counter(phase for _, phase in self.table).most_common():
      drawn = collections.Counter(moment for moment, killed_in in self.table if killed_in == phase)
      rows.append(
        f"  killed while {phase:<24}{count:>4}  (drawn: "
        f"{', '.join(f'{m} {n}' for m, n in drawn.items())})"
      )
    return "\n".join(rows)


def drill_processes(value: str) -> list[str]:
  """Return the command lines of live processes that a drill has started."""
  command_lines = []
  for process in psutil.process_iter():
    try:
      if process.environ().get(MARK) == value and process.status() != psutil.STATUS_ZOMBIE:
        command_lines.append(" ".join(process.cmdline())[:200])
    except psutil.Error:
      continue
  return command_lines


def assert_same_record(workdir, uninterrupted, total: int) -> None:
  """Assert equal losses, evaluations and data fingerprints, with every step once."""
  actual_rows = read_metrics(workdir)
  expected_rows = read_metrics(uninterrupted)
  assert [step for step, _ in losses(workdir)] == list(range(1, total + 1))
  assert losses(workdir) == losses(uninterrupted)

  def evaluations(rows):
    return [_evaluation(row) for row in rows if "train/loss" not in row]

  assert evaluations(actual_rows) == evaluations(expected_rows)
  assert len(evaluations(actual_rows)) == -(-total // EVALUATE)  # the last step is evaluated too

  def fingerprints(folder):
    return json.loads((pathlib.Path(folder) / "config.json").read_text())["fingerprints"]

  assert fingerprints(workdir) == fingerprints(uninterrupted)


def _evaluation(row: dict) -> dict:
  return {name: value for name, value in row.items() if not name.endswith("seconds")}
