"""Learning-rate schedules equal their closed forms."""

import math

import numpy as np
import pytest

from refusals import refuses
from t5x_like import slots
from t5x_like.training.schedule import SCHEDULES

STEPS = [0, 1, 5, 9, 10, 11, 37, 60, 99, 100, 101, 5000]
WARM = dict(learning_rate=0.4, warmup_steps=10, total_steps=100)
COLD = WARM | {"warmup_steps": 0}


def warmup_share(step, warmup=10):
  """Return the share of a rate that a linear warm-up has reached."""
  return min(1, step / warmup)


def decay_share(step, first, steps):
  """Return the share of the steps of a decay that have passed."""
  return min(1, max(0, (step - first) / steps))


def cosine(share):
  return 0.5 + 0.5 * math.cos(math.pi * share)


CASES = [
  ("constant", dict(learning_rate=0.3), lambda s: 0.3),
  ("rsqrt", dict(learning_rate=2.0, warmup_steps=10), lambda s: 2.0 / math.sqrt(max(s, 10))),
  ("rsqrt", dict(), lambda s: 1.0 / math.sqrt(max(s, 10_000))),
  (
    "warmup_rsqrt",  # the formula of "Attention is all you need" with a width of 512
    dict(learning_rate=(512 * 10) ** -0.5, warmup_steps=10),
    lambda s: 512**-0.5 * min(s**-0.5, s * 10**-1.5) if s else 0.0,
  ),
  (
    "linear",
    WARM | {"end": 0.25},
    lambda s: 0.4 * warmup_share(s) * (1 - 0.75 * decay_share(s, 10, 90)),
  ),
  ("linear", WARM, lambda s: 0.4 * warmup_share(s) * (1 - decay_share(s, 10, 90))),
  ("linear", COLD, lambda s: 0.4 * (1 - decay_share(s, 0, 100))),
  # The warm-up is a share of the run.
  (
    "linear",
    WARM | {"warmup_steps": 0.1},
    lambda s: 0.4 * warmup_share(s) * (1 - decay_share(s, 10, 90)),
  ),
  (
    "linear",  # BERT's
    WARM | {"decay": "from_start"},
    lambda s: 0.4 * (warmup_share(s) if s < 10 else 1 - decay_share(s, 0, 100)),
  ),
  ("linear", COLD | {"decay": "from_start"}, lambda s: 0.4 * (1 - decay_share(s, 0, 100))),
  (
    "linear",  # ELECTRA's and GPT-1's
    WARM | {"decay": "from_start_times_warmup"},
    lambda s: 0.4 * warmup_share(s) * (1 - decay_share(s, 0, 100)),
  ),
  (
    "linear",
    COLD | {"decay": "from_start_times_warmup"},
    lambda s: 0.4 * (1 - decay_share(s, 0, 100)),
  ),
  (
    "warmup_stable_decay",
    WARM | {"decay": 0.4, "end": 0.1},
    lambda s: 0.4 * warmup_share(s) * (1 - 0.9 * decay_share(s, 60, 40)),
  ),
  (
    "warmup_stable_decay",
    COLD | {"decay": 90, "shape": "sqrt"},
    lambda s: 0.4 * (1 - math.sqrt(decay_share(s, 10, 90))),
  ),
  (
    "warmup_stable_decay",
    WARM | {"total_steps": 80, "decay": 20, "end": 0.1, "shape": "cosine"},
    lambda s: 0.4 * warmup_share(s) * (0.1 + 0.9 * cosine(decay_share(s, 60, 20))),
  ),
  # A decay shorter than half a step takes one step.
  ("warmup_stable_decay", COLD | {"total_steps": 2}, lambda s: 0.4 if s < 2 else 0.0),
  ("drops", dict(learning_rate=0.4), lambda s: 0.4),
  (
    "drops",
    dict(learning_rate=0.4, steps=(10, 90), factor=0.5, warmup_steps=3),
    lambda s: 0.4 * min(1, (s + 1) / 4) * 0.5 ** ((s >= 10) + (s >= 90)),
  ),
  (
    "cosine",
    WARM | {"end": 0.1},
    lambda s: 0.4 * warmup_share(s) * (0.1 + 0.9 * cosine(decay_share(s, 10, 90))),
  ),
  ("cosine", COLD, lambda s: 0.4 * cosine(decay_share(s, 0, 100))),
]


@pytest.mark.parametrize("name, arguments, expected", CASES)
def test_schedules_equal_their_closed_forms(name, arguments, expected):
  schedule = SCHEDULES[name](**arguments)
  actual = np.array([float(schedule(np.int32(step))) for step in STEPS])
  np.testing.assert_allclose(actual, [expected(step) for step in STEPS], rtol=1e-5, atol=1e-8)


def test_every_schedule_has_a_case():
  untested = set(SCHEDULES) - {name for name, *_ in CASES}
  assert not untested, f"add to CASES the closed form of {sorted(untested)}"


@pytest.mark.parametrize("name", ["linear", "cosine", "warmup_stable_decay"])
def test_warm_up_is_a_number_of_steps_or_a_share_of_the_run(name):
  arguments = dict(learning_rate=1.0, total_steps=40)
  for steps in (4, 4.0, 0.1):
    rate = SCHEDULES[name](warmup_steps=steps, **arguments)
    np.testing.assert_allclose(rate(3), 0.75, rtol=1e-6)


def test_rsqrt_at_a_late_step():
  np.testing.assert_allclose(float(SCHEDULES["rsqrt"]()(np.int32(10**9))), 1e-9**0.5, rtol=1e-5)


@pytest.mark.parametrize(
  "name, warmup_steps, expected",
  [
    ("linear", 1.5, "a whole number of steps, or a share of the run"),
    ("linear", -0.1, "a whole number of steps, or a share of the run"),
    ("cosine", 100, "fewer"),
    ("warmup_stable_decay", 81, "at most 80"),  # the decay takes 20 steps
  ],
)
def test_too_long_warm_up_is_refused(name, warmup_steps, expected):
  config = {"name": name} | WARM | {"warmup_steps": warmup_steps}
  with refuses("warmup_steps", f"found {warmup_steps}", expected):
    slots.make("config.schedule", config, SCHEDULES)
