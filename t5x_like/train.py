"""Pretrains a model: python -m t5x_like.train --config=configs/t5/base.py --workdir=runs/base [--config.KEY=VALUE …]

Running the same command again in the same workdir resumes. Exit codes: 0 finished, 2 an error that one line on stderr
explains, 3 numeric, 4 damage, 69 transient, 75 stopped by a signal with the state saved (docs/reference/exit-codes.md).
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from t5x_like import command_line, recipes
from t5x_like.errors import UserError, door
from t5x_like.files.places import directory
from t5x_like.runtime.huge_pages import use_huge_pages


@door
def main(argv: list[str]) -> None:
  profile = ("--profile", {"metavar": "FIRST:LAST", "help": "record a profiler trace of these steps"})
  back = (
    "--from_step",
    {"type": command_line.step, "metavar": "STEP", "help": "go back to this saved step; later ones are set aside"},
  )
  args, overrides = command_line.parse(argv, __doc__, profile, back)
  window = _window(args.profile)
  run = Run(args.config, args.workdir, overrides)
  if window is not None and window.start >= run.config.total_steps:
    raise UserError(f"--profile={args.profile}: the run ends at step {run.config.total_steps}; name steps before that")
  run.train(from_step=args.from_step, profile=window)


class Run:
  """A training run: `t5x.Run("configs/t5/base.py:tiny", "runs/tiny", {"total_steps": 100}).train()`.

  Args:
    config: a recipe as for `--config`, or a config made in Python.
    workdir: the run's directory or address; a run that is in it is resumed.
    overrides: changes to the config: values by key, or `KEY=VALUE` of each `--config.KEY=VALUE`.

  Attributes:
    config: as given, with the overrides.
    workdir: as given.

  Raises:
    UserError: there is no such recipe, or a key or value is invalid.
  """

  def __init__(self, config: str | ConfigDict, workdir: str, overrides: Sequence[str] | Mapping[str, Any] = ()):
    self.config, self.workdir = recipes.made(config, overrides), directory(workdir)

  def train(
    self,
    callbacks: Sequence[Callable[[int, dict[str, float]], object]] = (),
    *,
    from_step: int | None = None,
    profile: range | None = None,
  ) -> None:
    """Train to the end, from the newest checkpoint if there is one.

    Args:
      callbacks: functions of a step and its metrics, called for each line of `metrics.jsonl`.
        An exception ends the run.
      from_step: a saved step to go back to; later ones are set aside.
      profile: the steps to record a profiler trace of.
    Raises:
      UserError: the config, the data or the workdir do not fit; before the first step, if that can be known.
      Preempted: a signal stopped the run; its state is saved.
      NumericError: the loss or the state is not finite.
    """
    from t5x_like import data
    from t5x_like.runtime import compile_cache, process
    from t5x_like.training.resolve import adopted, resolve

    process.prepare()
    data.use_cache(self.workdir)
    compiled = compile_cache.use(self.workdir)
    config = resolve(adopted(self.config, self.workdir))

    from t5x_like.training.loop import train
    from t5x_like.training.run import opened

    with opened(config, self.workdir, from_step) as run:
      process.say(f"  {compiled}")
      run.session.callbacks += callbacks
      train(run, profile=profile)

  def metrics(self) -> list[dict[str, Any]]:
    """Return the lines of `metrics.jsonl`: `step`, and values by name."""
    from t5x_like.report.writer import read_metrics

    return read_metrics(self.workdir)


def _window(text: str | None) -> range | None:
  if text is None:
    return None
  try:
    first, last = map(command_line.step, text.split(":"))
  except (ValueError, argparse.ArgumentTypeError):
    raise UserError(f"--profile={text}: expected FIRST:LAST, two step numbers") from None
  if last < first:
    raise UserError(f"--profile={text}: expected FIRST:LAST with FIRST not after LAST")
  return range(first, last + 1)


if __name__ == "__main__":
  use_huge_pages()
  command_line.program(main)
