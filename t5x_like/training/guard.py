"""Guards against updates that are not finite and spikes of the loss: `config.guard = {"name": ...}`.

The step computes the verdict, from its loss, its gradient norm and a running mean in the state; the loop reads it one
step later. It is a function of the state and the batch alone, so a resumed run comes to the same verdicts.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax

from t5x_like.errors import NumericError, UserError
from t5x_like.slots import Count, NotNegative, Positive

Watch = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Guard:
  """A policy.

  Attributes:
    spike: refuse a loss above this many times the running mean of accepted losses; 0 refuses none.
    window: the number of updates in the mean; the first `window` updates are never spikes.
    skips: whether a refused update leaves parameters and optimizer as they were.
    steps: the least number of steps to go back before a refused update; 0 never goes back.
    at_most: refused updates in a row, or times to go back, before the run stops.
  """

  spike: float = 0.0
  window: int = 100
  skips: bool = False
  steps: int = 0
  at_most: int = 0

  def judge(self, watch: Watch, loss: jax.Array, gradient_norm: jax.Array) -> tuple[jax.Array, Watch]:
    """Return (whether the update is accepted, the `watch` of the next step); scalars."""
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
  """Return the watch of a new run: mean and number of accepted losses, and number of refused ones since the last."""
  return {"mean_loss": np.float32(0), "accepted": np.int32(0), "refused": np.int32(0)}


def stop(*, spike: NotNegative = 0.0, window: Positive = 100) -> Guard:
  """End the run; nothing is saved after the last good step."""
  return _checked(Guard(spike, window))


def skip(*, spike: NotNegative = 0.0, window: Positive = 100, at_most: Count = 10) -> Guard:
  """Leave the update out and take the next batch; end the run after more than `at_most` in a row."""
  return _checked(Guard(spike, window, skips=True, at_most=at_most))


def rollback(*, steps: Positive, spike: NotNegative = 0.0, window: Positive = 100, at_most: Count = 5) -> Guard:
  """Go back to a saved step, at least `steps` before, and on with the batches after the refused one."""
  return _checked(Guard(spike, window, steps=steps, at_most=at_most))


def _checked(guard: Guard) -> Guard:
  if guard.spike and guard.spike <= 1:
    raise UserError(f"config.guard.spike: found {guard.spike}, expected a factor above 1, or 0 for no such check")
  return guard


def told(guard: Guard, values: dict[str, float]) -> str | None:
  """Return the fault of an update, from its metrics, for messages; None if there is none."""
  for name in ("loss", "gradient_norm", "parameter_norm"):
    if not np.isfinite(values[name]):
      return f"train/{name} is {values[name]}"
  if values["updates_refused"]:
    return f"train/loss is {values['loss']:.6g}, more than {guard.spike:g} times its running mean"
  return None


def skipping(optimizer: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
  """Return the optimizer; its state changes only if the argument `accepted` of `update` is true."""

  def update(grads, state, params=None, *, accepted, **extra):
    updates, new = optimizer.update(grads, state, params, **extra)
    return updates, jax.tree.map(lambda n, o: jnp.where(accepted, n, o), new, state)

  return optax.GradientTransformationExtraArgs(optimizer.init, update)


def stopped(why: str, step: int, saved: list[int]) -> NumericError:
  """Return the error that ends a run."""
  return NumericError(
    f"{why} at step {step}; the newest step saved is {max(saved, default='none')}; lower the learning rate, clip"
    " gradients (--config.clip_norm=1.0) or leave such updates out (--config.guard.name=skip), and run the same command"
    " again"
  )


def target(guard: Guard, why: str, bad: int, saved: list[int]) -> int:
  """Return the saved step to go back to before step `bad`; raise NumericError if none is early enough."""
  early = [step for step in saved if step <= bad - guard.steps]
  if not early:
    raise NumericError(f"{why} at step {bad}; no step {guard.steps} before is saved; lower --config.checkpoint.every")
  return max(early)


GUARDS = {"stop": stop, "skip": skip, "rollback": rollback}
