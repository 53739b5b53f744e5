"""Learning-rate schedules equal their closed forms."""

import math

import numpy as np
import pytest

from t5x_like import slots
from t5x_like.errors import UserError
from t5x_like.training.schedule import SCHEDULES

STEPS = [0, 1, 5, 9, 10, 11, 37, 60, 99, 100, 101, 5000]


def linear_warmup(step, peak, warmup, decay):
  return peak * step / warmup if step < warmup else decay(step)


CASES = [
  ("constant", dict(learning_rate=0.3), lambda s: 0.3),
  ("rsqrt", dict(learning_rate=2.0, warmup_steps=10), lambda s: 2.0 / math.sqrt(max(s, 10))),
  ("rsqrt", dict(), lambda s: 1.0 / math.sqrt(max(s, 10_000))),
  (
    "warmup_rsqrt",  # as the formula of the paper with a width of 512
    dict(learning_rate=(512 * 10) ** -0.5, warmup_steps=10),
    lambda s: 512**-0.5 * min(s**-0.5, s * 10**-1.5) if s else 0.0,
  ),
  (
    "linear",
    dict(learning_rate=0.4, warmup_steps=10, total_steps=100, end=0.25),
    lambda s: linear_warmup(s, 0.4, 10, lambda s: 0.4 + (0.1 - 0.4) * min(1, (s - 10) / 90)),
  ),
  (
    "linear",
    dict(learning_rate=0.4, warmup_steps=10, total_steps=100),
    lambda s: linear_warmup(s, 0.4, 10, lambda s: 0.4 * max(0, (100 - s) / 90)),
  ),
  (
    "linear",  # BERT's
    dict(learning_rate=0.4, warmup_steps=10, total_steps=100, decay="from_start"),
    lambda s: linear_warmup(s, 0.4, 10, lambda s: 0.4 * max(0, 1 - s / 100)),
  ),
  (
    "linear",  # ELECTRA's and GPT-1's
    dict(learning_rate=0.4, warmup_steps=10, total_steps=100, decay="from_start_times_warmup"),
    lambda s: 0.4 * min(1, s / 10) * max(0, 1 - s / 100),
  ),
  (
    "linear",  # a warm-up of a share of the run
    dict(learning_rate=0.4, warmup_steps=0.1, total_steps=100),
    lambda s: linear_warmup(s, 0.4, 10, lambda s: 0.4 * max(0, (100 - s) / 90)),
  ),
  (
    "warmup_stable_decay",
    dict(learning_rate=0.4, warmup_steps=10, total_steps=100, decay=0.4, end=0.1),
    lambda s: 0.4 * min(1, s / 10) * (1 - 0.9 * min(1, max(0, (s - 60) / 40))),
  ),
  (
    "warmup_stable_decay",
    dict(learning_rate=0.4, warmup_steps=0, total_steps=100, decay=90, shape="sqrt"),
    lambda s: 0.4 * (1 - math.sqrt(min(1, max(0, (s - 10) / 90)))),
  ),
  (
    "warmup_stable_decay",
    dict(learning_rate=0.4, warmup_steps=10, total_steps=80, decay=20, end=0.1, shape="cosine"),
    lambda s: (
      0.4 * min(1, s / 10) * (0.55 + 0.45 * math.cos(math.pi * min(1, max(0, (s - 60) / 20))))
    ),
  ),
  ("drops", dict(learning_rate=0.4), lambda s: 0.4),
  (
    "drops",
    dict(learning_rate=0.4, steps=(10, 90), factor=0.5, warmup_steps=3),
    lambda s: 0.4 * min(1, (s + 1) / 4) * 0.5 ** ((s >= 10) + (s >= 90)),
  ),
  (
    "cosine",
    dict(learning_rate=0.4, warmup_steps=10, total_steps=100, end=0.1),
    lambda s: linear_warmup(
      s, 0.4, 10, lambda s: 0.04 + 0.36 * 0.5 * (1 + math.cos(math.pi * min(1, (s - 10) / 90)))
    ),
  ),
]


@pytest.mark.parametrize("name, arguments, expected", CASES)
def test_schedules_equal_their_closed_forms(name, arguments, expected):
  schedule = SCHEDULES[name](**arguments)
  actual = np.array([float(schedule(np.int32(step))) for step in STEPS])
  np.testing.assert_allclose(actual, [expected(step) for step in STEPS], rtol=1e-5, atol=1e-8)


def test_all_schedules_are_tested():
  assert {name for name, *_ in CASES} == set(SCHEDULES)


@pytest.mark.parametrize("name", ["linear", "cosine", "warmup_stable_decay"])
def test_without_warm_up_the_first_step_has_the_full_rate(name):
  schedule = SCHEDULES[name](learning_rate=0.4, warmup_steps=0, total_steps=100)
  np.testing.assert_allclose(float(schedule(0)), 0.4, rtol=1e-6)
  np.testing.assert_allclose(float(schedule(100)), 0.0, atol=1e-7)


def test_a_warm_up_is_steps_or_a_share_of_the_run():
  for name in ("linear", "cosine", "warmup_stable_decay"):
    rates = [
      SCHEDULES[name](learning_rate=1.0, warmup_steps=steps, total_steps=40)(3)
      for steps in (4, 4.0, 0.1)
    ]
    np.testing.assert_allclose(rates, 0.75, rtol=1e-6)
  for decay in ("from_start", "from_start_times_warmup"):
    rate = SCHEDULES["linear"](learning_rate=0.4, warmup_steps=0, total_steps=100, decay=decay)
    np.testing.assert_allclose([float(rate(0)), float(rate(50))], [0.4, 0.2], rtol=1e-6)
  for steps in (1.5, -0.1):
    with pytest.raises(
      UserError,
      match="warmup_steps: found .*, expected a whole number of steps, or a share of the run",
    ):
      config = {"name": "linear", "learning_rate": 1.0, "warmup_steps": steps, "total_steps": 10}
      slots.make("config.schedule", config, SCHEDULES)


def test_a_decay_of_less_than_half_a_step_is_one_step():
  rate = SCHEDULES["warmup_stable_decay"](learning_rate=0.4, warmup_steps=0, total_steps=2)
  np.testing.assert_allclose([rate(0), rate(1), rate(2)], [0.4, 0.4, 0.0], rtol=1e-6)


def test_rsqrt_at_a_late_step():
  np.testing.assert_allclose(float(SCHEDULES["rsqrt"]()(np.int32(10**9))), 1e-9**0.5, rtol=1e-5)


def test_a_warm_up_as_long_as_the_run_is_refused():
  with pytest.raises(
    UserError, match="warmup_steps: found 100 in a run of 100 steps, expected fewer"
  ):
    SCHEDULES["cosine"](learning_rate=0.4, warmup_steps=100, total_steps=100)


def test_a_warm_up_that_leaves_no_room_for_the_decay_is_refused():
  with pytest.raises(
    UserError, match="warmup_steps: found 81 in a run of 100 steps, expected at most 80"
  ):
    SCHEDULES["warmup_stable_decay"](learning_rate=0.4, warmup_steps=81, total_steps=100)
