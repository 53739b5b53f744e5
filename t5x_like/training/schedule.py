"""Learning-rate schedules, by name: `config.schedule = {"name": ..., ...}`."""

import jax.numpy as jnp
import optax

from t5x_like.errors import UserError
from t5x_like.slots import Positive

Schedule = optax.Schedule


def constant(*, learning_rate: float) -> Schedule:
  return optax.constant_schedule(learning_rate)


def rsqrt(*, learning_rate: float = 1.0, warmup_steps: int = 10_000) -> Schedule:
  """`learning_rate / sqrt(max(step, warmup_steps))`: constant, then inverse square root (Raffel et al. 2020, 3.1.2)."""
  return lambda step: learning_rate / jnp.sqrt(jnp.maximum(step, warmup_steps))


def warmup_rsqrt(*, learning_rate: float, warmup_steps: int) -> Schedule:
  """Linear warm-up from zero to `learning_rate`, then inverse square root decay (Vaswani et al. 2017, section 5.3).

  The paper's `D^-0.5 * min(step^-0.5, step * warmup^-1.5)` peaks at `(D * warmup)^-0.5`.
  """

  def rate(step):
    step = jnp.asarray(step, jnp.float32)
    return learning_rate * jnp.minimum(step / warmup_steps, jnp.sqrt(warmup_steps / jnp.maximum(step, 1.0)))

  return rate


def linear(*, learning_rate: float, warmup_steps: int, total_steps: int, end: float = 0.0) -> Schedule:
  """Linear warm-up from zero, then linear decay to `end * learning_rate` at `total_steps` (Devlin et al. 2019, A.2)."""
  warmup = optax.linear_schedule(0.0, learning_rate, warmup_steps)
  decay = optax.linear_schedule(learning_rate, end * learning_rate, total_steps - warmup_steps)
  return optax.join_schedules([warmup, decay], [warmup_steps])


def cosine(*, learning_rate: float, warmup_steps: int, total_steps: int, end: float = 0.0) -> Schedule:
  """Linear warm-up from zero, then a half cosine down to `end * learning_rate` (Loshchilov & Hutter 2017).

  Raises:
    UserError: the run ends before the warm-up does.
  """
  if not 0 <= warmup_steps < total_steps:
    raise UserError(
      f"config.schedule.warmup_steps: found {warmup_steps} in a run of {total_steps} steps, expected fewer; set"
      " --config.schedule.warmup_steps"
    )
  return optax.warmup_cosine_decay_schedule(0.0, learning_rate, warmup_steps, total_steps, end * learning_rate)


def drops(
  *, learning_rate: float, steps: tuple[Positive, ...] = (), factor: float = 0.1, warmup_steps: int = 0
) -> Schedule:
  """Linear warm-up from zero, then constant but for a multiplication by `factor` at each of `steps`."""

  def rate(step):
    passed = jnp.sum(jnp.asarray(step) >= jnp.asarray(steps, jnp.int32))
    return learning_rate * factor**passed * jnp.minimum((step + 1) / (warmup_steps + 1), 1.0)

  return rate


SCHEDULES = {
  "constant": constant,
  "rsqrt": rsqrt,
  "warmup_rsqrt": warmup_rsqrt,
  "linear": linear,
  "cosine": cosine,
  "drops": drops,
}
