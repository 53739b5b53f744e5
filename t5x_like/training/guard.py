"""What a run does about an update that is not a number, or a spike of the loss: `config.guard = {"name": ...}`.

The verdict is computed in the step, from its loss, its gradient norm and a running mean that is part of the state, and
read one step later. It is a function of the state and the batch alone, so a resumed run comes to the same verdicts.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax

from t5x_like.errors import NumericError, UserError
from t5x_like.slots import Count, NotNegative, Positive

Watch = dict[str, jax.Array]


class RolledBack(Exception):
  """The run has gone back to an earlier step."""


@dataclasses.dataclass(frozen=True)
class Guard:
  """A policy.

  Attributes:
    spike: a loss above this many times the running mean of accepted ones is refused; 0 for none.
    window: over how many updates the mean runs; there are no spikes in the first so many.
    skips: whether a refused update leaves parameters and optimizer as they were.
    steps: how far to go back before a refused update; 0 not to.
    at_most: refused updates in a row, or times to go back, before the run stops.
  """

  spike: float = 0.0
  window: int = 100
  skips: bool = False
  steps: int = 0
  at_most: int = 0

  def judge(self, watch: Watch, loss: jax.Array, gradient_norm: jax.Array) -> tuple[jax.Array, Watch]:
    """(whether the update is accepted, what the next verdict rests on); scalars."""
    accepted = jnp.isfinite(loss) & jnp.isfinite(gradient_norm)
    if self.spike:
      accepted &= (watch["accepted"] < self.window) | (loss <= self.spike * watch["mean_loss"])
    weight = 1.0 / jnp.minimum(watch["accepted"] + 1, self.window)
    mean = watch["mean_loss"] + weight * (loss - watch["mean_loss"])
    return accepted, {
      "mean_loss": jnp.where(accepted, mean, watch["mean_loss"]),
      "accepted": watch["accepted"] + accepted,
      "refused": jnp.where(accepted, 0, watch["refused"] + 1),
    }


def watch() -> Watch:
  """That of a new run: the mean of accepted losses, how many there were, and how many were refused since the last."""
  return {"mean_loss": np.float32(0), "accepted": np.int32(0), "refused": np.int32(0)}


def stop(*, spike: NotNegative = 0.0, window: Positive = 100) -> Guard:
  """The run ends; nothing is saved after the last good step."""
  return _checked(Guard(spike, window))


def skip(*, spike: NotNegative = 0.0, window: Positive = 100, at_most: Count = 10) -> Guard:
  """The update is left out and the next batch follows; the run ends after `at_most` in a row."""
  return _checked(Guard(spike, window, skips=True, at_most=at_most))


def rollback(*, steps: Positive, spike: NotNegative = 0.0, window: Positive = 100, at_most: Count = 5) -> Guard:
  """The run goes back to a saved step, at least `steps` before, and on with the batches after the refused one."""
  if steps < 1:
    raise UserError(f"config.guard.steps: found {steps}, expected at least 1")
  return _checked(Guard(spike, window, steps=steps, at_most=at_most))


def _checked(guard: Guard) -> Guard:
  if guard.spike and guard.spike <= 1:
    raise UserError(f"config.guard.spike: found {guard.spike}, expected a factor above 1, or 0 for no such check")
  if guard.window < 1 or guard.at_most < 0:
    raise UserError(f"config.guard: found window {guard.window} and at_most {guard.at_most}, expected at least 1 and 0")
  return guard


def told(guard: Guard, values: dict[str, float]) -> str | None:
  """What is wrong with an update, from its metrics; None if nothing is."""
  for name in ("loss", "gradient_norm", "parameter_norm"):
    if not np.isfinite(values[name]):
      return f"train/{name} is {values[name]}"
  if values["updates_refused"]:
    return f"train/loss is {values['loss']:.6g}, more than {guard.spike:g} times its running mean"
  return None


def skipping(optimizer: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
  """The optimizer, whose state stays as it was unless the argument `accepted` of `update` is true."""

  def update(grads, state, params=None, *, accepted, **extra):
    updates, new = optimizer.update(grads, state, params, **extra)
    return updates, jax.tree.map(lambda n, o: jnp.where(accepted, n, o), new, state)

  return optax.GradientTransformationExtraArgs(optimizer.init, update)


def stopped(why: str, step: int, saved: list[int]) -> NumericError:
  """The error that ends a run."""
  return NumericError(
    f"{why} at step {step}; the newest step saved is {max(saved, default='none')}; lower the learning rate, clip"
    " gradients (--config.clip_norm=1.0) or leave such updates out (--config.guard.name=skip), and run the same command"
    " again"
  )


def target(guard: Guard, why: str, bad: int, saved: list[int]) -> int:
  """The step to go back to before step `bad`, of those saved.

  Raises:
    NumericError: none is early enough.
  """
  early = [step for step in saved if step <= bad - guard.steps]
  if not early:
    raise NumericError(f"{why} at step {bad}; no step up to {bad - guard.steps} was saved; save more often")
  return max(early)


GUARDS = {"stop": stop, "skip": skip, "rollback": rollback}
