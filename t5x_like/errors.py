"""The classes of errors and their exit codes: docs/reference/exit-codes.md.

Every program (`train`, `evaluate`, `predict`, the tools and launchers) wraps its `main` in `door`. An error of a class
below becomes one line on stderr that names the file, key or tensor, what was found, what was expected and what to do;
any other exception is a bug, or a fault of the machinery, and keeps its traceback.
"""

import difflib
import errno
import functools
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

EXIT_BUG = 1
EXIT_USER_ERROR = 2
EXIT_NUMERIC = 3
EXIT_DAMAGE = 4
EXIT_TRANSIENT = 69  # EX_UNAVAILABLE: launchers start the same command again
EXIT_PREEMPTED = 75  # EX_TEMPFAIL: the state was saved; run the same command again
# Starting again with the same command ends in the same way.
EXITS_NOT_RESTARTED = (EXIT_USER_ERROR, EXIT_NUMERIC, EXIT_DAMAGE)

_T = TypeVar("_T")
_TRANSIENT_ERRNOS = {
  getattr(errno, name)
  for name in (
    "EIO EAGAIN EBUSY EINTR ESTALE ETIMEDOUT ECONNRESET ECONNREFUSED ECONNABORTED EPIPE ENETDOWN ENETUNREACH ENETRESET "
    "EHOSTDOWN EHOSTUNREACH EREMOTEIO ENOTCONN"
  ).split()
  if hasattr(errno, name)
}
_TRANSIENT_STATUSES = (408, 425, 429, 500, 502, 503, 504)
_TRANSIENT_WORDS = (
  "UNAVAILABLE",
  "DEADLINE_EXCEEDED",
  "ABORTED",
  "Too Many Requests",
  "Service Unavailable",
  "SlowDown",
  "Connection reset",
  "Connection closed",
  "connection closed",
  "Connection refused",
  "Broken pipe",
  "timed out",
  "Timeout",
  "Temporary failure in name resolution",
  "Input/output error",
  "Stale file handle",
  "CURL error",
  *(f"HTTP {form}{status}" for form in ("", "response code: ") for status in _TRANSIENT_STATUSES),
)
# Of HTTP clients that need not be installed: aiohttp, requests, urllib3, botocore, fsspec.
_TRANSIENT_CLASSES = {
  "ChunkedEncodingError",
  "ClientConnectionError",
  "ClientPayloadError",
  "ConnectTimeout",
  "ConnectionClosedError",
  "EndpointConnectionError",
  "FSTimeoutError",
  "IncompleteRead",
  "ProxyError",
  "ReadTimeout",
  "ServerDisconnectedError",
  "TransportError",
}
_MEMORY_WORDS = ("Out of memory", "out of memory", "OOM", "failed to allocate", "Failed to allocate", "bad_alloc")


class UserError(Exception):
  """A mistake or condition that the user can fix; its message is one complete line."""


class NumericError(Exception):
  """The training itself went wrong (NaN, infinity, a spike); nothing bad was saved. Message: one complete line."""


class DamageError(Exception):
  """Every copy of something saved is corrupt; message: one complete line."""


class TransientError(Exception):
  """A fault outside the program (network, disk, another host) that outlasted the retries; starting again may help."""


class Preempted(Exception):
  """The run was asked to stop and has saved its state; the same command continues it."""


_ENDS = {
  UserError: ("error", EXIT_USER_ERROR),
  NumericError: ("numeric error", EXIT_NUMERIC),
  DamageError: ("damage", EXIT_DAMAGE),
  TransientError: ("transient error", EXIT_TRANSIENT),
  Preempted: ("preempted", EXIT_PREEMPTED),
}


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
  """Returns `" (did you mean 'x'?)"` for the candidate nearest to `word`, or the empty string."""
  near = difflib.get_close_matches(str(word), [str(c) for c in candidates], n=1, cutoff=0.6)
  return f" (did you mean {near[0]!r}?)" if near else ""


def one_line(error: BaseException) -> str:
  """The message of an exception folded into a single line."""
  return " ".join(str(error).split()) or type(error).__name__


def chain(error: BaseException | None) -> Iterator[BaseException]:
  """The exception, its cause, the cause of that, and so on."""
  seen: set[int] = set()
  while error is not None and id(error) not in seen:
    seen.add(id(error))
    yield error
    error = error.__cause__ or error.__context__


def is_out_of_memory(error: BaseException) -> bool:
  """Whether memory ran out, of the host or of a device."""
  return any(isinstance(e, MemoryError) or any(word in str(e) for word in _MEMORY_WORDS) for e in chain(error))


def is_transient(error: BaseException) -> bool:
  """Whether trying again later may help: errors of networks and disks, throttling, another process that is gone.

  Running out of memory is not among them, nor is a full disk or a lack of permission.
  """
  if exit_code(error) is not None:
    return isinstance(error, TransientError)
  return not is_out_of_memory(error) and any(map(_is_transient, chain(error)))


def _is_transient(error: BaseException) -> bool:
  if isinstance(error, TransientError | ConnectionError | TimeoutError):
    return True
  if any(kind.__name__ in _TRANSIENT_CLASSES for kind in type(error).__mro__):
    return True
  if isinstance(error, OSError) and error.errno is not None:
    return error.errno in _TRANSIENT_ERRNOS
  status = next((s for s in (getattr(error, n, None) for n in ("status", "code")) if isinstance(s, int)), None)
  return status in _TRANSIENT_STATUSES or any(word in str(error) for word in _TRANSIENT_WORDS)


def retried(call: Callable[[], _T], what, *, seconds: float | None = None, first_wait: float = 0.5) -> _T:
  """Returns `call()`, tried again after transient errors with waits that double up to 15 s.

  Args:
    call: safe to repeat.
    what: the path or address, for the message.
    seconds: how long to keep trying; by default `T5X_LIKE_RETRY_SECONDS` of the environment, or 120.
  Raises:
    TransientError: the last error was still transient when the time was up.
  """
  seconds = float(os.environ.get("T5X_LIKE_RETRY_SECONDS", 120)) if seconds is None else seconds
  start, wait = time.monotonic(), first_wait
  while True:
    try:
      return call()
    except Exception as error:
      if not is_transient(error):
        raise
      if time.monotonic() - start + wait > seconds:
        raise TransientError(
          f"{what}: {one_line(error)[:300]}; tried for {time.monotonic() - start:.0f} s; run the same command again"
        ) from error
    time.sleep(wait * random.uniform(0.75, 1.25))
    wait = min(2 * wait, 15)


def exit_code(error: BaseException) -> int | None:
  """The exit code of an error that has a class; None for others."""
  return next((code for kind, (_, code) in _ENDS.items() if isinstance(error, kind)), None)


def door(main: Callable[..., int | None]) -> Callable[..., int]:
  """Wraps a program's `main`: an error of a class above becomes one line and its exit code."""

  @functools.wraps(main)
  def run(*args, **kwargs) -> int:
    try:
      return main(*args, **kwargs) or 0
    except tuple(_ENDS) as error:
      word, code = next(end for kind, end in _ENDS.items() if isinstance(error, kind))
      print(f"{word}: {one_line(error)}", file=sys.stderr, flush=True)
      return code

  return run
