"""One training step: sums of losses over the global batch, divided once, and one update."""

from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp
import optax

from t5x_like.nn import params
from t5x_like.objectives import METRIC_NAMES, denominator, evaluate
from t5x_like.parallel.rules import Rules
from t5x_like.training.guard import Guard
from t5x_like.training.optimizers.adafactor import reread
from t5x_like.training.schedule import Schedule
from t5x_like.training.state import TrainState

Batch = dict[str, jax.Array]


def make_step(
  model,
  objective: Callable,
  optimizer: optax.GradientTransformation,
  schedule: Schedule,
  rules: Rules,
  *,
  seed: int,
  accumulation_steps: int = 1,
  guard: Guard = Guard(),  # noqa: B008 (frozen)
  trained: Collection[str] | None = None,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]:
  """Build the function of one step, to be jitted with the state donated.

  Args:
    model: the abstract model; parameters come from the state.
    objective: `(model, batch, key) -> (loss sum, sums)`; its `prepare(batch, model) -> batch` sees
      the global batch.
    schedule: gives the learning rate in the metrics; the optimizer has a schedule of its own.
    seed: the dropout key of step n is `fold_in(key(seed), n)`, the same in a resumed run.
    accumulation_steps: the number of parts of the batch, run one after another.
    guard: decides which updates are refused, and whether a refused one leaves the state unchanged.
    trained: names of the parameters that are trained and have gradients; None for all.
  Returns:
    `(state, batch) -> (state, metrics)`. The metrics are float32 scalars: the means of the
    objective's sums (`loss`, `accuracy`, …) and values of the update, of which `updates_refused`
    counts consecutive refused updates, this one included.
  """

  def loss_sum(arrays, frozen, batch, key):
    return evaluate(objective, params.with_arrays(model, frozen | arrays), batch, key)

  def whole_batch_gradients(arrays, frozen, batch, key):
    """Return (mean gradients, sums) of the whole batch.

    The backward pass starts from 1 / weights instead of 1, so no gradient is divided afterwards.
    """
    _, backward, sums = jax.vjp(
      lambda arrays: loss_sum(arrays, frozen, batch, key), arrays, has_aux=True
    )
    return backward(1.0 / jnp.maximum(sums["weights"], 1.0))[0], sums

  def accumulated_gradients(arrays, frozen, batch, key):
    """Return (mean gradients, sums), added over the parts of the batch and divided once."""
    gradient = jax.grad(loss_sum, has_aux=True)

    def add_part(totals, indexed_part):
      index, part = indexed_part
      part_sums = gradient(arrays, frozen, part, jax.random.fold_in(key, index))
      return jax.tree.map(jnp.add, totals, part_sums), None

    parts = jax.tree.map(lambda x: _split_batch(x, accumulation_steps, rules), batch)
    first_part = jax.tree.map(lambda x: x[0], parts)
    shapes = jax.eval_shape(gradient, arrays, frozen, first_part, key)
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    (grads, sums), _ = jax.lax.scan(add_part, zeros, (jnp.arange(accumulation_steps), parts))
    return jax.tree.map(lambda g: g / jnp.maximum(sums["weights"], 1.0), grads), sums

  gradients = whole_batch_gradients if accumulation_steps == 1 else accumulated_gradients

  def step(state: TrainState, batch: Batch):
    with rules.activate():
      batch = objective.prepare(batch, model)
      key = jax.random.fold_in(jax.random.key(seed), state.step)
      arrays = {name: x for name, x in state.params.items() if trained is None or name in trained}
      frozen = {name: x for name, x in state.params.items() if name not in arrays}
      grads, sums = gradients(arrays, frozen, batch, key)
      metrics = {
        METRIC_NAMES.get(name, name): total / jnp.maximum(sums[denominator(name, sums)], 1.0)
        for name, total in sums.items()
        if not name.endswith("weights")
      }
      gradient_norm = optax.global_norm(reread(grads))
      accepted, watch = guard.judge(state.watch, metrics["loss"], gradient_norm)
      extra = {"step": state.step, "accepted": accepted}
      updates, opt_state = optimizer.update(grads, state.opt_state, state.params, **extra)
      new_params = frozen | optax.apply_updates(arrays, updates)
      if guard.skips:  # as `guard.skip_refused_updates` does for the optimizer's state
        new_params = jax.tree.map(
          lambda new, old: jnp.where(accepted, new, old), new_params, state.params
        )
      metrics |= {
        "learning_rate": jnp.asarray(schedule(state.step), jnp.float32),
        "gradient_norm": gradient_norm,
        "parameter_norm": optax.global_norm(new_params),
        "target_tokens": sums["weights"],
        "updates_refused": jnp.asarray(watch["refused"], jnp.float32),
      }
      return TrainState(state.step + 1, new_params, opt_state, watch), metrics

  return step


def _split_batch(x: jax.Array, parts: int, rules: Rules) -> jax.Array:
  """Reshape [B, ...] to [parts, B / parts, ...]; every device keeps the rows it already holds."""
  x = jnp.swapaxes(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 0, 1)
  return jax.lax.with_sharding_constraint(x, rules.sharding((None, "batch")))
