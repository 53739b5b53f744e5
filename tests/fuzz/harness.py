"""Run hostile cases, each of which must end in success or in one line of a known error class.

    sandbox = Sandbox(tmp_path)
    for number in range(500):
      random = generator(SEED, number)
      sandbox.run(
        f"seed {SEED}, case {number}: …", lambda workdir: train.main([…, f"--workdir={workdir}"])
      )
    sandbox.check(min_cases=500)

Any other ending is a failure: a traceback, a call of `sys.exit`, no line or several lines on
stderr, a hang, a file written outside the directory of the case, or memory that grows beyond a
limit. Wrap a function that raises errors instead of printing them:
`lambda workdir: handle_errors(function)(…)`.

`T5X_LIKE_FUZZ_SEED` in the environment replaces the seed of every fuzzer.
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
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from t5x_like.errors import handle_errors
from tests.runs import run

_ERROR_LINE = re.compile(r"(error|numeric error|damage|transient error|preempted): \S.*\n")
_EXIT_CODES = {"error": 2, "numeric error": 3, "damage": 4, "transient error": 69, "preempted": 75}
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Audit events that change the file system. Each maps to pairs of indices into its arguments: of a
# path, and of the descriptor of the directory that the path is relative to.
_PATH_ARGUMENTS = {
  "os.mkdir": ((0, 2),),
  "os.rename": ((0, 2), (1, 3)),
  "os.remove": ((0, 1),),
  "os.rmdir": ((0, 1),),
  "os.link": ((1, 3),),
  "os.symlink": ((1, 2),),
  "os.truncate": ((0, 0),),
}
_ALWAYS_ALLOWED = ("/dev/null", "/dev/tty", "/proc/")
_WAIT_FACTOR = 6  # a case may wait for a busy machine this many times its limit
_ACCEPTED_ENDS = ("success", "refusal")


class Outcome(NamedTuple):
  """How a case ended.

  Attributes:
    case: the description of the case.
    end: "success", "refusal", "traceback", "exit", "lines", "hang", "outside" or "memory".
    message: the error line of a refusal, or a description of the failure.
  """

  case: str
  end: str
  message: str


class Hang(BaseException):
  """Interrupt a case that takes too long.

  It does not derive from Exception, so no handler in the program under test catches it.
  """


def fuzz_seed(default: int) -> int:
  """Return the seed of a fuzzer: `T5X_LIKE_FUZZ_SEED`, or `default` without it."""
  return int(os.environ.get("T5X_LIKE_FUZZ_SEED") or default)


def generator(seed: int, case: int) -> random.Random:
  """Return the random generator of one case, which is independent of all other cases."""
  return random.Random(f"{seed}/{case}")


class Sandbox:
  """A runner of cases, each in a new directory below a common one.

  Args:
    folder: an empty directory, such as `tmp_path`.
    seconds: the time limit of a case, in processor time of its thread.
    memory: the number of bytes by which a case may raise the peak memory of the process.
    allowed_folder: a second directory where cases may write, such as a cache of compiled programs.

  Attributes:
    outcomes: the outcomes of the cases, in the order in which they ran.
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
    # Otherwise temporary files of earlier tests could be collected, and removed, during a case.
    gc.collect()

  def run(
    self,
    case: str | list[str],
    call: Callable[[pathlib.Path], int | None],
    seconds: float | None = None,
  ) -> Outcome:
    """Run `call(directory of the case)`, which returns an exit code; record and return the outcome.

    Args:
      case: a description, or a list of its parts, to which the call may append.
      seconds: another time limit, for a case that prepares data for those after it.
    """
    seconds = seconds or self._seconds
    case_folder = self._folder / f"case{len(self.outcomes)}" / "inside"
    case_folder.mkdir(parents=True)
    temporary_folder = self._folder / "tmp"  # common to all cases
    temporary_folder.mkdir(exist_ok=True)
    paths_before = _paths_below(case_folder.parent)
    memory_before = _resident_memory()
    stderr = io.StringIO()
    try:
      with (
        _limit_time(seconds),
        _limit_memory(self._memory),
        _watch_paths(case_folder, temporary_folder, *self._allowed_folders) as outside,
      ):
        with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()):
          code = call(case_folder)
      end, message = _judge(code, stderr.getvalue())
    except Hang:
      end = "hang"
      message = f"more than {seconds} s; {_describe_exception()}"
    except MemoryError:
      end = "memory"
      message = _describe_exception()
    except SystemExit as stop:
      end = "exit"
      message = f"sys.exit({stop.code!r})"
    except Exception:
      end = "traceback"
      message = _describe_exception()
    growth = _peak_memory() - memory_before
    if growth > self._memory:
      end = "memory"
      message = f"grew by {growth / 2**30:.1f} GiB; {message}"
    for path in _paths_below(case_folder.parent) - paths_before:
      if not path.is_relative_to(case_folder):
        outside.append(str(path))
    if outside:
      end = "outside"
      message = f"{', '.join(dict.fromkeys(outside))}; {message}"
    shutil.rmtree(case_folder.parent, ignore_errors=True)
    description = case if isinstance(case, str) else " ".join(case)
    self.outcomes.append(Outcome(description, end, message))
    return self.outcomes[-1]

  def summarize(self) -> str:
    """Return the number of cases of each end, in one line."""
    counts = collections.Counter(outcome.end for outcome in self.outcomes)
    ends = (*_ACCEPTED_ENDS, "traceback", "exit", "lines", "hang", "outside", "memory")
    return f"{len(self.outcomes)} cases: " + ", ".join(f"{end} {counts[end]}" for end in ends)

  def check(self, min_cases: int = 1) -> None:
    """Print a summary; fail if a case failed or fewer than `min_cases` ran."""
    print(self.summarize())
    failures = []
    for outcome in self.outcomes:
      if outcome.end not in _ACCEPTED_ENDS:
        failures.append(f"{outcome.end}: {outcome.case}: {outcome.message}")
    assert not failures, "\n".join([self.summarize(), *failures])
    assert len(self.outcomes) >= min_cases, self.summarize()


def run_cases(
  make_case: Callable[[random.Random, pathlib.Path], tuple[str, Callable[[pathlib.Path], Any]]],
  folder: pathlib.Path,
  seeds: Iterable[int],
) -> None:
  """Run one case for each seed; fail if a case failed, started a program or unpickled a class.

  Args:
    make_case: writes the files of a case into a directory, and returns a description and the
      function to test, whose argument is the only directory where it may write.
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
  """Call `function(*arguments)` of a test module in a new process that has one device.

  Programs for one device contain no collectives, so they can be read from a cache (see `uncached`):
  each is compiled once for all cases and processes. A case that crashes or never returns ends the
  new process and not a worker of pytest.
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
  line = _ERROR_LINE.fullmatch(stderr)
  if not code:
    return ("success", stderr) if "Traceback" not in stderr else ("traceback", stderr)
  if line and _EXIT_CODES[line[1]] == code:
    return "refusal", stderr.strip()
  return "lines", f"exit code {code} and {stderr.count(chr(10))} lines on stderr: {stderr[-500:]!r}"


def _describe_exception() -> str:
  """Return the exception that is being handled, and its stack, in one line."""
  kind, error, trace = sys.exc_info()
  frames = traceback.extract_tb(trace)
  where = " < ".join(f"{pathlib.Path(f.filename).name}:{f.lineno}" for f in reversed(frames[-8:]))
  return f"{kind.__name__}: {' '.join(str(error).split())[:300]} ({where})"


@contextlib.contextmanager
def _limit_time(seconds: float) -> Iterator[None]:
  """Raise Hang in the body after some seconds of this thread's processor, or if it waits too long.

  A case that is slow because the machine is busy is no hang. If compiled code never returns to
  Python, print the stacks and end the process.
  """
  start = time.monotonic()
  start_of_thread = time.thread_time()

  def raise_hang(*_):
    waits_too_long = time.monotonic() - start >= _WAIT_FACTOR * seconds
    if waits_too_long or time.thread_time() - start_of_thread >= seconds:
      raise Hang

  interval = min(seconds, 1.0)
  earlier_handler = signal.signal(signal.SIGALRM, raise_hang)
  signal.setitimer(signal.ITIMER_REAL, interval, interval)
  faulthandler.dump_traceback_later(2 * _WAIT_FACTOR * seconds, exit=True, file=sys.__stderr__)
  try:
    yield
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()
    signal.signal(signal.SIGALRM, earlier_handler)


@contextlib.contextmanager
def _limit_memory(memory: int) -> Iterator[None]:
  """Limit the growth of the address space to four times `memory`, to protect the machine."""
  soft, hard = resource.getrlimit(resource.RLIMIT_AS)
  with contextlib.suppress(OSError):
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the peak memory
  resource.setrlimit(resource.RLIMIT_AS, (_read_process_status("VmSize") + 4 * memory, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


_EXECUTION_EVENTS = (
  "os.system",
  "os.exec",
  "os.posix_spawn",
  "subprocess.Popen",
  "pickle.find_class",
  "os.fork",
)
# The lists to which `_audit` appends; the innermost context manager is last.
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


# Allowed folders, and the list of paths outside of them, of each active `_watch_paths`.
_path_watches: list[tuple[tuple[pathlib.Path, ...], list[str]]] = []


@contextlib.contextmanager
def _watch_paths(
  case_folder: pathlib.Path, temporary_folder: pathlib.Path, *allowed_folders: pathlib.Path
) -> Iterator[list[str]]:
  """Collect the paths that Python writes, creates or removes outside of these folders.

  Meanwhile `tempfile` uses `temporary_folder`.
  """
  earlier_tempdir = tempfile.tempdir
  outside = []
  _add_hook()
  tempfile.tempdir = str(temporary_folder)
  _path_watches.append(((case_folder, temporary_folder, *allowed_folders), outside))
  try:
    yield outside
  finally:
    _path_watches.pop()
    tempfile.tempdir = earlier_tempdir


@functools.cache
def _add_hook() -> None:
  sys.addaudithook(_audit)  # a hook cannot be removed


def _audit(event: str, arguments: tuple) -> None:
  """Record an audit event in the active watches; see `sys.addaudithook`."""
  if _program_watches and event in _EXECUTION_EVENTS:
    _program_watches[-1].append(f"{event} {str(arguments)[:100]}")
  if not _path_watches:
    return
  if event == "open":
    path, mode, flags = arguments
    writes = isinstance(flags, int) and flags & _WRITE_FLAGS or set(mode or "") & set("wax+")
    paths = ((path, -1),) if writes else ()
  else:
    indices = _PATH_ARGUMENTS.get(event, ())
    paths = tuple((arguments[path], arguments[folder]) for path, folder in indices)
  allowed, outside = _path_watches[-1]
  for path, folder in paths:
    if isinstance(path, (str, bytes, os.PathLike)):
      base = "."
      if isinstance(folder, int) and folder >= 0:
        base = os.readlink(f"/proc/self/fd/{folder}")
      absolute = os.path.abspath(os.path.join(base, os.fsdecode(path)))
      allowed_prefixes = (*(f"{allowed_folder}/" for allowed_folder in allowed), *_ALWAYS_ALLOWED)
      is_allowed = absolute.startswith(allowed_prefixes) or "__pycache__" in absolute
      exists = event == "os.mkdir" and os.path.isdir(absolute)
      if not is_allowed and not exists and absolute not in map(str, allowed):
        outside.append(absolute)


def _paths_below(folder: pathlib.Path) -> set[pathlib.Path]:
  """Return every path below a directory, also of files that compiled code wrote unaudited."""
  return set(folder.rglob("*"))


def _read_process_status(key: str) -> int:
  """Return a size of this process in bytes, by its key in /proc/self/status."""
  match = re.search(
    rf"^{key}:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text(), re.MULTILINE
  )
  return int(match[1]) * 1024


def _resident_memory() -> int:
  return _read_process_status("VmRSS")


def _peak_memory() -> int:
  return _read_process_status("VmHWM")
