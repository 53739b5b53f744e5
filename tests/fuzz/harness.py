"""Hostile cases, run one after the other in this process. Each may end in success, or in one line
of a known class.

    sandbox = Sandbox(tmp_path)
    for number in range(500):
      random = generator(SEED, number)
      sandbox.run(f"seed {SEED}, case {number}: …", lambda workdir: train.main([…,
      f"--workdir={workdir}"]))
    sandbox.check(least=500)

Anything else is a failure: a traceback, a call of `sys.exit`, no line or several, a hang, a file
written outside the case's own directory, or memory that grows beyond a bound. Functions that raise
instead of printing are wrapped: `lambda workdir: handle_errors(function)(…)`.
"""

import collections
import contextlib
import faulthandler
import gc
import io
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.runs import run

_LINE = re.compile(r"(error|numeric error|damage|transient error|preempted): \S.*\n")
_CODES = {"error": 2, "numeric error": 3, "damage": 4, "transient error": 69, "preempted": 75}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events of the audit hook: the places of the paths among their arguments, each with that of its
# directory's descriptor.
_CHANGES = {
  "os.mkdir": ((0, 2),),
  "os.rename": ((0, 2), (1, 3)),
  "os.remove": ((0, 1),),
  "os.rmdir": ((0, 1),),
  "os.link": ((1, 3),),
  "os.symlink": ((1, 2),),
  "os.truncate": ((0, 0),),
}
_HARMLESS = ("/dev/null", "/dev/tty", "/proc/")
SOUND = ("success", "refusal")


class Outcome(NamedTuple):
  """How a case ended.

  Attributes:
    end: "success", "refusal", "traceback", "exit", "lines", "hang", "outside" or "memory".
    told: the line of a refusal, or what went wrong.
  """

  case: str
  end: str
  told: str


class Hang(BaseException):
  """Raised into a case that takes too long; not an Exception, so that no handler of the program
  takes it."""


def generator(seed: int, case: int) -> random.Random:
  """Return the generator of one case, which does not depend on the cases before it."""
  return random.Random(f"{seed}/{case}")


class Sandbox:
  """A directory in which cases run, each in a fresh one below it.

  Args:
    folder: an empty directory, such as `tmp_path`.
    seconds: the most that a case may take.
    memory: bytes by which a case may grow the process at its peak.
    kept: a directory of compiled programs, which cases may write too.

  Attributes:
    outcomes: of the cases so far.
  """

  def __init__(
    self, folder, *, seconds: float = 20, memory: int = 2 * 2**30, kept: pathlib.Path | None = None
  ):
    self.outcomes: list[Outcome] = []
    self._kept = (kept.resolve(),) if kept else ()
    self._folder = pathlib.Path(folder).resolve()
    self._seconds = seconds
    self._memory = memory
    gc.collect()  # or copies of addresses that earlier tests left would be removed during a case

  def run(
    self, case: str, call: Callable[[pathlib.Path], int | None], seconds: float | None = None
  ) -> Outcome:
    """Run `call(directory of the case)`, which returns an exit code, and remember how it ended.

    Args:
      seconds: the most that this case may take, such as one that prepares data for all that follow.
    """
    seconds = seconds or self._seconds
    case_folder = self._folder / f"case{len(self.outcomes)}" / "inside"
    case_folder.mkdir(parents=True)
    shared = self._folder / "tmp"  # where a program may keep what it makes once
    shared.mkdir(exist_ok=True)
    beside = _listing(case_folder.parent)
    before = _resident()
    said = io.StringIO()
    try:
      with (
        _timed(seconds),
        _bounded(self._memory),
        _watched(case_folder, shared, *self._kept) as outside,
      ):
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
          code = call(case_folder)
      end, told = _judged(code, said.getvalue())
    except Hang:
      end = "hang"
      told = f"more than {seconds} s; {_place()}"
    except MemoryError:
      end = "memory"
      told = _place()
    except SystemExit as stop:
      end = "exit"
      told = f"sys.exit({stop.code!r})"
    except Exception:
      end = "traceback"
      told = _place()
    grown = _peak() - before
    if grown > self._memory:
      end = "memory"
      told = f"grew by {grown / 2**30:.1f} GiB; {told}"
    outside += [
      str(path)
      for path in _listing(case_folder.parent) - beside
      if not path.is_relative_to(case_folder)
    ]
    if outside:
      end = "outside"
      told = f"{', '.join(dict.fromkeys(outside))}; {told}"
    shutil.rmtree(case_folder.parent, ignore_errors=True)
    self.outcomes.append(Outcome(case, end, told))
    return self.outcomes[-1]

  def figures(self) -> str:
    """Return how many cases ended in which way, in one line."""
    count = collections.Counter(outcome.end for outcome in self.outcomes)
    ends = (*SOUND, "traceback", "exit", "lines", "hang", "outside", "memory")
    return f"{len(self.outcomes)} cases: " + ", ".join(f"{end} {count[end]}" for end in ends)

  def check(self, least: int = 1) -> None:
    """Print the figures, and fail with every case that ended as none may, or if there were fewer
    than `least`."""
    print(self.figures())
    bad = [outcome for outcome in self.outcomes if outcome.end not in SOUND]
    assert not bad, "\n".join(
      [self.figures(), *(f"{one.end}: {one.case}: {one.told}" for one in bad)]
    )
    assert len(self.outcomes) >= least, self.figures()


def alone(function: Callable[..., None], *arguments, cache: pathlib.Path) -> None:
  """Call `function(*arguments)` of a test module in a process that has one device, and fail if it
  fails.

  Programs of one device run no collectives, so they may be read from a cache (see `uncached`): each
  is compiled once for all cases and processes. A case that crashes or never comes back ends this
  process and not a worker of pytest.
  """
  program = (
    f"import sys; sys.path.append('tests'); from {function.__module__} import "
    f"{function.__name__} as function"
  )
  program += f"; function(*{arguments!r})"
  code, said = run([sys.executable, "-c", program], cache=cache)
  print(said[-2_000:])
  assert code == 0, said[-20_000:]


def _judged(code: int | None, said: str) -> tuple[str, str]:
  """Return (end, what was told) of a call that returned an exit code."""
  found = _LINE.fullmatch(said)
  if not code:
    return ("success", said) if "Traceback" not in said else ("traceback", said)
  if found and _CODES[found[1]] == code:
    return "refusal", said.strip()
  return "lines", f"exit code {code} and {said.count(chr(10))} lines on stderr: {said[-500:]!r}"


def _place() -> str:
  """Return the exception being handled, and where it was raised, in one line."""
  kind, error, trace = sys.exc_info()
  frames = traceback.extract_tb(trace)
  where = " < ".join(f"{pathlib.Path(f.filename).name}:{f.lineno}" for f in reversed(frames[-8:]))
  return f"{kind.__name__}: {' '.join(str(error).split())[:300]} ({where})"


@contextlib.contextmanager
def _timed(seconds: float) -> Iterator[None]:
  """Raise Hang after some seconds; a call into compiled code that never returns ends the process
  with its stacks."""

  def late(*_):
    raise Hang

  before = signal.signal(signal.SIGALRM, late)
  signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
  faulthandler.dump_traceback_later(seconds * 3, exit=True, file=sys.__stderr__)
  try:
    yield
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()
    signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _bounded(memory: int) -> Iterator[None]:
  """Let the address space grow by no more than a few times the bound, so that a bomb fails and the
  machine lives."""
  soft, hard = resource.getrlimit(resource.RLIMIT_AS)
  with contextlib.suppress(OSError):
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
  resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + 4 * memory, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


_watching: list[tuple[tuple[pathlib.Path, ...], list[str]]] = []


@contextlib.contextmanager
def _watched(
  case_folder: pathlib.Path, shared: pathlib.Path, *kept: pathlib.Path
) -> Iterator[list[str]]:
  """Collect the paths that Python writes, makes or removes outside of these; `shared` has temporary
  files."""
  temporary = tempfile.tempdir
  found = []
  if _audit not in _hooked:
    sys.addaudithook(_audit)
    _hooked.append(_audit)
  tempfile.tempdir = str(shared)
  _watching.append(((case_folder, shared, *kept), found))
  try:
    yield found
  finally:
    _watching.pop()
    tempfile.tempdir = temporary


_hooked: list[Callable] = []


def _audit(event: str, arguments: tuple) -> None:
  if not _watching:
    return
  if event == "open":
    path, mode, flags = arguments
    writes = isinstance(flags, int) and flags & _WRITES or set(mode or "") & set("wax+")
    paths = ((path, -1),) if writes else ()
  else:
    paths = tuple((arguments[path], arguments[folder]) for path, folder in _CHANGES.get(event, ()))
  allowed, found = _watching[-1]
  for path, folder in paths:
    if isinstance(path, (str, bytes, os.PathLike)):
      below = (
        os.readlink(f"/proc/self/fd/{folder}") if isinstance(folder, int) and folder >= 0 else "."
      )
      absolute = os.path.abspath(os.path.join(below, os.fsdecode(path)))
      kept = (
        absolute.startswith((*(f"{one}/" for one in allowed), *_HARMLESS))
        or "__pycache__" in absolute
      )
      there = event == "os.mkdir" and os.path.isdir(absolute)
      if not kept and not there and absolute not in map(str, allowed):
        found.append(absolute)


def _listing(folder: pathlib.Path) -> set[pathlib.Path]:
  """Return every path below a directory: what compiled code writes is seen beside the case at
  least."""
  return set(folder.rglob("*"))


def _status(key: str) -> int:
  found = re.search(
    rf"^{key}:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text(), re.MULTILINE
  )
  return int(found[1]) * 1024


def _resident() -> int:
  return _status("VmRSS")


def _peak() -> int:
  return _status("VmHWM")
