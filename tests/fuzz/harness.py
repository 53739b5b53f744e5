"""Run hostile cases, each of which must end in success or in one line of a known error class.

    sandbox = Sandbox(tmp_path)
    for number in range(500):
      random = generator(SEED, number)
      sandbox.run(
        f"seed {SEED}, case {number}: …", lambda workdir: train.main([…, f"--workdir={workdir}"])
      )
    sandbox.check(min_cases=500)

Anything else is a failure: a traceback, a call of `sys.exit`, no line or several, a hang, a file
written outside the case's directory, or memory that grows beyond a bound. Functions that raise
instead of printing are wrapped: `lambda workdir: handle_errors(function)(…)`.
"""

import collections
import contextlib
import faulthandler
import functools
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
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from t5x_like.errors import handle_errors
from tests.runs import run

_LINE = re.compile(r"(error|numeric error|damage|transient error|preempted): \S.*\n")
_CODES = {"error": 2, "numeric error": 3, "damage": 4, "transient error": 69, "preempted": 75}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events of the audit hook: the indices of the paths among their arguments, each with the index of
# its directory's descriptor.
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
    message: the line of a refusal, or a description of the failure.
  """

  case: str
  end: str
  message: str


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
    allowed_folder: a directory of compiled programs, which cases may write too.

  Attributes:
    outcomes: how the cases ended, in their order.
  """

  def __init__(
    self,
    folder,
    *,
    seconds: float = 20,
    memory: int = 2 * 2**30,
    allowed_folder: pathlib.Path | None = None,
  ):
    self.outcomes: list[Outcome] = []
    self._allowed_folders = (allowed_folder.resolve(),) if allowed_folder else ()
    self._folder = pathlib.Path(folder).resolve()
    self._seconds = seconds
    self._memory = memory
    gc.collect()  # else copies of addresses that earlier tests left are removed during a case

  def run(
    self,
    case: str | list[str],
    call: Callable[[pathlib.Path], int | None],
    seconds: float | None = None,
  ) -> Outcome:
    """Run `call(directory of the case)`, which returns an exit code; note and return how it ended.

    Args:
      case: a description, or its parts, to which the call may append.
      seconds: the most that this case may take, such as one that prepares data for all that follow.
    """
    seconds = seconds or self._seconds
    case_folder = self._folder / f"case{len(self.outcomes)}" / "inside"
    case_folder.mkdir(parents=True)
    shared = self._folder / "tmp"  # where a program may keep what it makes once
    shared.mkdir(exist_ok=True)
    paths_before = _listing(case_folder.parent)
    memory_before = _resident()
    stderr = io.StringIO()
    try:
      with (
        _limit_time(seconds),
        _limit_memory(self._memory),
        _watch_paths(case_folder, shared, *self._allowed_folders) as outside,
      ):
        with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()):
          code = call(case_folder)
      end, message = _judge(code, stderr.getvalue())
    except Hang:
      end = "hang"
      message = f"more than {seconds} s; {_place()}"
    except MemoryError:
      end = "memory"
      message = _place()
    except SystemExit as stop:
      end = "exit"
      message = f"sys.exit({stop.code!r})"
    except Exception:
      end = "traceback"
      message = _place()
    growth = _peak() - memory_before
    if growth > self._memory:
      end = "memory"
      message = f"grew by {growth / 2**30:.1f} GiB; {message}"
    for path in _listing(case_folder.parent) - paths_before:
      if not path.is_relative_to(case_folder):
        outside.append(str(path))
    if outside:
      end = "outside"
      message = f"{', '.join(dict.fromkeys(outside))}; {message}"
    shutil.rmtree(case_folder.parent, ignore_errors=True)
    description = case if isinstance(case, str) else " ".join(case)
    self.outcomes.append(Outcome(description, end, message))
    return self.outcomes[-1]

  def figures(self) -> str:
    """Return how many cases ended in which way, in one line."""
    count = collections.Counter(outcome.end for outcome in self.outcomes)
    ends = (*SOUND, "traceback", "exit", "lines", "hang", "outside", "memory")
    return f"{len(self.outcomes)} cases: " + ", ".join(f"{end} {count[end]}" for end in ends)

  def check(self, min_cases: int = 1) -> None:
    """Print the figures; fail with the cases that ended as none may, or if there were too few."""
    print(self.figures())
    failures = []
    for outcome in self.outcomes:
      if outcome.end not in SOUND:
        failures.append(f"{outcome.end}: {outcome.case}: {outcome.message}")
    assert not failures, "\n".join([self.figures(), *failures])
    assert len(self.outcomes) >= min_cases, self.figures()


def run_cases(
  make_case: Callable[[random.Random, pathlib.Path], tuple[str, Callable[[pathlib.Path], Any]]],
  folder: pathlib.Path,
  seeds: Iterable[int],
) -> None:
  """Run the cases of some seeds; fail with all that ended as none may, or that ran anything.

  Args:
    make_case: makes the files of a case in a directory, and returns (a description, the function to
      call with the only directory where it may write).
    folder: an empty directory.
  """
  seeds = list(seeds)
  sandbox = Sandbox(folder / "sandbox", memory=2**30)
  executed = []
  for seed in seeds:
    files = folder / "files" / str(seed)
    files.mkdir(parents=True)
    change, call = make_case(generator(seed, 0), files)
    with _watch_programs() as programs:
      sandbox.run(f"seed {seed}: {change}", handle_errors(call))
    executed += [f"{change}: {program}" for program in programs]
  sandbox.check(min_cases=len(seeds))
  assert not executed, "\n".join(executed)


def call_in_process(function: Callable[..., None], *arguments, cache: pathlib.Path) -> None:
  """Call `function(*arguments)` of a test module in a process of one device; fail if it fails.

  Programs of one device run no collectives, so they may be read from a cache (see `uncached`): each
  is compiled once for all cases and processes. A case that crashes or never comes back ends this
  process and not a worker of pytest.
  """
  program = (
    f"import sys; sys.path.append('tests'); from {function.__module__} import "
    f"{function.__name__} as function"
  )
  program += f"; function(*{arguments!r})"
  code, output = run([sys.executable, "-c", program], cache=cache)
  print(output[-2_000:])
  assert code == 0, output[-20_000:]


def _judge(code: int | None, stderr: str) -> tuple[str, str]:
  """Return (end, message) of a call that returned an exit code."""
  line = _LINE.fullmatch(stderr)
  if not code:
    return ("success", stderr) if "Traceback" not in stderr else ("traceback", stderr)
  if line and _CODES[line[1]] == code:
    return "refusal", stderr.strip()
  return "lines", f"exit code {code} and {stderr.count(chr(10))} lines on stderr: {stderr[-500:]!r}"


def _place() -> str:
  """Return the exception being handled, and where it was raised, in one line."""
  kind, error, trace = sys.exc_info()
  frames = traceback.extract_tb(trace)
  where = " < ".join(f"{pathlib.Path(f.filename).name}:{f.lineno}" for f in reversed(frames[-8:]))
  return f"{kind.__name__}: {' '.join(str(error).split())[:300]} ({where})"


@contextlib.contextmanager
def _limit_time(seconds: float) -> Iterator[None]:
  """Raise Hang after some seconds.

  A call into compiled code that never returns ends the process and prints its stacks.
  """

  def raise_hang(*_):
    raise Hang

  earlier_handler = signal.signal(signal.SIGALRM, raise_hang)
  signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
  faulthandler.dump_traceback_later(seconds * 3, exit=True, file=sys.__stderr__)
  try:
    yield
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()
    signal.signal(signal.SIGALRM, earlier_handler)


@contextlib.contextmanager
def _limit_memory(memory: int) -> Iterator[None]:
  """Limit the growth of the address space to four times the bound, which protects the machine."""
  soft, hard = resource.getrlimit(resource.RLIMIT_AS)
  with contextlib.suppress(OSError):
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
  resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + 4 * memory, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


_FORBIDDEN = (
  "os.system",
  "os.exec",
  "os.posix_spawn",
  "subprocess.Popen",
  "pickle.find_class",
  "os.fork",
)
_program_watches: list[list[str]] = []


@contextlib.contextmanager
def _watch_programs() -> Iterator[list[str]]:
  """Collect the programs that are started and the classes that are unpickled."""
  _add_hook()
  _program_watches.append([])
  try:
    yield _program_watches[-1]
  finally:
    _program_watches.pop()


_watching: list[tuple[tuple[pathlib.Path, ...], list[str]]] = []


@contextlib.contextmanager
def _watch_paths(
  case_folder: pathlib.Path, shared: pathlib.Path, *allowed_folders: pathlib.Path
) -> Iterator[list[str]]:
  """Collect the paths that Python writes, makes or removes outside of these folders.

  `shared` holds temporary files.
  """
  temporary = tempfile.tempdir
  outside = []
  _add_hook()
  tempfile.tempdir = str(shared)
  _watching.append(((case_folder, shared, *allowed_folders), outside))
  try:
    yield outside
  finally:
    _watching.pop()
    tempfile.tempdir = temporary


@functools.cache
def _add_hook() -> None:
  sys.addaudithook(_audit)  # stays for good


def _audit(event: str, arguments: tuple) -> None:
  if _program_watches and event in _FORBIDDEN:
    _program_watches[-1].append(f"{event} {str(arguments)[:100]}")
  if not _watching:
    return
  if event == "open":
    path, mode, flags = arguments
    writes = isinstance(flags, int) and flags & _WRITES or set(mode or "") & set("wax+")
    paths = ((path, -1),) if writes else ()
  else:
    paths = tuple((arguments[path], arguments[folder]) for path, folder in _CHANGES.get(event, ()))
  allowed, outside = _watching[-1]
  for path, folder in paths:
    if isinstance(path, (str, bytes, os.PathLike)):
      base = "."
      if isinstance(folder, int) and folder >= 0:
        base = os.readlink(f"/proc/self/fd/{folder}")
      absolute = os.path.abspath(os.path.join(base, os.fsdecode(path)))
      allowed_prefixes = (*(f"{allowed_folder}/" for allowed_folder in allowed), *_HARMLESS)
      is_allowed = absolute.startswith(allowed_prefixes) or "__pycache__" in absolute
      exists = event == "os.mkdir" and os.path.isdir(absolute)
      if not is_allowed and not exists and absolute not in map(str, allowed):
        outside.append(absolute)


def _listing(folder: pathlib.Path) -> set[pathlib.Path]:
  """Return every path below a directory, which compiled code may write without the audit hook."""
  return set(folder.rglob("*"))


def _status(key: str) -> int:
  match = re.search(
    rf"^{key}:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text(), re.MULTILINE
  )
  return int(match[1]) * 1024


def _resident() -> int:
  return _status("VmRSS")


def _peak() -> int:
  return _status("VmHWM")
