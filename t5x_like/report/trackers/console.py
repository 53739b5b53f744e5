"""Show progress on stderr: a bar on a terminal, else a line every ten seconds."""

import dataclasses
import math
import pathlib
import shutil
import sys
import time
from typing import Any

from t5x_like.report.numbers import duration

_LINE_INTERVAL_SECONDS = 10
_TRAINING_METRICS = (
  "train/loss",
  "train/accuracy",
  "train/margin",
  "train/reward",
  "train/learning_rate",
  "train/gradient_norm",
  "train/seconds_per_step",
  "train/tokens_per_second",
  "train/images_per_second",
  "train/mfu",
)


@dataclasses.dataclass(frozen=True)
class Tracker:
  """The tracker of the console, which every run has; see `_Console`."""

  def open(self, workdir: pathlib.Path, name: str, step: int, config: dict[str, Any]) -> "_Console":
    return _Console(step, config["total_steps"])


class _Console:
  """Shows the metrics of a run and, without a bar, an estimate of the remaining time.

  Every group of an evaluation (metrics `eval/…`) has its own lines. On a terminal, training steps
  advance the bar; elsewhere, they have a line every ten seconds.

  Args:
    step: the step from which the run starts or resumes.
    total: the last step.
  """

  def __init__(self, step: int, total: int):
    self._total = total
    self._bar = None
    self._last_line_time = -math.inf
    # (step, time) of the first call of `write`. The estimate leaves out the steps before it, whose
    # time includes compilation.
    self._first_write: tuple[int, float] | None = None
    if sys.stderr.isatty():
      from tqdm import tqdm

      self._bar = tqdm(total=total, initial=step, unit="step", dynamic_ncols=True, file=sys.stderr)

  def write(self, step: int, values: dict[str, float]) -> None:
    """Show the metrics of a step."""
    evaluation = {
      name.removeprefix("eval/"): value
      for name, value in values.items()
      if name.startswith("eval/")
    }
    if self._bar is not None:
      self._bar.update(step - self._bar.n)
      if "train/loss" in values:
        self._bar.set_postfix_str(f"loss {_format_number(values['train/loss'])}", refresh=False)
    if evaluation:
      self._print_evaluation(step, evaluation)
    elif self._bar is None and (step >= self._total or self._is_line_due()):
      self._print_training(step, values)
    if self._first_write is None:
      self._first_write = (step, time.monotonic())

  def _print_training(self, step: int, values: dict[str, float]) -> None:
    self._last_line_time = time.monotonic()
    training = {name: values[name] for name in _TRAINING_METRICS if name in values}
    cells = []
    for name, value in (training or values).items():
      cells.append(f"{name.removeprefix('train/')} {_format_number(value)}")
    remaining = self._format_remaining_time(step)
    print(f"step {step}/{self._total}  {'  '.join(cells)}{remaining}", file=sys.stderr, flush=True)

  def _print_evaluation(self, step: int, values: dict[str, float]) -> None:
    """Print the metrics of each group, such as `books/loss` of the group `books`, under its name.

    On a terminal, they are folded to its width.
    """
    cells: dict[str, list[str]] = {}
    for name, value in values.items():
      group, _, metric = name.rpartition("/")
      cells.setdefault(group, []).append(f"{metric} {_format_number(value)}")
    columns = None
    if self._bar is not None:
      columns = shutil.get_terminal_size().columns
    for group, group_cells in cells.items():
      lines = [f"step {step}/{self._total}  eval {group}", *_fold(group_cells, columns)]
      for line in lines:
        self._print(line)

  def _print(self, line: str) -> None:
    """Print a line, above the bar if there is one."""
    if self._bar is not None:
      self._bar.write(line, file=sys.stderr)
    else:
      print(line, file=sys.stderr, flush=True)

  def _is_line_due(self) -> bool:
    return time.monotonic() - self._last_line_time >= _LINE_INTERVAL_SECONDS

  def _format_remaining_time(self, step: int) -> str:
    """Format the remaining time at the pace since the first write; "" if it is not known."""
    if self._first_write is None:
      return ""
    first_step, first_time = self._first_write
    if not first_step < step < self._total:
      return ""
    seconds_per_step = (time.monotonic() - first_time) / (step - first_step)
    return f"  {duration(seconds_per_step * (self._total - step))} left"

  def flush(self) -> None:
    pass

  def close(self, outcome: str) -> None:
    if self._bar is not None:
      self._bar.close()


def _fold(cells: list[str], columns: int | None) -> list[str]:
  """Join cells into indented lines of at most so many columns; None is a single line."""
  lines: list[str] = []
  for cell in cells:
    if lines and (columns is None or len(lines[-1]) + len(cell) + 2 <= columns):
      lines[-1] += f"  {cell}"
    else:
      lines.append(f"    {cell}")
  return lines


def _format_number(value: float) -> str:
  return f"{value:,.0f}" if abs(value) >= 10000 else f"{value:.4g}"
