"""Measure how much of a training step its record in the certificate costs.

python -m tools.certificate_cost --config=configs/t5/base.py:tiny [--steps=N]

It trains the recipe in a temporary workdir, in blocks of ten steps that alternate between with and
without records, and prints the median time of a step of either kind. The difference of the two is
smaller than their noise on most machines. So it also prints the median time inside the recorder's
functions: the digest of the batch, and the line of the step.
"""

import functools
import statistics
import tempfile
import time
from collections.abc import Callable

from t5x_like import command_line, recipes
from t5x_like.errors import UserError, handle_errors

_BLOCK_STEPS = 10


class _NoRecords:
  """Replace a recorder, and record nothing."""

  def note_batch(self, step, rows, batch) -> None:
    pass

  def add_step(self, step, batch_index, metrics, refusal) -> None:
    pass


class _TimedRecords:
  """Call a recorder, and collect the seconds of each call by function."""

  def __init__(self, recorder):
    self.seconds: dict[str, list[float]] = {"note_batch": [], "add_step": []}
    self.note_batch = self._time_calls("note_batch", recorder.note_batch)
    self.add_step = self._time_calls("add_step", recorder.add_step)

  def _time_calls(self, name: str, function: Callable) -> Callable:
    @functools.wraps(function)
    def call(*arguments) -> None:
      since = time.perf_counter()
      function(*arguments)
      self.seconds[name].append(time.perf_counter() - since)

    return call


@handle_errors
def main(argv: list[str]) -> None:
  parser = command_line.Parser(__doc__)
  parser.add_argument("--config", required=True, metavar="RECIPE", help="a recipe, as for training")
  parser.add_argument("--steps", type=int, default=200, metavar="N", help="steps of each kind")
  args, overrides = parser.parse(argv)
  if args.steps < 2 * _BLOCK_STEPS:
    raise UserError(f"--steps={args.steps}: expected at least {2 * _BLOCK_STEPS}")
  total = 2 * args.steps + _BLOCK_STEPS
  quiet = (f"total_steps={total}", "evals={}", "trackers={}", f"log_every={total}")
  config = recipes.load(args.config, [*overrides, *quiet])
  seconds_with, seconds_without, recorder_seconds = _measure(config, args.steps)
  step = statistics.median(seconds_without)
  recorded = statistics.median(seconds_with)
  print(f"{args.config}: {args.steps} steps of each kind, in alternating blocks of {_BLOCK_STEPS}")
  print(f"  a step without records   {1e3 * step:10.3f} ms (median)")
  print(f"  a step with records      {1e3 * recorded:10.3f} ms (median)")
  total_seconds = 0.0
  for name, seconds in recorder_seconds.items():
    median = statistics.median(seconds)
    total_seconds += median
    print(f"  inside {name:<18}{1e3 * median:10.3f} ms (median)")
  print(f"  the recorder's functions are {100 * total_seconds / step:.3f} % of a step")


def _measure(config, num_steps: int) -> tuple[list[float], list[float], dict[str, list[float]]]:
  """Return the seconds of each step with and without records, and of the recorder's calls."""
  from t5x_like import data
  from t5x_like.runtime import process
  from t5x_like.training.run import open_training_run

  process.prepare()
  seconds: dict[bool, list[float]] = {True: [], False: []}
  with tempfile.TemporaryDirectory(prefix="t5x_like-") as folder:
    data.use_cache(folder)
    with open_training_run(config, folder) as run:
      recorder = run.session.certificate
      timed = _TimedRecords(recorder)
      for _ in range(_BLOCK_STEPS):  # warm-up: compilation, caches and prefetching
        run.advance()
      for block in range(2 * num_steps // _BLOCK_STEPS):
        run.drain()
        is_recorded = block % 2 == 0
        run.session.certificate = timed if is_recorded else _NoRecords()
        for _ in range(_BLOCK_STEPS):
          since = time.perf_counter()
          run.advance()
          seconds[is_recorded].append(time.perf_counter() - since)
        run.drain()
      run.session.certificate = recorder
  return seconds[True], seconds[False], timed.seconds


if __name__ == "__main__":
  command_line.run_program(main)
