"""The command line shared by programs and tools: `--config=RECIPE --workdir=DIR [--config.KEY=VALUE
…]`."""

import argparse
import gc
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

import t5x_like
from t5x_like import slots, trust
from t5x_like.errors import (
  EXIT_BUG,
  EXIT_PREEMPTED,
  EXIT_TRANSIENT,
  EXIT_USER_ERROR,
  UserError,
  is_out_of_memory,
  is_transient,
  one_line,
)
from t5x_like.files import streams
from t5x_like.files.paths import check_directory
from t5x_like.terminal_text import escape_controls

_INTERRUPTED = 130
_STEPS = 2**31


def parse(
  argv: Sequence[str], description: str, *extra: tuple[str, dict], config_required: bool = True
) -> tuple[argparse.Namespace, list[str]]:
  """Parse a program's arguments.

  Args:
    argv: arguments without the program's name.
    description: for `--help`.
    extra: the program's own flags, each as (name, keyword arguments of `add_argument`).
  Returns:
    (namespace, overrides of the recipe as `KEY=VALUE`)
  Raises:
    UserError: as `Parser.parse`.
  """
  parser = Parser(description)
  recipe = "a recipe, with an argument for it after a colon: configs/t5/base.py:small,debug"
  parser.add_argument("--config", required=config_required, metavar="RECIPE", help=recipe)
  parser.add_argument(
    "--workdir",
    required=True,
    type=check_directory,
    metavar="DIR",
    help="the run's directory, or gs://…",
  )
  parser.add_argument(
    "--list", action=_List, metavar="KIND", help="print all recipes, models, keys, …, and exit"
  )
  for name, options in extra:
    parser.add_argument(name, **options)
  return parser.parse(argv)


def _listing():
  return slots.module("listing", t5x_like)  # imports what it lists


class _List(argparse.Action):
  """Prints a list, as `--help` prints the help."""

  def __call__(self, parser, namespace, values, option_string=None):
    print(_listing().format_list(values))
    parser.exit()


class Parser(argparse.ArgumentParser):
  """A parser of a program's own flags and of `--config.KEY=VALUE`; errors are `UserError`.

  Parsing calls `trust.begin_command`: functions named by the flags may be imported.

  Args:
    opens_runs: whether the program may open runs saved by another program, and so takes `--trust`.
  """

  def __init__(self, description: str, *, opens_runs: bool = True, **options):
    formatter = argparse.RawDescriptionHelpFormatter
    super().__init__(
      description=description, formatter_class=formatter, allow_abbrev=False, **options
    )
    if opens_runs:
      says = (
        "import the functions (module:function) that saved files name; only for runs whose "
        "makers you trust"
      )
      self.add_argument(trust.FLAG, action="store_true", help=says)

  def parse_known_args(self, args=None, namespace=None):
    # flags may open what they name while they are parsed
    trust.begin_command(sys.argv[1:] if args is None else list(args))
    found, rest = super().parse_known_args(args, namespace)
    values = [word.partition("=")[2] for word in rest]
    trust.begin_command([*vars(found).values(), *values], everything=getattr(found, "trust", False))
    return found, rest

  def parse(self, argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Parse `argv`, or `sys.argv` if None, into (flags, overrides as `KEY=VALUE`).

    Raises:
      UserError: an argument is neither a flag nor an override.
    """
    args, rest = self.parse_known_args(_joined(sys.argv[1:] if argv is None else argv))
    for word in rest:
      if not word.startswith("--config."):
        near = _listing().suggest_flag(word)
        raise UserError(
          f"{word}: unknown argument{near}; keys of the recipe are set by --config.KEY=VALUE"
        )
    return args, [word.removeprefix("--config.") for word in rest]

  def format_help(self) -> str:
    lists = any(isinstance(action, _List) for action in self._actions)
    return super().format_help() + (f"\n{_listing().overview()}\n" if lists else "")

  def error(self, message: str):
    raise UserError(f"{message}; see --help")


def step_number(text: str) -> int:
  """Parse a step number, as the type of a flag; raise `argparse.ArgumentTypeError` if it is
  invalid."""
  if not text.isdecimal() or not text.isascii() or len(text) > 10 or int(text) >= _STEPS:
    raise argparse.ArgumentTypeError(
      f"found {text[:40]!r}, expected a whole number, at least 0 and below 2**31"
    )
  return int(text)


def run_program(main: Callable[[list[str]], int]) -> NoReturn:
  """Run `main` and exit with the code it returns; docs/reference/exit-codes.md lists the codes.

  In a job of several processes, a failing process exits at once. An orderly shutdown of jax would
  wait minutes for the others, which wait for this one in a collective; after a hard exit they fail
  too, and the launcher can act.
  """
  for stream in (sys.stdout, sys.stderr):  # a locale such as Latin-1 has no dashes and few letters
    if isinstance(stream, io.TextIOWrapper):
      stream.reconfigure(errors="backslashreplace")
  # imports and traces leave millions of objects, but little garbage
  gc.set_threshold(100_000, 20, 20)
  streams.protect_streams()
  try:
    code = main(sys.argv[1:])
  except KeyboardInterrupt:  # outside the training loop, which saves and stops by itself
    print("interrupted", file=sys.stderr)
    code = _INTERRUPTED
  except Exception as error:
    code = _unforeseen(error)
  together = "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized()
  if code == _INTERRUPTED or together and code not in (0, EXIT_PREEMPTED):
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
  sys.exit(code)


def _unforeseen(error: Exception) -> int:
  """Return the exit code of an unexpected exception, and explain it on stderr: by a line, or the
  traceback of a bug."""
  told = f"{type(error).__name__}: {one_line(error)[:300]}"
  if is_out_of_memory(error):
    print(
      f"error: out of memory ({told}); use a smaller batch, more devices, or --config.model.remat",
      file=sys.stderr,
    )
    return EXIT_USER_ERROR
  if is_transient(error):
    print(f"transient error: {told}; run the same command again", file=sys.stderr)
    return EXIT_TRANSIENT
  print(escape_controls(traceback.format_exc()), end="", file=sys.stderr)
  return EXIT_BUG


def _joined(argv: Sequence[str]) -> list[str]:
  """Rewrite `--config.key value` as `--config.key=value`."""
  words = iter(argv)
  return [
    f"{w}={next(words, '')}" if w.startswith("--config.") and "=" not in w else w for w in words
  ]
