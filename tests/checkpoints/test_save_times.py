"""Saves happen at multiples of an interval of steps, and at least every given number of minutes."""

from ml_collections import ConfigDict

from t5x_like.checkpoints.manager import SaveSchedule


class CountingClock:
  def __init__(self):
    self.now = 1e5
    self.reads = 0

  def __call__(self):
    self.reads += 1
    return self.now


def simulate_saves(every, minutes, seconds, start=0):
  """Simulate 1000 steps, of which step i takes `seconds(i)`.

  The end of a step is seen one step late, because the training loop dispatches ahead.

  Returns:
    ([(saved step, seconds since the save before it)], how often the clock was read).
  """
  clock = CountingClock()
  schedule = SaveSchedule(ConfigDict({"every": every, "minutes": minutes}), start, clock)
  clock.reads = 0
  last = clock.now
  steps = []
  for step in range(start + 1, start + 1001):
    clock.now += seconds(step - 1) if step > start + 1 else 0.01
    if schedule.due(step):
      steps.append((step, clock.now - last))
      last = clock.now
  return steps, clock.reads


def test_multiples_of_the_interval_are_always_saved():
  for minutes, seconds in ((None, 100.0), (1000.0, 1.0)):
    steps, _ = simulate_saves(50, minutes, lambda step, seconds=seconds: seconds, start=7)
    assert [step for step, _ in steps] == list(range(50, 1001, 50)), minutes


def test_gaps_exceed_the_minutes_by_at_most_two_steps():
  for seconds in (0.05, 1.0, 7.0, 45.0):
    steps, reads = simulate_saves(100_000, 0.5, lambda step, seconds=seconds: seconds, start=3)
    gaps = [gap for _, gap in steps]
    assert steps, seconds
    assert max(gaps) <= 30 + 2 * seconds, seconds
    assert min(gaps[1:], default=30) >= 30, seconds
    assert reads < 60 or seconds > 0.05, reads  # short steps: the clock is read rarely
    assert seconds < 30 or len(steps) >= 998  # long steps: nearly every step is saved


def test_gaps_stay_short_when_steps_become_slower():
  steps, _ = simulate_saves(100_000, 1, lambda step: 0.1 if step < 400 else 20.0)
  late, *slow = [(step, gap) for step, gap in steps if step > 400]
  assert late[0] <= 431
  assert all(60 <= gap <= 100 for _, gap in slow)
  assert len(slow) > 130
