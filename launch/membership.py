"""Decide which slices of an elastic job train together, as pure functions of the hosts' reports.

Each host runs `launch/member.py`. It writes a `Report` of itself into a shared directory, and
follows the `Roster` there. One host, the leader, reads all reports and replaces the roster by
`decide`. Every host acts on the roster by `next_action`. An attempt is one start of the train
command on the hosts of the roster:

- A slice that loses a host leaves, and the others start again, if at least `least_slices` remain.
- A slice that returns is added after it has been complete for a while. The run saves before that.
- A slice that is lost soon after its return waits twice as long before it is added again.
- Exit codes 0, 2, 3, 4 and 75 end the job (docs/reference/exit-codes.md). After any other code, a
  new attempt starts, up to `restarts` times. Attempts after the loss of a slice do not count.
"""

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass

from launch.commands import choose_exit_code
from t5x_like.errors import EXIT_PREEMPTED, EXIT_TRANSIENT, EXITS_NOT_RESTARTED

_MAX_DOUBLINGS = 6
_SHORT_LIFE = 10  # an attempt is short below this multiple of `Limits.rejoin_seconds`
_MAX_BACKOFF_SECONDS = 60.0


@dataclass(frozen=True)
class Limits:
  """The size of a job, and how long its hosts wait.

  Attributes:
    slices: number of slices in the whole job.
    hosts_per_slice: number of hosts in a slice.
    least_slices: smallest number of slices that may train.
    restarts: number of new attempts allowed after failures without a lost slice.
    patience_seconds: how long the first attempt waits for all slices before fewer may train.
    settle_seconds: how long a returned slice must be complete before it is added.
    rejoin_seconds: how long an attempt lasts at least before a returned slice may end it.
    verdict_seconds: how long to wait, after a process has ended, for news of lost hosts.
    finish_seconds: how long the other processes may run after the first has succeeded.
    capacity_seconds: how long too few slices may exist before the job ends.
  """

  slices: int
  hosts_per_slice: int
  least_slices: int
  restarts: int = 10
  patience_seconds: float = 600.0
  settle_seconds: float = 60.0
  rejoin_seconds: float = 600.0
  verdict_seconds: float = 45.0
  finish_seconds: float = 3600.0
  capacity_seconds: float = 7 * 24 * 3600.0


@dataclass(frozen=True)
class Report:
  """The state of one host.

  Attributes:
    host: number of the host in the whole job: slice times hosts per slice, plus worker.
    incarnation: id of this start of the host's program.
    beat: number that grows with every report.
    address: host and free port for the coordinator of the next attempt.
    attempt: number of the roster whose process the host has started last; 0 for none.
    code: exit code of this process; None while it runs.
    is_leaving: whether the host's program has been told to end.
  """

  host: int
  incarnation: str
  beat: int = 0
  address: str = ""
  attempt: int = 0
  code: int | None = None
  is_leaving: bool = False


@dataclass(frozen=True)
class Roster:
  """The slices that train together.

  Attributes:
    number: number of the attempt; 0 before the first.
    slices: the slices of the attempt; empty while too few exist.
    incarnations: the incarnation of each host of the attempt.
    address: coordinator of the attempt.
    failures: number of failures so far that were not the loss of a slice.
    short_lives: number of short attempts in a row that ended with the loss of a slice.
    follows_loss: whether the previous attempt lost a slice, so that its processes cannot save.
    reason: why this roster replaced the previous one.
    code: exit code of the job; None before its end.
    leader: number of the host that decides.
    beat: number that grows with every decision, even one that changes nothing.
  """

  number: int = 0
  slices: tuple[int, ...] = ()
  incarnations: Mapping[int, str] = dataclasses.field(default_factory=dict)
  address: str = ""
  failures: int = 0
  short_lives: int = 0
  follows_loss: bool = False
  reason: str = ""
  code: int | None = None
  leader: int = -1
  beat: int = 0


@dataclass(frozen=True)
class Times:
  """Durations in seconds, as the leader has observed them.

  Attributes:
    attempt: how long the leader has known the roster's number.
    complete: how long each slice has been complete without a break.
    ended: how long ago the first process of the attempt ended; None while all run.
  """

  attempt: float
  complete: Mapping[int, float]
  ended: float | None = None


@dataclass(frozen=True)
class Situation:
  """What the leader knows when it decides.

  Attributes:
    reports: report of each host that is alive, by number.
  """

  roster: Roster
  reports: Mapping[int, Report]
  times: Times
  limits: Limits

  @property
  def complete(self) -> tuple[int, ...]:
    """The slices whose hosts are all alive, and none of them leaving."""
    return complete_slices(self.reports, self.limits)


class Action(enum.Enum):
  """What a host does next with its process."""

  NOTHING = "nothing"
  START = "start"
  STOP = "stop"
  END = "end"


def hosts_of_slice(slice_: int, limits: Limits) -> range:
  """Return the numbers of the hosts of a slice."""
  return range(slice_ * limits.hosts_per_slice, (slice_ + 1) * limits.hosts_per_slice)


def complete_slices(reports: Mapping[int, Report], limits: Limits) -> tuple[int, ...]:
  """Return the slices whose hosts all report, and none of them is leaving."""
  slices = []
  for slice_ in range(limits.slices):
    hosts = hosts_of_slice(slice_, limits)
    if all(host in reports and not reports[host].is_leaving for host in hosts):
      slices.append(slice_)
  return tuple(slices)


def decide(situation: Situation) -> Roster | None:
  """Return the roster that replaces the present one; None to change nothing."""
  roster = situation.roster
  if roster.code is not None:
    return None
  if not roster.slices:
    return _decide_before_attempt(situation)
  codes = _codes(situation)
  if any(code in EXITS_NOT_RESTARTED for code in codes):
    return _end(roster, choose_exit_code(codes), "not restarting: fix the error first")
  if len(codes) == len(roster.incarnations) and not any(codes):
    return _end(roster, 0, f"all {len(codes)} processes succeeded")
  lost = [slice_ for slice_ in roster.slices if _is_lost(slice_, situation)]
  if lost:
    return _continue_after_loss(situation, lost)
  if codes:
    return _decide_after_end(situation, codes)
  return _add_returned_slices(situation)


def next_action(roster: Roster, report: Report, is_running: bool) -> Action:
  """Return what a host does next with its process.

  Args:
    report: the latest report of the host.
    is_running: whether the process of `report.attempt` runs.
  """
  if roster.code is not None:
    return Action.STOP if is_running else Action.END
  if roster.number == report.attempt:
    return Action.NOTHING
  if is_running:
    return Action.STOP
  if roster.incarnations.get(report.host) == report.incarnation:
    return Action.START
  return Action.NOTHING


def rejoin_seconds(roster: Roster, limits: Limits) -> float:
  """Return the shortest duration of an attempt that a returned slice may end."""
  doublings = min(max(0, roster.short_lives - 1), _MAX_DOUBLINGS)
  return limits.rejoin_seconds * 2.0**doublings


def _decide_before_attempt(situation: Situation) -> Roster | None:
  """Return the roster of an attempt if enough slices are complete."""
  limits = situation.limits
  count = len(situation.complete)
  waited = situation.times.attempt
  is_first = situation.roster.number == 0
  expected = limits.least_slices
  if is_first and waited < limits.patience_seconds:
    expected = limits.slices
  if count >= expected:
    return _begin(situation, f"{count} of {limits.slices} slices start")
  if waited >= limits.capacity_seconds:
    reason = f"found {count} of {limits.slices} slices within {limits.capacity_seconds:g} s"
    return _end(situation.roster, EXIT_TRANSIENT, f"{reason}, expected {limits.least_slices}")
  return None


def _continue_after_loss(situation: Situation, lost: list[int]) -> Roster:
  """Return the roster of the slices that remain; it has no slices if too few remain."""
  roster = situation.roster
  limits = situation.limits
  count = len(situation.complete)
  is_short = situation.times.attempt < _SHORT_LIFE * limits.rejoin_seconds
  reason = f"{_describe_slices(lost)} lost; "
  if count >= limits.least_slices:
    successor = _begin(situation, f"{reason}{count} of {limits.slices} slices go on")
  else:
    reason += f"{count} of {limits.slices} slices remain, waiting for {limits.least_slices}"
    successor = dataclasses.replace(
      roster, number=roster.number + 1, slices=(), incarnations={}, address="", reason=reason
    )
  short_lives = roster.short_lives + 1 if is_short else 0
  return dataclasses.replace(successor, short_lives=short_lives, follows_loss=True)


def _decide_after_end(situation: Situation, codes: list[int]) -> Roster | None:
  """Return the roster after processes have ended, once it is known that no slice is lost."""
  roster = situation.roster
  limits = situation.limits
  seconds = situation.times.ended or 0.0
  code = choose_exit_code(codes)
  if code == 0 and seconds < limits.finish_seconds:
    return None
  if seconds < limits.verdict_seconds:
    return None
  if code == EXIT_PREEMPTED:
    return _end(roster, code, "preempted, state saved; run the same command to continue")
  code = code or EXIT_TRANSIENT  # some have finished, and the others hang
  failures = roster.failures + 1
  if failures > limits.restarts:
    return _end(roster, code, f"exit code {code}; {limits.restarts} restarts allowed")
  if seconds < limits.verdict_seconds + _backoff_seconds(failures):
    return None
  successor = _begin(situation, f"exit code {code}; restart {failures} of {limits.restarts}")
  return dataclasses.replace(successor, failures=failures)


def _add_returned_slices(situation: Situation) -> Roster | None:
  """Return the roster with the slices that have returned, if they may end the attempt."""
  roster = situation.roster
  limits = situation.limits
  returned = [slice_ for slice_ in situation.complete if slice_ not in roster.slices]
  if not returned or situation.times.attempt < rejoin_seconds(roster, limits):
    return None
  if min(situation.times.complete[slice_] for slice_ in returned) < limits.settle_seconds:
    return None
  return _begin(situation, f"{_describe_slices(returned)} back; all complete slices train")


def _begin(situation: Situation, reason: str) -> Roster:
  """Return the roster of an attempt with all complete slices."""
  slices = situation.complete
  incarnations = {}
  for slice_ in slices:
    for host in hosts_of_slice(slice_, situation.limits):
      incarnations[host] = situation.reports[host].incarnation
  return dataclasses.replace(
    situation.roster,
    number=situation.roster.number + 1,
    slices=slices,
    incarnations=incarnations,
    address=situation.reports[min(incarnations)].address,
    follows_loss=False,
    reason=reason,
  )


def _end(roster: Roster, code: int, reason: str) -> Roster:
  """Return the roster that ends the job."""
  return dataclasses.replace(roster, code=code, reason=reason)


def _codes(situation: Situation) -> list[int]:
  """Return the exit codes of the processes of the attempt that have ended."""
  codes = []
  for host, incarnation in situation.roster.incarnations.items():
    report = situation.reports.get(host)
    if report is None or report.incarnation != incarnation:
      continue
    if report.attempt == situation.roster.number and report.code is not None:
      codes.append(report.code)
  return codes


def _is_lost(slice_: int, situation: Situation) -> bool:
  """Return whether a slice of the roster lacks one of the hosts with which it has started."""
  for host in hosts_of_slice(slice_, situation.limits):
    report = situation.reports.get(host)
    if report is None or report.is_leaving:
      return True
    if report.incarnation != situation.roster.incarnations[host]:
      return True
  return False


def _backoff_seconds(failures: int) -> float:
  """Return the wait before a restart after failures."""
  return min(_MAX_BACKOFF_SECONDS, 2.0 ** (failures - 1))


def _describe_slices(slices: list[int]) -> str:
  numbers = ", ".join(map(str, slices))
  return f"slice {numbers} is" if len(slices) == 1 else f"slices {numbers} are"
