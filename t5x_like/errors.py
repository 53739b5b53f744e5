"""Define the error classes and their exit codes: docs/reference/exit-codes.md.

Every program (`train`, `evaluate`, `predict`, the tools and launchers) decorates its `main` with
`handle_errors`. An error of a class below becomes one line on stderr that names the file, key or
tensor, the value, the expectation and the remedy. Any other exception is a bug or a machine fault,
and keeps its traceback.
"""

import difflib
import functools
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from t5x_like.files import store_errors, streams
from t5x_like.files.store_errors import ErrorKind, error_chain
from t5x_like.terminal_text import escape_controls

EXIT_BUG = 1
EXIT_USER_ERROR = 2
EXIT_NUMERIC = 3
EXIT_DAMAGE = 4
EXIT_TRANSIENT = 69  # EX_UNAVAILABLE: launchers start the same command again
EXIT_PREEMPTED = 75  # EX_TEMPFAIL: the state was saved; run the same command again
# Launchers do not restart after these codes, as the same command would fail again.
EXITS_NOT_RESTARTED = (EXIT_USER_ERROR, EXIT_NUMERIC, EXIT_DAMAGE)

_T = TypeVar("_T")
_RUN_AGAIN = "run the same command again"
_WARNING_SECONDS = 30.0  # the least time between two warnings of retries
_last_warning = -_WARNING_SECONDS  # time.monotonic() of the last warning
_log = logging.getLogger("t5x_like")
_MEMORY_PHRASES = (
  "Out of memory",
  "out of memory",
  "OOM",
  "failed to allocate",
  "Failed to allocate",
  "bad_alloc",
)


_READ_REMEDIES = {
  FileNotFoundError: "check the path",
  NotADirectoryError: "check the path",
  IsADirectoryError: "name a file in it",
  PermissionError: "let this user read it",
  UnicodeDecodeError: "save it as UTF-8",
}


class UserError(Exception):
  """A mistake or condition that the user can fix; its message is one complete line."""


class NumericError(Exception):
  """A numeric failure of training (NaN, infinity, a spike), of which nothing was saved.

  The message is one complete line.
  """


class DamageError(Exception):
  """Every copy of saved data is corrupt; the message is one complete line."""


class TransientError(Exception):
  """A fault outside the program (network, disk, another host) that outlasted the retries.

  A restart may help.
  """


class Preempted(Exception):
  """A requested stop, with the run's state saved; the same command continues it."""


_EXITS = {
  UserError: ("error", EXIT_USER_ERROR),
  NumericError: ("numeric error", EXIT_NUMERIC),
  DamageError: ("damage", EXIT_DAMAGE),
  TransientError: ("transient error", EXIT_TRANSIENT),
  Preempted: ("preempted", EXIT_PREEMPTED),
}


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
  """Return `" (did you mean 'x'?)"` for the candidate nearest to a name, or "" if none is near."""
  matches = difflib.get_close_matches(str(name), [str(c) for c in candidates], n=1, cutoff=0.6)
  return f" (did you mean {matches[0]!r}?)" if matches else ""


def one_line(error: BaseException) -> str:
  """Return an exception's message on a single line, its control characters escaped."""
  return escape_controls(" ".join(str(error).split())) or type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
  """Return whether the host or a device ran out of memory."""
  return any(
    isinstance(e, MemoryError) or any(phrase in str(e) for phrase in _MEMORY_PHRASES)
    for e in error_chain(error)
  )


def is_transient(error: BaseException) -> bool:
  """Return whether an error may disappear when the operation is repeated.

  Errors of networks and disks, throttling and the loss of another process are transient. Lack of
  memory, a full disk and missing permissions are not.
  """
  if exit_code(error) is not None:
    return error_class(error) is TransientError
  return not is_out_of_memory(error) and store_errors.error_kind(error) is ErrorKind.TRANSIENT


def translate_error(
  error: Exception, address: str, operation: str, kind: ErrorKind | None = None
) -> Exception:
  """Translate an object store's error to a class of this module, unless it has one or is a bug.

  Args:
    address: the address of the object or directory.
    operation: the operation that failed: `read`, `listed`, `written` or `deleted`.
    kind: the kind of error, if the caller knows it; None derives it from the error.
  """
  if exit_code(error) is not None or is_out_of_memory(error):
    return error
  kind = kind or store_errors.error_kind(error)
  if kind is None and not isinstance(error, OSError | ValueError):
    return error
  if kind is ErrorKind.ABSENT:
    return FileNotFoundError(f"{address}: {kind.value}")
  error_type = {ErrorKind.DAMAGED: DamageError, ErrorKind.TRANSIENT: TransientError}.get(
    kind, UserError
  )
  return error_type(store_errors.error_message(kind, address, operation, error))


def unreadable_file_error(where: str, error: Exception) -> UserError:
  """Return the error of a file that cannot be read, with the remedy for its cause.

  Args:
    where: the file, with the flag or key that names it and the line if they are known.
    error: the error of the operating system or the decoder.
  """
  remedy = _READ_REMEDIES.get(type(error), "copy it again")
  return UserError(f"{where}: cannot be read ({one_line(error)}); {remedy}")


def retry(
  call: Callable[[], _T], target, *, seconds: float | None = None, first_wait: float = 0.5
) -> _T:
  """Return `call()`, retrying after transient errors with waits that double up to 15 s.

  Args:
    call: a function that is safe to repeat.
    target: the path or address, for the message.
    seconds: how long to keep trying; default: the environment's `T5X_LIKE_RETRY_SECONDS`, or 120.
  Raises:
    TransientError: the last attempt failed with a transient error too.
    UserError: the variable is no number.
  """
  variable = os.environ.get("T5X_LIKE_RETRY_SECONDS", "120")
  if not variable.replace(".", "", 1).isdecimal():
    raise UserError(f"T5X_LIKE_RETRY_SECONDS: found {variable!r}, expected a number of seconds")
  seconds = float(variable) if seconds is None else seconds
  start = time.monotonic()
  wait = first_wait
  failures = 0
  reason = ""
  while True:
    try:
      result = call()
      if failures:
        seconds_spent = time.monotonic() - start
        _warn_of_retries(
          f"{target}: {reason}; worked at attempt {failures + 1}, after {seconds_spent:.0f} s"
        )
      return result
    except Exception as error:
      if not is_transient(error):
        raise
      failures += 1
      reason = one_line(error)[:300]
      if time.monotonic() - start + wait > seconds:
        times = "once" if failures == 1 else f"{failures} times"
        raise TransientError(
          f"{target}: {reason}; tried {times} in {time.monotonic() - start:.0f} s; run the same "
          "command again"
        ) from error
    time.sleep(wait * random.uniform(0.75, 1.25))
    wait = min(2 * wait, 15)


def _warn_of_retries(message: str) -> None:
  """Log a warning, but at most every 30 s, as a slow store fails many requests at once."""
  global _last_warning
  if time.monotonic() - _last_warning > _WARNING_SECONDS:
    _last_warning = time.monotonic()
    _log.warning("%s", message)


def error_class(error: BaseException) -> type[Exception] | None:
  """Return the class of this module that an error has; None for other errors.

  A UserError that was raised from a temporary fault of the operating system, such as EIO or ESTALE
  on a network disk, counts as a TransientError, whatever its message advises.
  """
  for candidate in _EXITS:
    if isinstance(error, candidate):
      break
  else:
    return None
  cause = error.__cause__
  if candidate is UserError and isinstance(cause, OSError):
    if isinstance(cause, BrokenPipeError):
      return UserError
    if store_errors.kind_of_errno(cause.errno) is ErrorKind.TRANSIENT:
      return TransientError
  return candidate


def exit_code(error: BaseException) -> int | None:
  """Return the exit code of an error of a class of this module; None for other errors."""
  class_of_error = error_class(error)
  return None if class_of_error is None else _EXITS[class_of_error][1]


def handle_errors(
  main: Callable[..., int | None] | None = None, *, prints_results: bool = True
) -> Callable:
  """Wrap a program's `main`: print its errors as one line each and return their exit codes.

  Output that cannot be written does not end the program. If the reader of a pipe has closed it, the
  output is dropped silently. Otherwise, as on a full disk, a line on stderr reports it.

  Args:
    prints_results: whether the program fails if its output cannot be written; False if stdout is
      only a log.
  """
  if main is None:
    return functools.partial(handle_errors, prints_results=prints_results)

  @functools.wraps(main)
  def run(*args, **kwargs) -> int:
    streams.protect_streams()
    try:
      code = main(*args, **kwargs) or 0
    except tuple(_EXITS) as error:
      error_type = error_class(error)
      message = one_line(error)
      if error_type is TransientError and not isinstance(error, TransientError):
        if _RUN_AGAIN not in message:
          message += f"; {_RUN_AGAIN}"
      label, code = _EXITS[error_type]
      print(f"{label}: {message}", file=sys.stderr, flush=True)
    return _code_with_output(code, prints_results)

  return run


def _code_with_output(code: int, prints_results: bool) -> int:
  """Flush stdout at a program's end, report output that was lost, and return the exit code."""
  if not isinstance(sys.stdout, streams.GuardedStream):
    return code
  sys.stdout.flush()
  if not sys.stdout.is_broken:
    return code
  fails = prints_results and code == 0
  label = "error" if fails else "warning"
  print(
    f"{label}: stdout cannot be written: {sys.stdout.error.strerror}; output was lost",
    file=sys.stderr,
    flush=True,
  )
  return EXIT_USER_ERROR if fails else code
