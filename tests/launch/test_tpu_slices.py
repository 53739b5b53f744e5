"""Slices of an elastic job are requested, replaced and deleted, whatever the cloud does."""

import threading

import pytest

from launch import tpu_slices
from launch.tpu_slices import Action, Fleet, Limits, Observation, Phase, SliceState, decide
from t5x_like.errors import TransientError, UserError

LIMITS = Limits(least_slices=1, requests=3, first_wait=10, longest_wait=100, silence_seconds=60)
TRAINING = SliceState(phase=Phase.TRAINING)


class FakeCloud:
  """The queued resource of one slice, in memory.

  Attributes:
    faults: errors of the next calls, by name of the call; an Event is a call that hangs.
    states: states of the next queries; the last one stays.
    codes: exit codes of the hosts.
  """

  def __init__(self, name):
    self.name = name
    self.exists = False
    self.calls = []
    self.faults = {"describe": [], "create": [], "delete": [], "install": [], "codes": []}
    self.new_states = ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    self.states = []
    self.codes = None
    self.is_forgotten = 0  # queries that do not find the resource

  def _call(self, name):
    self.calls.append(name)
    faults = self.faults[name]
    if faults:
      fault = faults.pop(0)
      if isinstance(fault, threading.Event):
        fault.wait(60)
        raise TransientError("no answer within 60 s")
      raise fault

  def describe(self):
    self._call("describe")
    if self.is_forgotten:
      self.is_forgotten -= 1
      return {}
    if not self.exists:
      return {}
    state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
    return {"state": state, "reason": "because"}

  def create(self):
    self._call("create")
    if not self.exists:  # else gcloud says that it exists, which is no error
      self.exists = True
      self.states = list(self.new_states)
      self.codes = None
    return True

  def delete(self):
    self._call("delete")
    assert self.states[0] != "ACTIVE" or self.faulty, "a healthy slice was deleted"
    self.exists = False

  faulty = False

  def delete_unless_kept(self, code):
    self.faulty = True
    self.delete()
    return code


class World:
  """A fleet over fake clouds, in simulated time."""

  def __init__(self, slices=2, limits=LIMITS):
    self.now = 0.0
    self.clouds = [FakeCloud(f"job-{number}") for number in range(slices)]
    self.fleet = Fleet(self.clouds, limits, self.install, self.codes, lambda: self.now)

  def install(self, slice_):
    self.clouds[slice_]._call("install")
    self.clouds[slice_].codes = [None, None]

  def codes(self, slice_):
    self.clouds[slice_]._call("codes")
    if self.clouds[slice_].codes is None:
      raise TransientError("no job there")
    return self.clouds[slice_].codes

  def run(self, seconds, wait=60):
    end = self.now + seconds
    code = None
    while self.now < end and code is None:
      self.now += 5
      code = self.fleet.tick()
      self.fleet.wait(wait)
    return code if code is not None else self.fleet.tick()

  @property
  def phases(self):
    return [state.phase for state in self.fleet.states]


def test_slices_are_requested_installed_and_end():
  world = World()
  assert world.run(60) is None
  assert world.phases == [Phase.TRAINING] * 2
  for cloud in world.clouds:
    assert cloud.calls.count("create") == cloud.calls.count("install") == 1
    cloud.codes = [0, 0]
  assert world.run(60) == 0
  assert all("delete" not in cloud.calls for cloud in world.clouds)


@pytest.mark.parametrize("state", ["SUSPENDED", "SUSPENDING", "FAILED"])
def test_a_slice_that_is_taken_away_is_replaced_and_the_other_left_alone(state):
  world = World()
  world.run(60)
  world.clouds[1].states = [state]
  assert world.run(100) is None
  assert world.clouds[1].calls.count("delete") == 1
  assert world.clouds[1].calls.count("create") == world.clouds[1].calls.count("install") == 2
  assert world.clouds[0].calls.count("create") == world.clouds[0].calls.count("install") == 1
  assert "delete" not in world.clouds[0].calls
  assert world.phases == [Phase.TRAINING] * 2


def test_a_host_that_saves_before_it_is_taken_away_does_not_end_the_job():
  """Its code is 75 for a moment, and the others train on."""
  world = World()
  world.run(60)
  world.clouds[1].codes = [75, 75]
  assert world.run(10) is None
  world.clouds[1].states = ["SUSPENDED"]
  assert world.run(100) is None
  assert world.phases == [Phase.TRAINING] * 2


def test_hosts_that_ended_alone_are_started_again():
  world = World()
  world.run(60)
  world.clouds[1].codes = [0, 69]
  assert world.run(30) is None
  assert world.run(60) is None
  assert world.clouds[1].calls.count("install") == 2
  assert world.phases == [Phase.TRAINING] * 2


def test_a_cloud_that_forgets_a_slice_for_a_moment_is_not_believed():
  world = World()
  world.run(60)
  world.clouds[0].is_forgotten = 1
  world.run(60)
  assert world.clouds[0].calls.count("create") == 1
  assert world.phases == [Phase.TRAINING] * 2
  world.clouds[0].exists = False  # for good
  world.run(200)
  assert world.clouds[0].calls.count("create") == 2


def test_slices_that_another_command_deletes_are_not_requested_again():
  world = World()
  world.run(60)
  for cloud in world.clouds:
    cloud.exists = False
  assert world.run(100) == 75
  assert all(cloud.calls.count("create") == 1 for cloud in world.clouds)


def test_a_cloud_that_says_active_when_the_hosts_are_not_there_is_tried_again():
  world = World()
  world.clouds[0].faults["install"] = [TransientError("ssh: refused")] * 2
  assert world.run(120) is None
  assert world.clouds[0].calls.count("install") == 3
  assert "delete" not in world.clouds[0].calls
  assert world.phases == [Phase.TRAINING] * 2


def test_a_slice_that_can_never_be_used_is_given_up_and_deleted():
  world = World()
  world.clouds[0].faults["install"] = [TransientError("ssh: refused")] * 9
  assert world.run(300) is None  # the other slice is enough
  assert world.clouds[0].calls.count("install") == LIMITS.requests
  assert world.clouds[0].calls.count("delete") == 1
  assert world.phases == [Phase.ABANDONED, Phase.TRAINING]
  world.clouds[1].codes = [0, 0]
  assert world.run(30) == 0


def test_too_few_slices_end_the_job_with_the_reason_of_the_cloud(capsys):
  for error, code in ((UserError("quota"), 2), (TransientError("503"), 69)):
    world = World()
    for cloud in world.clouds:
      cloud.faults["create"] = [error] * 9
    assert world.run(1000) == code
    assert max(cloud.calls.count("create") for cloud in world.clouds) <= LIMITS.requests
  assert "job-0: quota (1 of 3 tries failed); given up" in capsys.readouterr().err


def test_failed_requests_are_limited():
  world = World(slices=1)
  world.clouds[0].new_states = ["WAITING_FOR_RESOURCES", "FAILED"]
  assert world.run(2000) == 69
  assert world.clouds[0].calls.count("create") == LIMITS.requests
  assert not world.clouds[0].exists


def test_a_hanging_query_delays_only_its_own_slice():
  world = World()
  event = threading.Event()
  world.clouds[0].faults["describe"] = [event]
  world.run(60, wait=0.2)
  assert world.phases == [Phase.ABSENT, Phase.TRAINING]
  event.set()
  world.run(60)
  assert world.phases == [Phase.TRAINING] * 2


def test_queries_that_fail_change_nothing():
  world = World()
  world.run(60)
  for cloud in world.clouds:
    cloud.faults["describe"] = [TransientError("503")] * 20
    cloud.faults["codes"] = [TransientError("ssh")] * 5
  assert world.run(200) is None
  for cloud in world.clouds:
    assert cloud.calls.count("create") == cloud.calls.count("install") == 1
    assert "delete" not in cloud.calls


def test_hosts_that_stay_silent_are_installed_again():
  world = World()
  world.run(60)
  world.clouds[0].faults["codes"] = [TransientError("ssh")] * 14
  world.run(100)
  assert world.clouds[0].calls.count("install") == 2
  assert "delete" not in world.clouds[0].calls


def test_waits_between_requests_double_up_to_a_limit():
  state = SliceState()
  waits = []
  limits = Limits(least_slices=1, requests=99, first_wait=10, longest_wait=100)
  for _ in range(6):
    state = tpu_slices.count_failure(state, "no", 0.0, limits)
    waits.append(state.next_time)
  assert waits == [10, 20, 40, 80, 100, 100]


def test_a_lack_of_capacity_is_waited_for_longer_and_longer_but_never_given_up():
  state = SliceState()
  limits = Limits(least_slices=1, requests=3, first_wait=10, longest_wait=100)
  waits = []
  for _ in range(6):
    state = tpu_slices.count_refusal(state, 0.0, limits)
    waits.append(state.next_time)
  assert waits == [10, 20, 40, 80, 100, 100]
  assert state.phase is Phase.ABSENT


@pytest.mark.parametrize("state", ["UNKNOWN", "CREATING", "ACCEPTED", None])
def test_only_a_slice_that_the_cloud_took_away_is_deleted(state):
  for phase in Phase:
    for codes in (None, (None,), (0,), (69, None)):
      before = SliceState(phase=phase, absences=1)
      _, action = decide(before, Observation(state, codes), 1e6, LIMITS)
      assert action is not Action.DELETE
      _, action = decide(before, Observation("ACTIVE", codes), 1e6, LIMITS)
      assert action is not Action.DELETE
