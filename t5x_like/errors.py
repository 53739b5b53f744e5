"""Errors that users can fix, and exit codes.

Every program (`train`, `evaluate`, `predict`, the tools and launchers) wraps its `main` in `door`. A `UserError`
becomes one line on stderr that names the file, key or tensor, what was found, what was expected and what to do; any
other exception is a bug and keeps its traceback.
"""

import difflib
import functools
import sys
from collections.abc import Callable, Iterable

EXIT_USER_ERROR = 2
EXIT_PREEMPTED = 75  # EX_TEMPFAIL: the state was saved; run the same command again


class UserError(Exception):
  """A mistake or condition that the user can fix; its message is one complete line."""


class Preempted(Exception):
  """The run was asked to stop and has saved its state; the same command continues it."""


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
  """Returns `" (did you mean 'x'?)"` for the candidate nearest to `word`, or the empty string."""
  near = difflib.get_close_matches(str(word), [str(c) for c in candidates], n=1, cutoff=0.6)
  return f" (did you mean {near[0]!r}?)" if near else ""


def one_line(error: BaseException) -> str:
  """The message of an exception folded into a single line."""
  return " ".join(str(error).split()) or type(error).__name__


def door(main: Callable[..., int | None]) -> Callable[..., int]:
  """Wraps a program's `main`: `UserError` -> one line and exit code 2, `Preempted` -> one line and exit code 75."""

  @functools.wraps(main)
  def run(*args, **kwargs) -> int:
    try:
      return main(*args, **kwargs) or 0
    except UserError as error:
      print(f"error: {one_line(error)}", file=sys.stderr, flush=True)
      return EXIT_USER_ERROR
    except Preempted as stopped:
      print(f"preempted: {one_line(stopped)}", file=sys.stderr, flush=True)
      return EXIT_PREEMPTED

  return run
