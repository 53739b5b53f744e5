"""The command line that all doors share: `--config=RECIPE --workdir=DIR [--config.KEY=VALUE …]`."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from t5x_like.errors import EXIT_PREEMPTED, UserError

_INTERRUPTED = 130


def parse(
  argv: Sequence[str], description: str, *extra: tuple[str, dict], config_required: bool = True
) -> tuple[argparse.Namespace, list[str]]:
  """Parses a door's arguments.

  Args:
    argv: arguments without the program's name.
    description: for `--help`.
    extra: the door's own flags, as (name, keyword arguments of `add_argument`).
  Returns:
    (namespace, overrides of the recipe as `KEY=VALUE`)
  Raises:
    UserError: an argument that is neither a flag nor an override.
  """
  parser = _Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
  recipe = "a recipe, with an argument for it after a colon: configs/t5/small.py:debug"
  parser.add_argument("--config", required=config_required, metavar="RECIPE", help=recipe)
  parser.add_argument("--workdir", required=True, metavar="DIR", help="where the run is, or will be")
  for name, options in extra:
    parser.add_argument(name, **options)
  args, rest = parser.parse_known_args(_joined(argv))
  for word in rest:
    if not word.startswith("--config."):
      raise UserError(f"{word}: unknown argument; keys of the recipe are set by --config.KEY=VALUE")
  if "://" in args.workdir:
    raise UserError(f"--workdir={args.workdir}: expected a directory; mount the bucket (gcsfuse) and give its path")
  return args, [word.removeprefix("--config.") for word in rest]


def program(main: Callable[[list[str]], int]) -> NoReturn:
  """Ends the program with what the door returns.

  A failed process of a job of several ends at once: jax's own end would wait minutes for the others, who wait for this
  one in a collective. Without it they end too, and the launcher hears of it in time.
  """
  try:
    code = main(sys.argv[1:])
  except KeyboardInterrupt:  # before or after the loop, which saves and stops in order
    print("interrupted", file=sys.stderr)
    code = _INTERRUPTED
  except Exception:
    traceback.print_exc()
    code = 1
  together = "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized()
  if code == _INTERRUPTED or together and code not in (0, EXIT_PREEMPTED):
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
  sys.exit(code)


class _Parser(argparse.ArgumentParser):
  def error(self, message: str):
    raise UserError(f"{message}; --help tells more")


def _joined(argv: Sequence[str]) -> list[str]:
  """`--config.key value` as `--config.key=value`."""
  words = iter(argv)
  return [f"{w}={next(words, '')}" if w.startswith("--config.") and "=" not in w else w for w in words]
