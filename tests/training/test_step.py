"""A step divides sums once for any accumulation and mesh, and repeats bit for bit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import more
import tiny
from t5x_like import tunings
from t5x_like.nn import params
from t5x_like.objectives.encoder_decoder import Objective
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.training.optimizer import build_optimizer, update_layerwise
from t5x_like.training.schedule import SCHEDULES
from t5x_like.training.state import TrainState, abstract_state, shardings
from t5x_like.training.step import make_step

ROWS = 8
RATE = 0.5
OBJECTIVE = Objective(label_smoothing=0.1, z_loss=1e-3)


@functools.cache
def set_up(optimizer="sgd", *, accumulation_steps=1, dropout=0.0, mesh=(), seed=3):
  """Return (step, first state); the weights are the same for all arguments."""
  rules = Rules.make(make_mesh(dict(mesh), jax.devices()[: dict(mesh).get("data", 1)]))
  make = tiny.maker(tiny.sizes("1.1"), dropout=dropout)
  model = jax.eval_shape(make, jax.random.key(0))
  schedule = SCHEDULES["constant"](learning_rate=RATE if optimizer == "sgd" else 0.01)
  axes = {n: p.axes for n, p in params.named_params(model).items()}
  update = update_layerwise(build_optimizer(optimizer, schedule), axes)
  step = make_step(
    model, OBJECTIVE, update, schedule, rules, seed=seed, accumulation_steps=accumulation_steps
  )
  arrays = first_arrays()
  state = TrainState(jnp.int32(0), arrays, jax.jit(update.init)(arrays))
  return jax.jit(step), jax.device_put(state, shardings(abstract_state(model, update, rules)))


@functools.cache
def first_arrays():
  return params.arrays(tiny.model(tiny.sizes("1.1"), noisy=False))


def uneven_batch(seed=0):
  """Return a batch of rows with unequal weights, so that a mean of means differs from the mean."""
  batch = tiny.batch(ROWS, 9, 7, seed=seed, padded=False)
  ends = [7, 1, 2, 7, 0, 1, 3, 7]
  batch["decoder_loss_weights"] = (np.arange(7) < np.array(ends)[:, None]).astype(np.float32)
  batch["decoder_loss_weights"][0] *= 0.5
  return batch


@functools.cache
def reference():
  """Return (mean loss, gradients) of the undivided batch by plain differentiation."""
  _, state = set_up()
  model = tiny.model(tiny.sizes("1.1"), noisy=False)
  batch = uneven_batch()

  def mean(arrays):
    loss, sums = OBJECTIVE(params.with_arrays(model, arrays), batch)
    return loss / batch["decoder_loss_weights"].sum(), sums

  (_, sums), gradients = jax.jit(jax.value_and_grad(mean, has_aux=True))(state.params)
  return {n: float(s) for n, s in sums.items()}, jax.tree.map(np.asarray, gradients)


@pytest.mark.parametrize("accumulation_steps", more.beyond(1, [4, 2, 1]))
def test_step_of_sgd_subtracts_the_gradient_of_the_global_mean(accumulation_steps):
  """The mean is over all weights of the batch, for any number of accumulation steps."""
  step, state = set_up(accumulation_steps=accumulation_steps)
  after, metrics = step(state, uneven_batch())
  sums, gradients = reference()
  weights = uneven_batch()["decoder_loss_weights"].sum()
  assert int(after.step) == 1
  assert float(metrics["target_tokens"]) == weights == sums["weights"]
  for name, gradient in gradients.items():
    before = np.asarray(state.params[name], np.float64)
    step_size = (before - np.asarray(after.params[name], np.float64)) / RATE
    # Parameters are rounded to float32, to 2e-7 of their size, before they are subtracted.
    rounding = np.abs(before).max() * 2e-7 / RATE
    atol = 2e-5 * np.abs(gradient).max() + rounding
    np.testing.assert_allclose(step_size, gradient, rtol=1e-4, atol=atol, err_msg=name)
  expected = {
    "loss": sums["loss"] / weights,
    "accuracy": sums["correct"] / weights,
    "z_loss": sums["z_loss"] / weights,
    "learning_rate": RATE,
    "gradient_norm": float(optax.global_norm(gradients)),
    "parameter_norm": float(optax.global_norm(after.params)),
    "updates_refused": 0,
  }
  for name, value in expected.items():
    np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(
  "optimizer, accumulation_steps", more.beyond(1, [("adafactor", 4), ("adamw", 1)])
)
def test_step_repeats_bit_for_bit(optimizer, accumulation_steps):
  step, state = set_up(optimizer, accumulation_steps=accumulation_steps, dropout=0.2)
  runs = []
  for _ in range(2):
    current_state = state
    losses = []
    for n in range(3):
      current_state, metrics = step(current_state, uneven_batch(n))
      losses.append(float(metrics["loss"]))
    runs.append((jax.tree.map(np.asarray, current_state), losses))
  (first_state, first_losses), (second_state, second_losses) = runs
  assert first_losses == second_losses
  jax.tree.map(np.testing.assert_array_equal, first_state, second_state)


@pytest.mark.more
def test_dropout_is_a_function_of_seed_and_step():
  step, state = set_up(dropout=0.3)

  def loss(step, state):
    return float(step(state, uneven_batch())[1]["loss"])

  loss_at = {n: loss(step, _at_step(state, n)) for n in (0, 1, 7)}
  assert len(set(loss_at.values())) == 3
  assert loss(step, _at_step(state, 7)) == loss_at[7]
  other_seed_step, _ = set_up(dropout=0.3, seed=4)
  assert loss(other_seed_step, state) != loss_at[0]
  plain, _ = set_up()
  assert abs(loss_at[0] - loss(plain, state)) > 1e-3


def _at_step(state, n):
  return type(state)(jnp.int32(n), state.params, state.opt_state)


def test_batch_without_weight_changes_no_parameter():
  for accumulation_steps in (1, 4):
    step, state = set_up(accumulation_steps=accumulation_steps)
    batch = {**uneven_batch(), "decoder_loss_weights": np.zeros((ROWS, 7), np.float32)}
    after, metrics = step(state, batch)
    assert all(np.isfinite(float(m)) for m in metrics.values())
    assert float(metrics["loss"]) == 0
    jax.tree.map(np.testing.assert_array_equal, after.params, state.params)


def test_accumulation_on_a_mesh_divides_the_rows_of_each_device():
  """The step equals one on one device without accumulation."""
  step, state = set_up(accumulation_steps=2, mesh=(("data", 4),))
  rules = Rules.make(make_mesh({"data": 4}, jax.devices()[:4]))
  batch = {n: jax.device_put(x, rules.batch()) for n, x in uneven_batch().items()}
  after, metrics = step(state, batch)
  expected, expected_metrics = set_up()[0](set_up()[1], uneven_batch())
  for name in metrics:
    np.testing.assert_allclose(metrics[name], expected_metrics[name], rtol=1e-5, err_msg=name)
  assert tiny.relative_error(after.params, expected.params) < 1e-6


@pytest.mark.parametrize("accumulation_steps", more.beyond(1, [4, 1]))
def test_only_trained_parameters_have_gradients_and_state(accumulation_steps):
  """Trained parameters change as in full training, and the others keep their bits."""
  names = [name for name in first_arrays() if name.endswith("query/kernel")]
  full_step, state = set_up(accumulation_steps=accumulation_steps)
  expected = full_step(state, uneven_batch())[0]
  model = jax.eval_shape(tiny.maker(tiny.sizes("1.1")), jax.random.key(0))
  rules = Rules.make(make_mesh({}, jax.devices()[:1]))
  schedule = SCHEDULES["constant"](learning_rate=RATE)
  axes = {n: p.axes for n, p in params.named_params(model).items()}
  sgd = update_layerwise(build_optimizer("sgd", schedule, momentum=0.5), axes)
  update = tunings.freeze_others(sgd, names)
  trained_state = TrainState(jnp.int32(0), first_arrays(), update.init(first_arrays()))
  state_paths = jax.tree_util.tree_leaves_with_path(trained_state.opt_state)
  assert {path[-1].key for path, _ in state_paths} == set(names)
  options = dict(seed=3, accumulation_steps=accumulation_steps, trained=frozenset(names))
  step = jax.jit(make_step(model, OBJECTIVE, update, schedule, rules, **options))
  after, metrics = step(trained_state, uneven_batch())
  for name, array in first_arrays().items():
    if name in names:
      moved = expected.params[name]
      np.testing.assert_allclose(after.params[name], moved, rtol=1e-5, atol=1e-6, err_msg=name)
    else:
      assert np.array_equal(after.params[name], array), name
  norm = optax.global_norm([reference()[1][name] for name in names])
  np.testing.assert_allclose(metrics["gradient_norm"], norm, rtol=1e-4)
