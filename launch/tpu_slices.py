"""Keep the slices of an elastic job on Cloud TPU VMs: one queued resource for each.

`launch/tpu_vm.py start --slices=N --least_slices=M` uses it. A slice that the cloud takes away is
deleted and requested again while the others train; when it is there, the project is installed on it
and its hosts join (launch/member.py). `decide` and `job_code` are the rules, as pure functions;
`Fleet` asks the cloud and acts. A slice is deleted only at the end of the job, or if it cannot be
used: the cloud reports it as failed or suspended, or its hosts do not answer in `requests`
installations.
"""

import dataclasses
import enum
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from launch.commands import choose_exit_code, log
from t5x_like.errors import (
  EXIT_PREEMPTED,
  EXIT_TRANSIENT,
  EXIT_USER_ERROR,
  TransientError,
  UserError,
)

SUSPENDED_STATES = ("SUSPENDED", "SUSPENDING")
_CONFIRMED_ABSENCES = 2  # the cloud may forget a resource for a moment
_DELETION_SECONDS = 120.0  # in which all deletions by another command become known


class Phase(enum.Enum):
  """What has been done about a slice."""

  ABSENT = "absent"
  REQUESTED = "requested"
  TRAINING = "training"
  ENDED = "ended"
  ABANDONED = "abandoned"


class Action(enum.Enum):
  """What to do next about a slice."""

  WAIT = "wait"
  REQUEST = "request"
  DELETE = "delete"
  INSTALL = "install"


@dataclass(frozen=True)
class Limits:
  """How often and how long to try.

  Attributes:
    least_slices: smallest number of slices that train.
    requests: requests or installations of a slice that may fail one after another.
    first_wait: seconds between two requests after the first failure; doubles with each.
    longest_wait: greatest number of seconds between two requests.
    silence_seconds: time without an answer of the hosts after which they are installed again.
  """

  least_slices: int
  requests: int = 8
  first_wait: float = 30.0
  longest_wait: float = 1800.0
  silence_seconds: float = 600.0


@dataclass(frozen=True)
class SliceState:
  """What is known about a slice.

  Attributes:
    failures: requests or installations that failed one after another.
    refusals: requests in a row for which the cloud had no capacity.
    absences: queries in a row that have not found a resource that was there.
    next_time: earliest time of the next request or installation.
    quiet_time: since when the hosts do not answer, or some have ended; None if all train.
    is_deleted: whether somebody has deleted the resource of a slice that trained.
    code: exit code of the hosts, or of the job if the slice is abandoned; None before.
    reason: why the last request or installation failed.
  """

  phase: Phase = Phase.ABSENT
  failures: int = 0
  refusals: int = 0
  absences: int = 0
  next_time: float = 0.0
  quiet_time: float | None = None
  is_deleted: bool = False
  code: int | None = None
  reason: str = ""


@dataclass(frozen=True)
class Observation:
  """An answer of the cloud about a slice.

  Attributes:
    state: state of the queued resource; None if there is none, UNKNOWN without an answer.
    codes: exit code of the job on each host, None where it runs; None if the hosts do not answer.
    reason: the cloud's reason for the state.
    is_permanent: whether the same request would fail again.
  """

  state: str | None
  codes: tuple[int | None, ...] | None = None
  reason: str = ""
  is_permanent: bool = False


def decide(
  state: SliceState, observation: Observation, now: float, limits: Limits
) -> tuple[SliceState, Action]:
  """Return the next state of a slice, and what to do about it."""
  if observation.state == "UNKNOWN" or state.phase is Phase.ABANDONED:
    return state, Action.WAIT
  if observation.state is None:
    return _decide_absent(state, now)
  state = dataclasses.replace(state, absences=0)
  if observation.state == "FAILED" or observation.state in SUSPENDED_STATES:
    return _decide_unusable(state, observation, now, limits), Action.DELETE
  if observation.state == "ACTIVE":
    return _decide_active(state, observation, now, limits)
  return dataclasses.replace(state, phase=Phase.REQUESTED), Action.WAIT


def count_failure(
  state: SliceState, reason: str, now: float, limits: Limits, is_permanent: bool = False
) -> SliceState:
  """Return the state after a request or installation has failed."""
  failures = state.failures + 1
  if is_permanent or failures >= limits.requests:
    code = EXIT_USER_ERROR if is_permanent else EXIT_TRANSIENT
    return dataclasses.replace(
      state, phase=Phase.ABANDONED, failures=failures, code=code, reason=reason
    )
  next_time = now + _wait_seconds(failures, limits)
  return dataclasses.replace(state, failures=failures, next_time=next_time, reason=reason)


def count_refusal(state: SliceState, now: float, limits: Limits) -> SliceState:
  """Return the state after the cloud had no capacity.

  The number of these requests has no limit; the job's lifetime bounds the wait for capacity.
  """
  refusals = state.refusals + 1
  next_time = now + _wait_seconds(refusals, limits)
  return dataclasses.replace(state, refusals=refusals, next_time=next_time)


def job_code(states: Sequence[SliceState], limits: Limits) -> int | None:
  """Return the exit code of the job; None while it goes on.

  The hosts of a job end together, so that it has ended when no slice trains any more and one has
  ended by itself. It fails when too few slices can be had, and is stopped when another command has
  deleted all of them.
  """
  if all(state.is_deleted for state in states):
    return EXIT_PREEMPTED
  ended_codes = [state.code for state in states if state.phase is Phase.ENDED]
  is_training = any(state.phase is Phase.TRAINING for state in states)
  if ended_codes and not is_training:
    return choose_exit_code(ended_codes)
  abandoned_codes = [state.code for state in states if state.phase is Phase.ABANDONED]
  if len(states) - len(abandoned_codes) < limits.least_slices:
    return choose_exit_code(abandoned_codes)
  return None


def _wait_seconds(tries: int, limits: Limits) -> float:
  """Return the wait after a number of tries in a row."""
  return min(limits.longest_wait, limits.first_wait * 2.0 ** (tries - 1))


def _decide_absent(state: SliceState, now: float) -> tuple[SliceState, Action]:
  """Decide about a slice without a resource."""
  if state.phase is not Phase.ABSENT:
    absences = state.absences + 1
    if absences < _CONFIRMED_ABSENCES:
      return dataclasses.replace(state, absences=absences), Action.WAIT
    is_deleted = state.phase in (Phase.TRAINING, Phase.ENDED)
    # Not at once: if somebody deletes all slices, the job has ended.
    next_time = now + _DELETION_SECONDS if is_deleted else state.next_time
    state = SliceState(failures=state.failures, next_time=next_time, is_deleted=is_deleted)
  if now < state.next_time:
    return state, Action.WAIT
  return state, Action.REQUEST


def _decide_unusable(
  state: SliceState, observation: Observation, now: float, limits: Limits
) -> SliceState:
  """Return the state of a slice that the cloud has refused or taken away."""
  if state.phase in (Phase.TRAINING, Phase.ENDED):
    return SliceState(next_time=now)
  reason = f"{observation.state.lower()}: {observation.reason}"
  state = dataclasses.replace(state, phase=Phase.ABSENT)
  return count_failure(state, reason, now, limits, observation.is_permanent)


def _decide_active(
  state: SliceState, observation: Observation, now: float, limits: Limits
) -> tuple[SliceState, Action]:
  """Decide about a slice that exists, by the answers of its hosts."""
  codes = observation.codes
  if codes and all(code is None for code in codes):
    return SliceState(phase=Phase.TRAINING), Action.WAIT
  if state.phase not in (Phase.TRAINING, Phase.ENDED):
    if now < state.next_time:
      return state, Action.WAIT
    return state, Action.INSTALL
  quiet_time = now if state.quiet_time is None else state.quiet_time
  state = dataclasses.replace(state, quiet_time=quiet_time)
  if codes and all(code is not None for code in codes):
    state = dataclasses.replace(state, phase=Phase.ENDED, code=choose_exit_code(codes))
  if now - quiet_time >= limits.silence_seconds:
    # The others train on: programs that run are left alone, and others join again.
    return dataclasses.replace(state, quiet_time=None), Action.INSTALL
  return state, Action.WAIT


class Fleet:
  """The slices of a job, and the actions on them, which run at the same time.

  Args:
    clouds: the queued resource of each slice.
    install: installs and starts the job on a slice.
    read_codes: returns the exit code of each host of a slice, None where it runs.
    clock: returns seconds.
  """

  def __init__(
    self,
    clouds: Sequence,
    limits: Limits,
    install: Callable[[int], None],
    read_codes: Callable[[int], Sequence[int | None]],
    clock: Callable[[], float] = time.monotonic,
  ):
    self.states = [SliceState() for _ in clouds]
    self._clouds = clouds
    self._limits = limits
    self._install = install
    self._read_codes = read_codes
    self._clock = clock
    self._pool = ThreadPoolExecutor(len(clouds), "slice")
    self._pending: dict[int, Future] = {}

  def tick(self) -> int | None:
    """Observe all slices and act once; return the exit code of the job at its end."""
    for slice_ in range(len(self._clouds)):
      pending = self._pending.get(slice_)
      if pending is not None and not pending.done():
        continue
      if pending is not None:
        pending.result()
      self._pending[slice_] = self._pool.submit(self._step, slice_)
    return job_code(self.states, self._limits)

  def wait(self, seconds: float) -> None:
    """Wait until the actions under way have ended, for a limited time."""
    deadline = self._clock() + seconds
    for pending in self._pending.values():
      try:
        pending.result(max(0.0, deadline - self._clock()))
      except TimeoutError:
        return

  def close(self) -> None:
    """Start no further action."""
    self._pool.shutdown(wait=False, cancel_futures=True)

  def _step(self, slice_: int) -> None:
    """Observe a slice, decide and act."""
    cloud = self._clouds[slice_]
    before = self.states[slice_]
    observation = self._observe(slice_)
    state, action = decide(before, observation, self._clock(), self._limits)
    self.states[slice_] = state
    if state.failures > before.failures:
      self._log_failure(slice_, state)
    if action is Action.DELETE:
      log(f"{cloud.name} is {observation.state.lower()}: {observation.reason}; deleting it")
      self._attempt(slice_, cloud.delete)
    elif action is Action.REQUEST:
      self._request(slice_)
    elif action is Action.INSTALL:
      self._attempt(slice_, lambda: self._install(slice_))
      self._delete_if_unusable(slice_)

  def _observe(self, slice_: int) -> Observation:
    """Return what the cloud and the hosts say; UNKNOWN if the cloud does not answer."""
    try:
      answer = self._clouds[slice_].describe()
    except (TransientError, UserError) as error:
      log(f"{self._clouds[slice_].name}: {error}")
      return Observation("UNKNOWN")
    codes = None
    if answer.get("state") == "ACTIVE":
      try:
        codes = tuple(self._read_codes(slice_))
      except (TransientError, UserError):
        codes = None
    is_permanent = bool(answer.get("is_permanent"))
    return Observation(answer.get("state"), codes, answer.get("reason", ""), is_permanent)

  def _request(self, slice_: int) -> None:
    """Request a slice and note the outcome."""
    cloud = self._clouds[slice_]
    log(f"requesting {cloud.name}")
    try:
      is_accepted = cloud.create()
    except (TransientError, UserError) as error:
      self._note_failure(slice_, str(error), isinstance(error, UserError))
      return
    if is_accepted:
      self.states[slice_] = dataclasses.replace(self.states[slice_], phase=Phase.REQUESTED)
    else:
      self.states[slice_] = count_refusal(self.states[slice_], self._clock(), self._limits)

  def _attempt(self, slice_: int, act: Callable[[], None]) -> None:
    """Act, and note a failure."""
    try:
      act()
    except (TransientError, UserError) as error:
      self._note_failure(slice_, str(error), False)

  def _delete_if_unusable(self, slice_: int) -> None:
    """Delete a slice whose installations have failed too often, which is billed for nothing."""
    if self.states[slice_].phase is Phase.ABANDONED:
      cloud = self._clouds[slice_]
      log(f"{cloud.name} cannot be used; deleting it")
      cloud.delete_unless_kept(0)

  def _note_failure(self, slice_: int, reason: str, is_permanent: bool) -> None:
    state = count_failure(self.states[slice_], reason, self._clock(), self._limits, is_permanent)
    self.states[slice_] = state
    self._log_failure(slice_, state)

  def _log_failure(self, slice_: int, state: SliceState) -> None:
    tries = f"{state.failures} of {self._limits.requests} tries failed"
    ending = "; given up" if state.phase is Phase.ABANDONED else ""
    log(f"{self._clouds[slice_].name}: {state.reason} ({tries}){ending}")
