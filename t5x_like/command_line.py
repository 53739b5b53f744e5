"""Define the flags that programs and tools share.

`--config=RECIPE --workdir=DIR [--config.KEY=VALUE …]`
"""

import argparse
import gc
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from t5x_like import trust
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
_MAX_STEPS = 2**31


def flag(name: str, **options: Any) -> tuple[str, dict[str, Any]]:
  """Describe a flag of a program for `parse`, by the arguments of `add_argument`."""
  return name, options


def parse(
  argv: Sequence[str],
  description: str,
  *extra: tuple[str, dict],
  config_required: bool = True,
  workdir_required: bool = True,
  workdir_type: Callable[[str], str] = check_directory,
) -> tuple[argparse.Namespace, list[str]]:
  """Parse a program's arguments.

  Args:
    argv: arguments without the program's name.
    description: for `--help`.
    extra: the program's own flags; see `flag`.
    workdir_type: checks and returns the value of `--workdir`.
  Returns:
    (namespace, overrides of the recipe as `KEY=VALUE`)
  Raises:
    UserError: as `Parser.parse`.
  """
  parser = Parser(description)
  recipe_help = "a recipe, with an argument for it after a colon: configs/t5/base.py:small,debug"
  parser.add_argument("--config", required=config_required, metavar="RECIPE", help=recipe_help)
  parser.add_argument(
    "--workdir",
    required=workdir_required,
    type=workdir_type,
    metavar="DIR",
    help="the run's directory, or gs://…",
  )
  parser.add_argument(
    "--list", action=_List, metavar="KIND", help="print all recipes, models, keys, …, and exit"
  )
  for name, options in extra:
    parser.add_argument(name, **options)
  return parser.parse(argv)


class _List(argparse.Action):
  """Print a list, as `--help` prints the help."""

  def __call__(self, parser, namespace, values, option_string=None):
    from t5x_like import listing  # imports all that it lists

    print(listing.format_list(values))
    parser.exit()


class Parser(argparse.ArgumentParser):
  """A parser of a program's own flags and of `--config.KEY=VALUE`; errors are `UserError`.

  Parsing calls `trust.begin_command`: functions named by the flags may be imported.

  Args:
    opens_runs: whether the program may open runs saved by another program, and so takes `--trust`.
  """

  def __init__(self, description: str, *, opens_runs: bool = True, **options):
    formatter_class = argparse.RawDescriptionHelpFormatter
    super().__init__(
      description=description, formatter_class=formatter_class, allow_abbrev=False, **options
    )
    if opens_runs:
      help_text = (
        "import the functions (module:function) that saved files name; only for runs whose "
        "authors you trust"
      )
      self.add_argument(trust.FLAG, action="store_true", help=help_text)

  def parse_known_args(self, args=None, namespace=None):
    # The type of a flag may open its value while it is parsed.
    trust.begin_command(sys.argv[1:] if args is None else list(args))
    flags, remaining = super().parse_known_args(args, namespace)
    values = [argument.partition("=")[2] for argument in remaining]
    trust.begin_command([*vars(flags).values(), *values], everything=getattr(flags, "trust", False))
    return flags, remaining

  def parse(self, argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Parse `argv`, or `sys.argv` if None, into (flags, overrides as `KEY=VALUE`).

    Raises:
      UserError: an argument is neither a flag nor an override.
    """
    argv = sys.argv[1:] if argv is None else argv
    args, remaining = self.parse_known_args(_join_values(argv))
    for argument in remaining:
      if not argument.startswith("--config."):
        from t5x_like import listing

        suggestion = listing.suggest_flag(argument)
        raise UserError(
          f"{argument}: unknown argument{suggestion}; keys of the recipe are set by "
          "--config.KEY=VALUE"
        )
    return args, [argument.removeprefix("--config.") for argument in remaining]

  def format_help(self) -> str:
    text = super().format_help()
    if any(isinstance(action, _List) for action in self._actions):
      from t5x_like import listing

      text += f"\n{listing.overview()}\n"
    return text

  def error(self, message: str):
    raise UserError(f"{message}; see --help")


def step_number(text: str) -> int:
  """Parse a step number, as the type of a flag.

  Raises:
    argparse.ArgumentTypeError: it is no whole number, or too large.
  """
  if not text.isdecimal() or not text.isascii() or len(text) > 10 or int(text) >= _MAX_STEPS:
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
  for stream in (sys.stdout, sys.stderr):  # encodings such as Latin-1 lack many characters
    if isinstance(stream, io.TextIOWrapper):
      stream.reconfigure(errors="backslashreplace")
  # Imports and traces create millions of objects, but little garbage.
  gc.set_threshold(100_000, 20, 20)
  streams.protect_streams()
  try:
    code = main(sys.argv[1:])
  except KeyboardInterrupt:  # outside the training loop, which handles the signal itself
    print("interrupted", file=sys.stderr)
    code = _INTERRUPTED
  except Exception as error:
    code = _explain(error)
  is_distributed = "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized()
  if code == _INTERRUPTED or (is_distributed and code not in (0, EXIT_PREEMPTED)):
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
  sys.exit(code)


def _explain(error: Exception) -> int:
  """Print an unexpected exception, as a line or as a bug's traceback; return the exit code."""
  summary = f"{type(error).__name__}: {one_line(error)[:300]}"
  if is_out_of_memory(error):
    print(
      f"error: out of memory ({summary}); use a smaller batch, more devices, or "
      "--config.model.remat",
      file=sys.stderr,
    )
    return EXIT_USER_ERROR
  if is_transient(error):
    print(f"transient error: {summary}; run the same command again", file=sys.stderr)
    return EXIT_TRANSIENT
  if platforms := _unavailable_platforms(error):
    print(
      f"error: JAX_PLATFORMS={platforms}: jax cannot use these devices here ({summary}); install "
      "jax with their plugin, or unset the variable to use the devices that it finds",
      file=sys.stderr,
    )
    return EXIT_USER_ERROR
  print(escape_controls(traceback.format_exc()), end="", file=sys.stderr)
  return EXIT_BUG


def _unavailable_platforms(error: Exception) -> str:
  """Return the value of JAX_PLATFORMS if jax failed to open the devices it names, else ""."""
  frames = traceback.extract_tb(error.__traceback__)
  if frames and frames[-1].filename.endswith("jax/_src/xla_bridge.py"):
    return os.environ.get("JAX_PLATFORMS", "")
  return ""


def _join_values(argv: Sequence[str]) -> list[str]:
  """Rewrite `--config.key value` as `--config.key=value`."""
  joined = []
  arguments = iter(argv)
  for argument in arguments:
    if argument.startswith("--config.") and "=" not in argument:
      argument = f"{argument}={next(arguments, '')}"
    joined.append(argument)
  return joined
