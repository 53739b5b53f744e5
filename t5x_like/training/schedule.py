"""Learning-rate schedules, by name: `config.schedule = {"name": ..., ...}`."""

from typing import Annotated, Literal

import jax.numpy as jnp
import optax

from t5x_like.errors import UserError
from t5x_like.slots import Condition, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

Schedule = optax.Schedule
_STEPS_OR_SHARE = Condition(
  "a whole number of steps, or a share of the run from 0 to 1",
  lambda x: 0 <= x < 2**31 and (x < 1 or x == int(x)),
)
Warmup = Annotated[float, _STEPS_OR_SHARE]


def constant(*, learning_rate: NonNegativeFloat) -> Schedule:
  """Keep the rate constant."""
  return optax.constant_schedule(learning_rate)


def rsqrt(*, learning_rate: NonNegativeFloat = 1.0, warmup_steps: PositiveInt = 10_000) -> Schedule:
  """Stay constant, then decay: `learning_rate / sqrt(max(step, warmup_steps))`.

  Raffel et al. 2020, section 3.1.2.
  """
  return lambda step: learning_rate / jnp.sqrt(jnp.maximum(step, warmup_steps))


def warmup_rsqrt(*, learning_rate: NonNegativeFloat, warmup_steps: PositiveInt) -> Schedule:
  """Rise linearly from zero to `learning_rate`, then decay by the inverse square root.

  Vaswani et al. 2017, section 5.3.

  The paper's `D^-0.5 * min(step^-0.5, step * warmup^-1.5)` peaks at `(D * warmup)^-0.5`.
  """

  def rate(step):
    step = jnp.asarray(step, jnp.float32)
    return learning_rate * jnp.minimum(
      step / warmup_steps, jnp.sqrt(warmup_steps / jnp.maximum(step, 1.0))
    )

  return rate


def linear(
  *,
  learning_rate: NonNegativeFloat,
  warmup_steps: Warmup,
  total_steps: PositiveInt,
  end: NonNegativeFloat = 0.0,
  decay: Literal["after_warmup", "from_start", "from_start_times_warmup"] = "after_warmup",
) -> Schedule:
  """Rise linearly from zero, then fall linearly to `end * learning_rate` at `total_steps`.

  `after_warmup` decays from the peak at the end of the warm-up, as fairseq and XLNet do.
  `from_start` decays from step 0, `learning_rate * (1 - step / total_steps)`, but follows the
  warm-up until its end, as in the code of BERT and ALBERT. `from_start_times_warmup` multiplies
  that decay by the warm-up, as in the code of ELECTRA and GPT-1.

  Raises:
    UserError: the run ends before the warm-up does.
  """
  warmup_steps = _checked_warmup(warmup_steps, total_steps)
  warmup = optax.linear_schedule(0.0, learning_rate, warmup_steps)
  if decay == "after_warmup":
    down = optax.linear_schedule(learning_rate, end * learning_rate, total_steps - warmup_steps)
    return optax.join_schedules([warmup, down], [warmup_steps])
  down = optax.linear_schedule(learning_rate, end * learning_rate, total_steps)
  if decay == "from_start":
    return lambda step: jnp.where(step < warmup_steps, warmup(step), down(step))
  up = (
    optax.linear_schedule(0.0, 1.0, warmup_steps) if warmup_steps else optax.constant_schedule(1.0)
  )
  return lambda step: up(step) * down(step)


def cosine(
  *,
  learning_rate: NonNegativeFloat,
  warmup_steps: Warmup,
  total_steps: PositiveInt,
  end: NonNegativeFloat = 0.0,
) -> Schedule:
  """Rise linearly from zero, then fall by half a cosine to `end * learning_rate`.

  Loshchilov and Hutter 2017.

  Raises:
    UserError: the run ends before the warm-up does.
  """
  warmup_steps = _checked_warmup(warmup_steps, total_steps)
  return optax.warmup_cosine_decay_schedule(
    0.0, learning_rate, warmup_steps, total_steps, end * learning_rate
  )


def _steps(warmup_steps: float, total_steps: int) -> int:
  """Return the number of steps of a warm-up; a value below 1 is a share of the run."""
  if warmup_steps >= 1:
    return int(warmup_steps)
  return int(warmup_steps * total_steps + 1e-6)  # 1e-6 corrects errors of rounding


def _checked_warmup(warmup_steps: float, total_steps: int) -> int:
  steps = _steps(warmup_steps, total_steps)
  if steps >= total_steps:
    raise UserError(
      f"config.schedule.warmup_steps: found {warmup_steps:g} in a run of {total_steps} steps, "
      "expected fewer; set --config.schedule.warmup_steps, such as 0.1 for a tenth of the run"
    )
  return steps


def drops(
  *,
  learning_rate: NonNegativeFloat,
  steps: tuple[PositiveInt, ...] = (),
  factor: NonNegativeFloat = 0.1,
  warmup_steps: NonNegativeInt = 0,
) -> Schedule:
  """Rise linearly from zero, then stay constant, multiplied by `factor` at each of `steps`."""

  def rate(step):
    passed = jnp.sum(jnp.asarray(step) >= jnp.asarray(steps, jnp.int32))
    return learning_rate * factor**passed * jnp.minimum((step + 1) / (warmup_steps + 1), 1.0)

  return rate


def warmup_stable_decay(
  *,
  learning_rate: NonNegativeFloat,
  warmup_steps: Warmup,
  total_steps: PositiveInt,
  decay: PositiveFloat = 0.2,
  end: NonNegativeFloat = 0.0,
  shape: Literal["linear", "sqrt", "cosine"] = "linear",
) -> Schedule:
  """Rise linearly from zero, stay constant, then decay to `end * learning_rate`.

  Hu et al. 2024, arXiv:2404.06395.

  `decay` is the number of steps of the decay or, up to 1, its share of the run. Its shape is a
  straight line, a half cosine, or `1 - sqrt(share of the decay)` (Haegele et al. 2024,
  arXiv:2405.18392, section 3).

  Raises:
    UserError: the run ends before the warm-up and the decay do.
  """
  warmup_steps = _steps(warmup_steps, total_steps)
  decay_steps = max(1, round(decay * total_steps if decay <= 1 else decay))
  decay_start = total_steps - decay_steps
  if warmup_steps > decay_start:
    raise UserError(
      f"config.schedule.warmup_steps: found {warmup_steps} in a run of {total_steps} steps, "
      f"expected at most {decay_start} before the decay; set --config.schedule.warmup_steps"
    )

  def rate(step):
    share = jnp.clip((jnp.asarray(step, jnp.float32) - decay_start) / decay_steps, 0.0, 1.0)
    if shape == "sqrt":
      down = 1.0 - jnp.sqrt(share)
    elif shape == "cosine":
      down = 0.5 + 0.5 * jnp.cos(jnp.pi * share)
    else:
      down = 1.0 - share
    up = jnp.minimum(step / warmup_steps, 1.0) if warmup_steps else 1.0
    return learning_rate * up * (end + (1.0 - end) * down)

  return rate


SCHEDULES = {
  f.__name__: f for f in (constant, rsqrt, warmup_rsqrt, linear, cosine, drops, warmup_stable_decay)
}
