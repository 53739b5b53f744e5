"""Show progress on stderr: a bar on a terminal, else a line every ten seconds."""

import dataclasses
import math
import pathlib
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

  Every evaluation (metrics `eval/…`) has a line. On a terminal, training steps move the bar;
  elsewhere, they have a line every ten seconds.

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
    evaluation = {name: value for name, value in values.items() if name.startswith("eval/")}
    training = {name: values[name] for name in _TRAINING_METRICS if name in values}
    cells = []
    for name, value in (evaluation or training or values).items():
      cells.append(f"{name.removeprefix('train/')} {_format_number(value)}")
    text = "  ".join(cells)
    if self._bar is not None:
      self._bar.update(step - self._bar.n)
      if evaluation:
        self._bar.write(f"step {step}  {text}", file=sys.stderr)
      elif "train/loss" in values:
        self._bar.set_postfix_str(f"loss {_format_number(values['train/loss'])}", refresh=False)
    elif evaluation or step >= self._total or self._is_line_due():
      self._last_line_time = time.monotonic()
      remaining = self._format_remaining_time(step)
      print(f"step {step}/{self._total}  {text}{remaining}", file=sys.stderr, flush=True)
    if self._first_write is None:
      self._first_write = (step, time.monotonic())

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


def _format_number(value: float) -> str:
  return f"{value:,.0f}" if abs(value) >= 10000 else f"{value:.4g}"
