"""Run the train command on one host of an elastic job, with the slices that exist.

  python -m launch.member --meeting=gs://bucket/run/elastic --slices=4 --hosts_per_slice=16 \\
    --least_slices=2 --slice=1 --worker=3 -- python -m t5x_like.train …

The launchers start it on every host. Hosts meet in the directory `--meeting`: each writes a report
there, and one of them decides which slices train (`launch/membership.py`). The program starts the
command with the variables of jax and of the TPU slices for these, stops it when the slices change,
and ends with the exit code of the job (docs/reference/exit-codes.md). After SIGTERM, the command
saves and this host leaves the job. T5X_LIKE_JOB_KEY, the same on all hosts, tells one start of the
job from another.
"""

import argparse
import dataclasses
import hashlib
import hmac
import json
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

if __package__ in (None, ""):
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from launch import commands, membership
from launch.commands import KEY_VARIABLE, log
from launch.membership import Action, Limits, Report, Roster, Situation, Times
from t5x_like.errors import (
  EXIT_PREEMPTED,
  EXIT_TRANSIENT,
  TransientError,
  UserError,
  handle_errors,
  is_transient,
  one_line,
)
from t5x_like.files.paths import as_path, check_directory

_RETRY_VARIABLE = "T5X_LIKE_RETRY_SECONDS"
_MEGASCALE_PORT = 8081
_MEGASCALE_VARIABLES = (
  "MEGASCALE_COORDINATOR_ADDRESS",
  "MEGASCALE_NUM_SLICES",
  "MEGASCALE_PORT",
  "MEGASCALE_SLICE_ID",
)
_READERS = 16
_WARNING_SECONDS = 60.0


@dataclass(frozen=True)
class Rhythm:
  """How often a host reports, and how long it waits for others and for its process.

  Attributes:
    beat_seconds: time between reports.
    loss_seconds: silence after which a host counts as lost.
    grace_seconds: time for the process to save and end.
    loss_grace_seconds: time for the process to end when a slice is lost, and it cannot save.
    isolation_seconds: time without the meeting's directory after which a host without a running
      process gives up.
  """

  beat_seconds: float = 5.0
  loss_seconds: float = 30.0
  grace_seconds: float = 600.0
  loss_grace_seconds: float = 15.0
  isolation_seconds: float = 900.0


class Board(Protocol):
  """The shared directory in which the hosts of one start of a job meet."""

  def write_report(self, report: Report) -> None: ...

  def read_reports(self) -> dict[int, Report]:
    """Return the last report of each host, also of hosts that are lost."""

  def read_roster(self) -> tuple[Roster, Any] | None:
    """Return the roster and its version; None before the first."""

  def write_roster(self, roster: Roster, version: Any) -> bool:
    """Replace the roster of this version (None: create it); False if another host was faster."""


class DirectoryBoard:
  """A board in a directory or bucket. Malformed files count as absent.

  Args:
    directory: directory or bucket of the meeting.
    session: id of the start of the job; files of other starts are ignored.
    hosts: number of hosts of the whole job.
  """

  def __init__(self, directory: str, session: str, hosts: int):
    self._directory = as_path(directory) / session
    self._hosts = hosts
    self._pool = ThreadPoolExecutor(_READERS, "board")

  def write_report(self, report: Report) -> None:
    content = json.dumps(dataclasses.asdict(report))
    (self._directory / f"host-{report.host}.json").write_bytes(content.encode())

  def read_reports(self) -> dict[int, Report]:
    reports = {}
    for host, report in zip(
      range(self._hosts), self._pool.map(self._read_report, range(self._hosts))
    ):
      if report is not None and report.host == host:
        reports[host] = report
    return reports

  def _read_report(self, host: int) -> Report | None:
    return parse_record(Report, (self._directory / f"host-{host}.json").read())

  def read_roster(self) -> tuple[Roster, Any] | None:
    versioned = (self._directory / "roster.json").read_version()
    if versioned is None:
      return None
    roster = parse_record(Roster, versioned.content)
    return Roster() if roster is None else roster, versioned.version

  def write_roster(self, roster: Roster, version: Any) -> bool:
    content = json.dumps(dataclasses.asdict(roster)).encode()
    file = self._directory / "roster.json"
    if version is None:
      return file.create(content)
    return file.replace_version(content, version)


def parse_record(kind: type, content: bytes | None) -> Any:
  """Return the report or roster of a file's content; None if it is absent or malformed."""
  try:
    record = json.loads(content or b"null")
    if kind is Roster:
      record["slices"] = tuple(int(slice_) for slice_ in record["slices"])
      pairs = record["incarnations"].items()
      record["incarnations"] = {int(host): str(incarnation) for host, incarnation in pairs}
    parsed = kind(**record)
  except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
    return None
  for field in dataclasses.fields(kind):
    value = getattr(parsed, field.name)
    is_whole = type(value) is int
    is_right = {
      "int": is_whole,
      "int | None": is_whole or value is None,
      "str": isinstance(value, str),
      "bool": isinstance(value, bool),
    }
    if not is_right.get(str(getattr(field.type, "__name__", field.type)), True):
      return None
  return parsed


class Pulse:
  """Measure for how long a value has not changed, counting only time in which it was read."""

  def __init__(self):
    self.value = None
    self.silence = 0.0

  def observe(self, value: Any, seconds: float) -> None:
    """Note the value; `seconds` have passed since it was read before."""
    if value != self.value:
      self.value = value
      self.silence = 0.0
    else:
      self.silence += seconds


class Observer:
  """Turn the hosts' reports into a `Situation`, by this host's clock alone.

  No clock of another host is read. A host counts as lost when its report does not change although
  this host can read it.
  """

  def __init__(self, limits: Limits, rhythm: Rhythm):
    self._limits = limits
    self._rhythm = rhythm
    self._pulses: dict[int, Pulse] = {}
    self._first_time: float | None = None
    self._last_time = 0.0
    self._number = -1
    self._attempt_time = 0.0
    self._complete_times: dict[int, float] = {}
    self._ended_time: float | None = None

  def observe(self, roster: Roster, reports: Mapping[int, Report], now: float) -> Situation | None:
    """Return the situation; None while this host has not watched for long enough to judge."""
    if self._first_time is None:
      self._first_time = now
      self._last_time = now
    seconds = min(now - self._last_time, 2 * self._rhythm.beat_seconds)
    self._last_time = now
    alive = {}
    for host, report in reports.items():
      pulse = self._pulses.setdefault(host, Pulse())
      pulse.observe((report.incarnation, report.beat), seconds)
      if pulse.silence < self._rhythm.loss_seconds:
        alive[host] = report
    self._note_times(roster, alive, now)
    if now - self._first_time < self._rhythm.loss_seconds + self._rhythm.beat_seconds:
      return None
    durations = {slice_: now - begin for slice_, begin in self._complete_times.items()}
    ended = None if self._ended_time is None else now - self._ended_time
    times = Times(now - self._attempt_time, durations, ended)
    return Situation(roster, alive, times, self._limits)

  def _note_times(self, roster: Roster, alive: Mapping[int, Report], now: float) -> None:
    if roster.number != self._number:
      self._number = roster.number
      self._attempt_time = now
      self._ended_time = None
    complete = membership.complete_slices(alive, self._limits)
    earlier_times = self._complete_times
    self._complete_times = {slice_: earlier_times.get(slice_, now) for slice_ in complete}
    for report in alive.values():
      is_of_attempt = report.host in roster.incarnations and report.attempt == roster.number
      if is_of_attempt and report.code is not None and self._ended_time is None:
        self._ended_time = now


class Process(Protocol):
  """The running train command of a host."""

  def poll(self) -> int | None:
    """Return the exit code, 128 and the signal's number for a signal; None while it runs."""

  def terminate(self) -> None: ...

  def kill(self) -> None: ...


class CommandProcess:
  """A command in a process group of its own."""

  def __init__(self, command: list[str], environment: Mapping[str, str]):
    try:
      self._popen = subprocess.Popen(
        commands.bind_to_this_process(command), env=environment, start_new_session=True
      )
    except OSError as error:
      raise UserError(f"{command[0]}: cannot be started: {error.strerror}") from None

  def poll(self) -> int | None:
    code = self._popen.poll()
    return 128 - code if code is not None and code < 0 else code

  def terminate(self) -> None:
    commands.signal_group(self._popen, signal.SIGTERM)

  def kill(self) -> None:
    commands.signal_group(self._popen, signal.SIGKILL)


class Member:
  """One host of the job: it reports, decides if it leads, and starts and stops its process.

  Args:
    board: where the hosts meet.
    host: number of this host in the whole job.
    start: starts the process of an attempt.
    find_address: returns an address of this host with a free port.
    clock: returns seconds.
  """

  def __init__(
    self,
    board: Board,
    host: int,
    limits: Limits,
    rhythm: Rhythm,
    start: Callable[[Roster], Process],
    find_address: Callable[[], str],
    clock: Callable[[], float] = time.monotonic,
  ):
    self._board = board
    self._limits = limits
    self._rhythm = rhythm
    self._start = start
    self._find_address = find_address
    self._clock = clock
    self._report = Report(host, secrets.token_hex(8), address=find_address())
    self._process: Process | None = None
    self._is_leaving = False  # changed by a signal handler
    self._kill_time: float | None = None
    self._observer: Observer | None = None
    self._leader_pulse = Pulse()
    self._roster = Roster()
    self._last_contact = clock()
    self._last_read = clock()
    self._last_warning = -_WARNING_SECONDS

  @property
  def is_running(self) -> bool:
    """Whether the train command runs."""
    return self._process is not None and self._process.poll() is None

  def leave(self) -> None:
    """Let the process save and end, and leave the job; called by a signal handler."""
    self._is_leaving = True
    if self._process is not None:
      self._process.terminate()
    self._kill_time = self._clock() + self._rhythm.grace_seconds

  def tick(self) -> int | None:
    """Report, decide and act once; return the exit code of this host at its end."""
    now = self._clock()
    self._note_end()
    self._kill_late_process(now)
    try:
      self._exchange(now)
      self._last_contact = now
    except Exception as error:
      if not isinstance(error, TransientError | OSError) and not is_transient(error):
        raise
      self._warn(error, now)
      if now - self._last_contact > self._rhythm.isolation_seconds and not self.is_running:
        return EXIT_TRANSIENT
    if self._is_leaving:
      return None if self.is_running else self._leaving_code()
    return self._act(now)

  def kill(self) -> None:
    """End the process at once."""
    if self._process is not None:
      self._process.kill()

  def _note_end(self) -> None:
    """Put the exit code of a process that has ended into the report."""
    if self._process is not None and self._report.code is None:
      self._report = dataclasses.replace(self._report, code=self._process.poll())

  def _kill_late_process(self, now: float) -> None:
    if self._kill_time is not None and now > self._kill_time and self.is_running:
      log(f"host {self._report.host}: the process has not ended in time; killed")
      self._process.kill()

  def _exchange(self, now: float) -> None:
    """Write the report, read the roster, and replace it if this host leads."""
    beat = self._report.beat + 1
    self._report = dataclasses.replace(self._report, beat=beat, is_leaving=self._is_leaving)
    self._board.write_report(self._report)
    answer = self._board.read_roster()
    if answer is None:
      self._board.write_roster(Roster(leader=self._report.host), None)
      return
    roster, version = answer
    self._note_roster(roster)
    if roster.code is not None or self._is_leaving:
      return
    seconds = min(now - self._last_read, 2 * self._rhythm.beat_seconds)
    self._last_read = now
    self._leader_pulse.observe((roster.leader, roster.beat), seconds)
    is_leader = roster.leader == self._report.host
    if not is_leader and self._leader_pulse.silence < 2 * self._rhythm.beat_seconds:
      self._observer = None
      return
    if self._observer is None:
      self._observer = Observer(self._limits, self._rhythm)
    situation = self._observer.observe(roster, self._board.read_reports(), now)
    if is_leader or self._succeeds_leader(situation):
      self._lead(roster, version, situation)

  def _succeeds_leader(self, situation: Situation | None) -> bool:
    """Return whether the leader is lost and no host with a smaller number is alive."""
    if situation is None or self._leader_pulse.silence < self._rhythm.loss_seconds:
      return False
    return min(situation.reports, default=-1) == self._report.host

  def _lead(self, roster: Roster, version: Any, situation: Situation | None) -> None:
    """Replace the roster by a decision, or renew it."""
    successor = None if situation is None else membership.decide(situation)
    replacement = dataclasses.replace(
      successor or roster, leader=self._report.host, beat=roster.beat + 1
    )
    if self._board.write_roster(replacement, version):
      self._note_roster(replacement)

  def _note_roster(self, roster: Roster) -> None:
    """Follow a roster; print why it replaced the one before."""
    has_changed = (roster.number, roster.code) != (self._roster.number, self._roster.code)
    if has_changed and roster.reason:
      log(roster.reason)
    self._roster = roster

  def _act(self, now: float) -> int | None:
    """Start or stop the process as the roster demands; return the job's exit code at its end."""
    action = membership.next_action(self._roster, self._report, self.is_running)
    if action is Action.END:
      return self._roster.code
    if action is Action.STOP and self._kill_time is None:
      seconds = self._rhythm.grace_seconds
      if self._roster.follows_loss:
        seconds = self._rhythm.loss_grace_seconds
      self._kill_time = now + seconds
      self._process.terminate()
    elif action is Action.START:
      self._kill_time = None
      self._process = self._start(self._roster)
      self._report = dataclasses.replace(
        self._report, attempt=self._roster.number, code=None, address=self._find_address()
      )
    return None

  def _leaving_code(self) -> int:
    """Return the exit code of a host that was told to leave."""
    if self._process is None:
      return EXIT_PREEMPTED
    return self._process.poll()

  def _warn(self, error: Exception, now: float) -> None:
    if now - self._last_warning >= _WARNING_SECONDS:
      self._last_warning = now
      log(f"host {self._report.host}: the hosts' directory is not used: {one_line(error)[:200]}")


def attempt_variables(
  roster: Roster, host: int, limits: Limits, key: str, platform: str
) -> dict[str, str]:
  """Return the variables of the process that a host starts for an attempt.

  Args:
    key: secret of the job. Each attempt derives its own, so that processes of different attempts
      do not meet.
    platform: `tpu` sets the variables by which TPU slices find each other.
  """
  hosts = sorted(roster.incarnations)
  coordinator = roster.address.rpartition(":")[0]
  variables = {
    "JAX_COORDINATOR_ADDRESS": roster.address,
    "JAX_NUM_PROCESSES": str(len(hosts)),
    "JAX_PROCESS_ID": str(hosts.index(host)),
    "T5X_LIKE_HOST": str(host),
    KEY_VARIABLE: hmac.digest(key.encode(), str(roster.number).encode(), "sha256").hex()[:32],
  }
  if platform == "tpu" and len(roster.slices) > 1:
    slice_index = roster.slices.index(host // limits.hosts_per_slice)
    values = (f"{coordinator}:{_MEGASCALE_PORT}", len(roster.slices), _MEGASCALE_PORT, slice_index)
    variables |= {name: str(value) for name, value in zip(_MEGASCALE_VARIABLES, values)}
  return variables


def session_of(key: str) -> str:
  """Return the public id of a start of a job, which does not reveal its secret."""
  return hashlib.sha256(f"session {key}".encode()).hexdigest()[:16]


def find_free_address(name: str) -> str:
  """Return `name:port` with a port that is free on this host."""
  with socket.socket() as probe:
    probe.bind(("", 0))
    return f"{name}:{probe.getsockname()[1]}"


def run(member: Member, beat_seconds: float) -> int:
  """Run a member until its end and return the exit code; SIGTERM and SIGINT make it leave."""
  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: member.leave())
  try:
    while True:
      begin = time.monotonic()
      code = member.tick()
      if code is not None:
        return code
      time.sleep(max(0.0, begin + beat_seconds - time.monotonic()))
  finally:
    member.kill()


def _own_name() -> str:
  """Return the address of this host by which others reach it."""
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    try:
      probe.connect(("192.0.2.1", 9))  # sends nothing; selects the interface
      return probe.getsockname()[0]
    except OSError:
      return socket.gethostname()


def _make_parser() -> commands.Parser:
  parser = commands.Parser(__doc__, opens_runs=False)
  parser.add_argument(
    "--meeting", required=True, type=check_directory, help="directory that all hosts share"
  )
  for name in ("slices", "hosts_per_slice", "least_slices"):
    parser.add_argument(f"--{name}", type=int, required=True, help=f"{name} of the whole job")
  parser.add_argument("--slice", type=int, required=True, help="number of this host's slice")
  parser.add_argument("--worker", type=int, required=True, help="number of the host in its slice")
  parser.add_argument("--address", default="", help="name or address of this host")
  parser.add_argument("--platform", default="", help="tpu for slices that libtpu connects")
  for kind, subject in ((Limits, "of the job"), (Rhythm, "of this host")):
    for field in dataclasses.fields(kind):
      if field.default is not dataclasses.MISSING:
        parser.add_argument(
          f"--{field.name}",
          type=type(field.default),
          default=field.default,
          help=f"limit {subject} (default: {field.default:g})",
        )
  return parser


def _check_flags(args: argparse.Namespace) -> None:
  """Check the numbers among the flags.

  Raises:
    UserError: a number is outside its range, or there is no command or key.
  """
  commands.check_least_slices(args)
  if args.hosts_per_slice < 1:
    raise UserError(f"--hosts_per_slice={args.hosts_per_slice}: expected at least 1")
  for name, size in (("slice", args.slices), ("worker", args.hosts_per_slice)):
    if not 0 <= getattr(args, name) < size:
      raise UserError(f"--{name}={getattr(args, name)}: expected 0 to {size - 1}")
  if not args.command:
    raise UserError("no command; give it after --")
  if not os.environ.get(KEY_VARIABLE):
    raise UserError(f"{KEY_VARIABLE} is not set; set it to the same secret on all hosts")


def _pick(kind: type, args: argparse.Namespace) -> Any:
  """Return the record whose fields are flags."""
  return kind(**{field.name: getattr(args, field.name) for field in dataclasses.fields(kind)})


@handle_errors
def main(argv: list[str] | None = None) -> int:
  words = list(sys.argv[1:] if argv is None else argv)
  end = words.index("--") if "--" in words else len(words)
  args = _make_parser().parse_args(words[:end])
  args.command = words[end + 1 :]
  _check_flags(args)
  key = os.environ[KEY_VARIABLE]
  limits = _pick(Limits, args)
  rhythm = _pick(Rhythm, args)
  host = args.slice * args.hosts_per_slice + args.worker
  environment = {name: os.environ[name] for name in os.environ if name not in _MEGASCALE_VARIABLES}
  # A host that cannot report counts as lost; its process retries for as long as it is used to.
  os.environ[_RETRY_VARIABLE] = f"{rhythm.beat_seconds:g}"

  def start(roster: Roster) -> CommandProcess:
    variables = attempt_variables(roster, host, limits, key, args.platform)
    return CommandProcess(args.command, environment | variables)

  board = DirectoryBoard(args.meeting, session_of(key), limits.slices * limits.hosts_per_slice)
  name = args.address or _own_name()
  member = Member(board, host, limits, rhythm, start, lambda: find_free_address(name))
  return run(member, rhythm.beat_seconds)


if __name__ == "__main__":
  sys.exit(main())
