"""Saves happen at multiples of an interval and at least every so many minutes."""

from ml_collections import ConfigDict

from t5x_like.checkpoints.manager import SaveSchedule


class Clock:
  def __init__(self):
    self.now = 1e5
    self.looks = 0

  def __call__(self):
    self.looks += 1
    return self.now


def simulate_saves(every, minutes, seconds, start=0):
  """The steps saved, with the seconds since the save before, and how often the clock was read; step
  i takes `seconds(i)`, and its end is seen one step late, as the loop dispatches ahead."""
  clock = Clock()
  times = SaveSchedule(ConfigDict({"every": every, "minutes": minutes}), start, clock)
  clock.looks = 0
  last = clock.now
  steps = []
  for step in range(start + 1, start + 1001):
    clock.now += seconds(step - 1) if step > start + 1 else 0.01
    if times.due(step):
      steps.append((step, clock.now - last))
      last = clock.now
  return steps, clock.looks


def test_multiples_of_the_interval_are_always_saved():
  for minutes, seconds in ((None, 100.0), (1000.0, 1.0)):
    steps, _ = simulate_saves(50, minutes, lambda step, seconds=seconds: seconds, start=7)
    assert [step for step, _ in steps] == list(range(50, 1001, 50)), minutes


def test_no_more_than_the_minutes_and_a_step_pass_between_saves():
  for seconds in (0.05, 1.0, 7.0, 45.0):
    steps, looks = simulate_saves(100_000, 0.5, lambda step, seconds=seconds: seconds, start=3)
    gaps = [gap for _, gap in steps]
    assert steps, seconds
    assert max(gaps) <= 30 + 2 * seconds, seconds
    assert min(gaps[1:], default=30) >= 30, seconds
    assert looks < 60 or seconds > 0.05, looks
    assert seconds < 30 or len(steps) >= 998


def test_steps_that_become_slower_are_noticed():
  steps, _ = simulate_saves(100_000, 1, lambda step: 0.1 if step < 400 else 20.0)
  late, *slow = [(step, gap) for step, gap in steps if step > 400]
  assert late[0] <= 431
  assert all(60 <= gap <= 100 for _, gap in slow)
  assert len(slow) > 130
