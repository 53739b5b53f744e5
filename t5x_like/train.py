"""Pretrain a model.

python -m t5x_like.train --config=configs/t5/base.py --workdir=runs/base [--config.KEY=VALUE …]

Running the same command again in the same workdir resumes. Exit codes: 0 finished, 2 an error that
one line on stderr explains, 3 numeric, 4 damage, 69 transient, 75 stopped by a signal with the
state saved (docs/reference/exit-codes.md).
"""

import argparse
import contextlib
from collections.abc import Sequence

from t5x_like import command_line, recipes
from t5x_like.command_line import flag
from t5x_like.errors import UserError, handle_errors
from t5x_like.runtime.huge_pages import use_huge_pages


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[str], range | None]:
  """Parse the program's arguments into (flags, overrides of the recipe, steps to profile).

  Raises:
    UserError: an argument is unknown or invalid.
  """
  profile = flag("--profile", metavar="FIRST:LAST", help="record a profiler trace of these steps")
  from_step = flag(
    "--from_step",
    type=command_line.step_number,
    metavar="STEP",
    help="go back to this saved step; later ones are set aside",
  )
  plan = flag(
    "--plan",
    metavar="FILE",
    help="hold the run to this plan of t5x_like.plan: print where it deviates, and why",
  )
  args, overrides = command_line.parse(argv, __doc__, profile, from_step, plan)
  return args, overrides, _parse_profile(args.profile)


def check_profile(text: str | None, window: range | None, config) -> None:
  """Refuse steps to profile that begin after the run's last one."""
  if window is not None and config.total_steps is not None and window.start > config.total_steps:
    raise UserError(
      f"--profile={text}: the run ends at step {config.total_steps}; name steps up to that"
    )


@handle_errors(prints_results=False)
def main(argv: list[str]) -> None:
  args, overrides, window = parse(argv)
  config = recipes.load(args.config, overrides)
  check_profile(args.profile, window, config)
  flags = recipe_flags(args.config, overrides)
  train_config(config, args.workdir, args.from_step, window, flags=flags, plan=args.plan)


def recipe_flags(recipe: str, overrides: Sequence[str]) -> list[str]:
  """Return the flags of a recipe and its overrides, such as `--config.total_steps=100`."""
  return [f"--config={recipe}", *(f"--config.{override}" for override in overrides)]


def train_config(
  config,
  workdir: str,
  from_step: int | None = None,
  profile: range | None = None,
  callbacks=(),
  flags: Sequence[str] = (),
  plan: str | None = None,
) -> None:
  """Train a recipe's config to its end in a workdir; see `t5x_like.runs.Run`.

  Args:
    flags: the flags that made the config, for the workdir's history.
    plan: a file of a plan that the run is compared with; None for a stored plan of its step.
  """
  from t5x_like.config import check_values
  from t5x_like.data import open_values

  check_values(config)
  recipe = config
  from t5x_like.planning.promise import read_promises, stored_promises

  promises = read_promises(plan, recipe) if plan else stored_promises(recipe)
  config, notes = open_values.complete(config)  # before jax is loaded
  from t5x_like import data
  from t5x_like.runtime import compile_cache, process
  from t5x_like.training import loop
  from t5x_like.training.run import open_training_run
  from t5x_like.training.workdir import remove_if_refused

  process.prepare()
  for note in notes:
    process.log(note)
  data.use_cache(workdir)
  with contextlib.ExitStack() as stack:
    stack.enter_context(remove_if_refused(workdir))
    promise = None
    if promises:
      from t5x_like.planning import plan_watch

      select = plan_watch.select_promise if plan else plan_watch.select_stored_promise
      promise = select(promises)
    cache_note = compile_cache.enable(workdir)
    run = stack.enter_context(open_training_run(config, workdir, from_step, flags))
    process.log(f"  {cache_note}")
    run.session.callbacks += callbacks
    if promise:
      stack.enter_context(plan_watch.watch_run(promise, recipe, run))
    loop.train(run, profile=profile)


def _parse_profile(text: str | None) -> range | None:
  """Parse FIRST:LAST into the steps to profile."""
  if text is None:
    return None
  try:
    first, last = map(command_line.step_number, text.split(":"))
  except (ValueError, argparse.ArgumentTypeError):
    raise UserError(f"--profile={text}: expected FIRST:LAST, two step numbers") from None
  if last < first:
    raise UserError(f"--profile={text}: expected FIRST:LAST with FIRST not after LAST")
  return range(first, last + 1)


if __name__ == "__main__":
  use_huge_pages()
  command_line.run_program(main)
