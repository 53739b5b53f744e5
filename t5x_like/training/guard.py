"""Refuse updates that are not finite or spikes of the loss: `config.guard = {"name": ...}`.

The step computes the verdict from its loss, its gradient norm and a running mean in the state; the
loop reads it one step later. The verdict is a function of the state and the batch alone, so a
resumed run reaches the same verdicts.
"""

import collections
import dataclasses
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from t5x_like import slots
from t5x_like.errors import NumericError, UserError
from t5x_like.slots import NonNegativeFloat, NonNegativeInt, PositiveInt

LossRecord = dict[str, jax.Array]
_HORIZON = 100  # updates, see `Guard.horizon`


class RolledBack(Exception):
  """A signal to the training loop: the guard took the run back to an earlier step."""


@dataclasses.dataclass(frozen=True)
class Guard:
  """A policy for updates with a loss that is not finite or a spike.

  Attributes:
    spike: refuse a loss above this many times the running mean of the absolute values of accepted
      losses (the losses of some objectives are negative); 0 refuses none.
    window: the number of updates in the mean; the first `window` updates are never spikes.
    skips: whether a refused update leaves parameters and optimizer as they were.
    steps: the least number of steps to go back before a refused update; 0 never goes back.
    limit: how many consecutive updates may be refused, or how often the run may go back, before it
      stops.
  """

  spike: float = 0.0
  window: int = 100
  skips: bool = False
  steps: int = 0
  limit: int = 0

  @property
  def horizon(self) -> int:
    """The number of the newest updates of which at most a quarter may be left out."""
    return max(_HORIZON, 4 * self.limit)

  def judge(
    self, watch: LossRecord, loss: jax.Array, gradient_norm: jax.Array
  ) -> tuple[jax.Array, LossRecord]:
    """Return (whether the update is accepted, the loss record of the next step); scalars."""
    accepted = jnp.isfinite(loss) & jnp.isfinite(gradient_norm)
    # Checkpoints of earlier versions may have a negative mean.
    mean_size = jnp.abs(watch["mean_loss"])
    if self.spike:
      has_no_mean = (watch["accepted"] < self.window) | (mean_size == 0)
      accepted &= has_no_mean | (loss <= self.spike * mean_size)
    weight = 1.0 / jnp.minimum(watch["accepted"] + 1, self.window)
    mean = mean_size + weight * (jnp.abs(loss) - mean_size)
    return accepted, {
      "mean_loss": jnp.where(accepted, mean, mean_size),
      "accepted": watch["accepted"] + accepted,
      "refused": jnp.where(accepted, 0, watch["refused"] + 1),
    }

  def describe_refusal(self, values: dict[str, float]) -> str:
    """Describe why an update with these finite metrics was refused, for messages."""
    return (
      f"train/loss is {values['loss']:.6g}, more than {self.spike:g} times the running mean "
      "of its size"
    )


def new_loss_record() -> LossRecord:
  """Return the loss record of a new run.

  It has the mean size and the number of accepted losses, and the number of losses refused since.
  """
  return {"mean_loss": np.float32(0), "accepted": np.int32(0), "refused": np.int32(0)}


def stop(*, spike: NonNegativeFloat = 0.0, window: PositiveInt = 100) -> Guard:
  """End the run; nothing is saved after the last good step."""
  return _check_spike(Guard(spike, window))


@slots.rename_keys(at_most="max_consecutive")
def skip(
  *, spike: NonNegativeFloat = 0.0, window: PositiveInt = 100, max_consecutive: NonNegativeInt = 10
) -> Guard:
  """Leave the update out and take the next batch.

  The run ends after more than `max_consecutive` refused updates in a row, or if they are a quarter
  of the last 100 updates (of four times `max_consecutive`, if that is more).
  """
  return _check_spike(Guard(spike, window, skips=True, limit=max_consecutive))


@slots.rename_keys(at_most="max_rollbacks")
def rollback(
  *,
  steps: PositiveInt,
  spike: NonNegativeFloat = 0.0,
  window: PositiveInt = 100,
  max_rollbacks: NonNegativeInt = 5,
) -> Guard:
  """Go back to a saved step, at least `steps` before, and skip the batches up to the refused one.

  The run ends if it would go back more than `max_rollbacks` times.
  """
  return _check_spike(Guard(spike, window, steps=steps, limit=max_rollbacks))


def _check_spike(guard: Guard) -> Guard:
  if guard.spike and guard.spike <= 1:
    raise UserError(
      f"config.guard.spike: found {guard.spike}, expected a factor above 1, or 0 to allow spikes"
    )
  return guard


def refusal_reason(guard: Guard, values: dict[str, float]) -> str | None:
  """Return why an update was refused, from its metrics; None if it was accepted."""
  for name in ("loss", "gradient_norm", "parameter_norm"):
    if not np.isfinite(values[name]):
      return f"train/{name} is {values[name]}"
  if values["updates_refused"]:
    return guard.describe_refusal(values)
  return None


class RefusedSteps:
  """The recent steps whose updates a guard has skipped.

  Args:
    steps: the refused steps of earlier starts, in order.
  """

  def __init__(self, guard: Guard, steps: Iterable[int]):
    self._horizon = guard.horizon
    self._steps = collections.deque(steps)

  def add(self, step: int) -> str | None:
    """Add a step; return the reason to stop if a quarter of the last updates were left out."""
    self._steps.append(step)
    while self._steps[0] <= step - self._horizon:
      self._steps.popleft()
    if len(self._steps) <= self._horizon // 4:
      return None
    return f"{len(self._steps)} of the last {min(step, self._horizon)} updates were left out"


def skip_refused_updates(
  optimizer: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
  """Return the optimizer; its state changes only if the argument `accepted` of `update` is true."""

  def update(grads, state, params=None, *, accepted, **extra):
    updates, new = optimizer.update(grads, state, params, **extra)
    return updates, jax.tree.map(lambda n, o: jnp.where(accepted, n, o), new, state)

  return optax.GradientTransformationExtraArgs(optimizer.init, update)


def stop_error(reason: str, step: int, saved: list[int]) -> NumericError:
  """Return the error that ends a run."""
  return NumericError(
    f"{reason} at step {step}; the newest step saved is {max(saved, default='none')}; lower the "
    "learning rate, clip gradients (--config.clip_norm=1.0) or leave such updates out "
    "(--config.guard.name=skip), and run the same command again"
  )


def rollback_target(guard: Guard, reason: str, refused_step: int, saved: list[int]) -> int:
  """Return the saved step to return to; raise NumericError if none is early enough."""
  candidates = [step for step in saved if step <= refused_step - guard.steps]
  if not candidates:
    raise NumericError(
      f"{reason} at step {refused_step}; no step {guard.steps} before is saved; lower "
      "--config.checkpoint.every"
    )
  return max(candidates)


GUARDS = {"stop": stop, "skip": skip, "rollback": rollback}
