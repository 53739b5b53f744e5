"""Hosts of an elastic job agree on the slices that train, whatever fails, in simulated time."""

import dataclasses
import random

import pytest

from launch import membership
from launch.member import Member, Rhythm, attempt_variables, parse_record
from launch.membership import Limits, Report, Roster
from t5x_like.errors import TransientError

LIMITS = Limits(
  slices=3,
  hosts_per_slice=2,
  least_slices=2,
  restarts=2,
  patience_seconds=120,
  settle_seconds=20,
  rejoin_seconds=60,
  capacity_seconds=1000,
)
RHYTHM = Rhythm()
WORK_SECONDS = 2000.0  # of all slices together
PEER_SECONDS = 12.0  # in which a process notices that another has ended


class FakeBoard:
  """A board in memory that refuses the hosts in `refused`."""

  def __init__(self):
    self.reports = {}
    self.roster = None
    self.version = 0
    self.refused = set()

  def of_host(self, host):
    return HostBoard(self, host)


class HostBoard:
  """The board as one host sees it."""

  def __init__(self, board, host):
    self._board = board
    self._host = host

  def _check(self):
    if self._host in self._board.refused:
      raise TransientError("503")

  def write_report(self, report):
    self._check()
    self._board.reports[report.host] = report

  def read_reports(self):
    self._check()
    return dict(self._board.reports)

  def read_roster(self):
    self._check()
    if self._board.roster is None:
      return None
    return self._board.roster, self._board.version

  def write_roster(self, roster, version):
    self._check()
    if version != (self._board.version or None):
      return False
    self._board.version += 1
    self._board.roster = roster
    return True


class FakeProcess:
  """A train command: it ends at the end of the work, by TERM, or after the loss of a peer."""

  def __init__(self, world, host, number):
    self.world = world
    self.host = host
    self.number = number
    self.code = None

  def poll(self):
    return self.code

  def terminate(self):
    # The processes of an attempt save and stop after the same step.
    self.world.stop_attempt(self.number)

  def kill(self):
    if self.code is None:
      self.code = 137


class World:
  """Hosts, their board and the work that their processes do, in simulated time."""

  def __init__(self, limits=LIMITS, work=WORK_SECONDS):
    self.limits = limits
    self.now = 0.0
    self.board = FakeBoard()
    self.members = {}
    self.codes = {}
    self.processes = {}
    self.work = work
    self.starts = []  # (time, number, slices)
    self.failing_code = None
    self.deaths = {}  # time of the first death of an attempt's process
    self.incarnation = 0
    for slice_ in range(limits.slices):
      self.revive(slice_)

  def revive(self, slice_):
    for host in membership.hosts_of_slice(slice_, self.limits):
      self.codes.pop(host, None)
      self.members[host] = Member(
        self.board.of_host(host),
        host,
        self.limits,
        RHYTHM,
        lambda roster, host=host: self.start(host, roster),
        lambda host=host: f"host-{host}:1",
        lambda: self.now,
      )

  def kill(self, slice_):
    """Lose the hosts of a slice, and their processes."""
    for host in membership.hosts_of_slice(slice_, self.limits):
      self.members.pop(host, None)
      process = self.processes.pop(host, None)
      if process is not None:
        process.kill()
        self.deaths.setdefault(process.number, self.now)

  def start(self, host, roster):
    assert host in roster.incarnations
    running = self.processes.get(host)
    assert running is None or running.code is not None, "two processes on a host"
    if not self.starts or self.starts[-1][1] != roster.number:
      self.starts.append((self.now, roster.number, roster.slices))
    process = FakeProcess(self, host, roster.number)
    self.processes[host] = process
    return process

  def stop_attempt(self, number):
    peers = [process for process in self.processes.values() if process.number == number]
    if number in self.deaths:
      return  # they wait for a lost peer, and cannot save
    for process in peers:
      if process.code is None:
        process.code = 75

  def run(self, seconds):
    """Let time pass; stop when every host that exists has ended."""
    end = self.now + seconds
    while self.now < end and self.members:
      self.now += RHYTHM.beat_seconds
      self._work(RHYTHM.beat_seconds)
      for host in random.Random(self.now).sample(sorted(self.members), len(self.members)):
        code = self.members[host].tick()
        if code is not None:
          self.codes[host] = code
          del self.members[host]

  def _work(self, seconds):
    numbers = {process.number for process in self.processes.values() if process.code is None}
    assert len(numbers) <= 1 or self.deaths or self.board.refused, "two attempts at a time"
    for number in numbers:
      peers = [process for process in self.processes.values() if process.number == number]
      has_lost_peer = number in self.deaths
      late = has_lost_peer and self.now - self.deaths[number] > PEER_SECONDS
      for process in peers:
        if late and process.code is None:
          process.code = 69
      roster = self.board.roster
      is_whole = len(peers) == len(roster.incarnations) and roster.number == number
      if has_lost_peer or not is_whole or any(process.code for process in peers):
        continue
      if self.failing_code is not None:
        peers[0].code = self.failing_code
        self.deaths[number] = self.now
        continue
      self.work -= seconds * len(peers) / (self.limits.slices * self.limits.hosts_per_slice)
      if self.work <= 0:
        for process in peers:
          process.code = 0

  @property
  def sizes(self):
    """The number of slices of each attempt."""
    return [len(slices) for _, _, slices in self.starts]


def test_all_slices_train_to_the_end():
  world = World()
  world.run(3000)
  assert world.sizes == [3]
  assert set(world.codes.values()) == {0}
  assert len(world.codes) == 6


@pytest.mark.parametrize("lost", [0, 2])  # the leader's slice, and another
def test_a_lost_slice_is_a_pause_and_is_taken_back(lost):
  world = World()
  world.run(300)
  world.kill(lost)
  lost_time = world.now
  world.run(200)
  assert world.sizes == [3, 2]
  assert world.starts[-1][0] - lost_time <= 2 * RHYTHM.loss_seconds
  assert lost not in world.starts[-1][2]
  world.revive(lost)
  returned_time = world.now
  world.run(150)
  assert world.sizes == [3, 2, 3]
  assert world.starts[-1][0] - returned_time <= 120
  world.run(5000)
  assert set(world.codes.values()) == {0}
  assert len(world.codes) == 6
  assert world.board.roster.failures == 0


def test_a_host_that_restarts_at_once_is_a_loss_too():
  """Its process is gone although the slice looks complete all the time."""
  world = World()
  world.run(300)
  world.kill(1)
  world.revive(1)
  world.run(100)
  assert world.sizes == [3, 3]
  world.run(5000)
  assert set(world.codes.values()) == {0}


def test_too_few_slices_wait_and_go_on():
  world = World()
  world.run(300)
  world.kill(0)
  world.kill(1)
  world.run(500)
  assert world.sizes == [3]
  assert not any(process.code is None for process in world.processes.values())
  world.revive(0)
  world.run(100)
  assert world.sizes == [3, 2]
  world.run(5000)
  assert set(world.codes.values()) == {0}


def test_the_wait_for_slices_is_limited():
  world = World()
  world.kill(0)
  world.kill(1)
  world.run(2000)
  assert set(world.codes.values()) == {69}
  assert world.now <= 1100
  assert "1 of 3 slices within 1000 s, expected 2" in world.board.roster.reason


def test_fewer_slices_start_after_a_while():
  world = World()
  world.kill(2)
  world.run(100)
  assert world.sizes == []
  world.run(100)
  assert world.sizes == [2]


def test_a_slice_that_comes_and_goes_costs_less_and_less():
  world = World(work=20_000)
  world.run(300)
  for _ in range(40):
    world.kill(1)
    world.run(60)
    world.revive(1)
    world.run(120)
  unlimited = 2 * 40
  assert len(world.starts) < unlimited / 3
  world.run(30_000)
  assert set(world.codes.values()) == {0}


@pytest.mark.parametrize("code", [2, 3, 4])
def test_an_error_to_mend_ends_all_hosts_with_its_code(code):
  world = World()
  world.failing_code = code
  world.run(500)
  assert world.sizes == [3]
  assert set(world.codes.values()) == {code}


@pytest.mark.parametrize("code", [1, 69, 139])
def test_other_failures_are_restarted_up_to_the_limit(code):
  world = World()
  world.failing_code = code
  world.run(2000)
  assert world.sizes == [3, 3, 3]
  assert set(world.codes.values()) == {code}
  assert "2 restarts allowed" in world.board.roster.reason


def test_a_run_that_was_stopped_ends_the_job():
  world = World()
  world.run(300)
  world.stop_attempt(world.starts[-1][1])
  world.run(200)
  assert world.sizes == [3]
  assert set(world.codes.values()) == {75}


def test_a_slice_that_is_told_to_leave_saves_and_the_others_go_on_at_once():
  world = World()
  world.run(300)
  left = world.now
  for host in membership.hosts_of_slice(1, LIMITS):
    world.members[host].leave()
  world.run(30)
  assert [world.codes[host] for host in membership.hosts_of_slice(1, LIMITS)] == [75, 75]
  assert world.sizes == [3, 2]
  assert world.starts[-1][0] - left <= 3 * RHYTHM.beat_seconds


def test_a_directory_that_cannot_be_reached_stops_nothing():
  world = World()
  world.run(300)
  world.board.refused = set(range(6))
  world.run(400)
  assert world.sizes == [3]
  world.board.refused = set()
  world.run(5000)
  assert world.sizes == [3]
  assert set(world.codes.values()) == {0}


def test_a_host_that_cannot_reach_the_directory_is_lost_and_ends():
  world = World()
  world.run(300)
  world.board.refused = {3}
  # Its process ends when the others leave it.
  world.run(60)
  world.deaths.setdefault(1, world.now)
  world.run(1200)
  assert world.sizes[:2] == [3, 2]
  assert world.codes[3] == 69
  world.run(5000)
  assert {world.codes[host] for host in (0, 1, 4, 5)} == {0}


@pytest.mark.parametrize("seed", range(8))
def test_any_sequence_of_losses_ends_well(seed):
  """Slices come and go, and the directory fails, at random; then all is well."""
  chances = random.Random(seed)
  limits = dataclasses.replace(LIMITS, restarts=1000, capacity_seconds=1e6)
  world = World(limits, work=8000)
  absent = set()
  for _ in range(30):
    world.run(chances.choice([5, 20, 60, 200]))
    slice_ = chances.randrange(3)
    event = chances.random()
    if event < 0.4 and slice_ not in absent:
      world.kill(slice_)
      absent.add(slice_)
    elif event < 0.7 and slice_ in absent:
      world.revive(slice_)
      absent.remove(slice_)
    elif event < 0.85:
      world.board.refused = set(chances.sample(range(6), chances.randrange(1, 7)))
    else:
      world.board.refused = set()
    for number in {process.number for process in world.processes.values()}:
      if world.board.refused:
        world.deaths.setdefault(number, world.now)
  world.board.refused = set()
  for slice_ in absent:
    world.revive(slice_)
  for slice_ in range(3):  # hosts that gave up
    if not all(host in world.members for host in membership.hosts_of_slice(slice_, limits)):
      world.kill(slice_)
      world.revive(slice_)
  world.run(40_000)
  assert not world.members, world.board.roster
  assert set(world.codes.values()) == {0}


def test_two_hosts_never_write_one_version_of_the_roster():
  board = FakeBoard()
  first, second = board.of_host(0), board.of_host(1)
  assert first.write_roster(Roster(leader=0), None)
  _, version = first.read_roster()
  assert second.write_roster(Roster(leader=1), version)
  assert not first.write_roster(Roster(leader=0), version)


def test_processes_are_numbered_in_the_order_of_the_slices_that_exist():
  roster = Roster(
    number=4, slices=(0, 2), incarnations=dict.fromkeys((0, 1, 4, 5), "x"), address="10.0.0.1:77"
  )
  variables = attempt_variables(roster, 5, LIMITS, "secret", "tpu")
  assert variables["JAX_COORDINATOR_ADDRESS"] == "10.0.0.1:77"
  assert variables["JAX_NUM_PROCESSES"] == "4"
  assert variables["JAX_PROCESS_ID"] == "3"
  assert variables["T5X_LIKE_HOST"] == "5"
  assert variables["MEGASCALE_NUM_SLICES"] == "2"
  assert variables["MEGASCALE_SLICE_ID"] == "1"
  assert variables["MEGASCALE_COORDINATOR_ADDRESS"] == "10.0.0.1:8081"
  other = attempt_variables(dataclasses.replace(roster, number=5), 5, LIMITS, "secret", "tpu")
  assert other["T5X_LIKE_JOB_KEY"] != variables["T5X_LIKE_JOB_KEY"]
  alone = dataclasses.replace(roster, slices=(2,), incarnations=dict.fromkeys((4, 5), "x"))
  assert not [
    name for name in attempt_variables(alone, 5, LIMITS, "s", "tpu") if "MEGASCALE" in name
  ]


@pytest.mark.parametrize(
  "content",
  [
    None,
    b"",
    b"[]",
    b"{",
    b'{"host": "1", "incarnation": "x"}',
    b'{"host": 1, "incarnation": 2}',
    b'{"host": true, "incarnation": "x"}',
    b'{"host": 1, "incarnation": "x", "code": "0"}',
    b'{"host": 1, "incarnation": "x", "extra": 1}',
  ],
)
def test_a_malformed_report_counts_as_absent(content):
  assert parse_record(Report, content) is None


def test_a_malformed_roster_counts_as_absent():
  for content in (
    b"{}",
    b'{"slices": 3, "incarnations": {}}',
    b'{"slices": [], "incarnations": []}',
  ):
    assert parse_record(Roster, content) is None
