"""Training gives equal results on one device and with any parallelism and accumulation."""

import functools

import jax
import numpy as np
import pytest

import more
import tiny
from t5x_like.nn import params
from t5x_like.objectives.encoder_decoder import Objective
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.training.optimizer import build_optimizer, update_layerwise
from t5x_like.training.schedule import SCHEDULES
from t5x_like.training.state import abstract_state, init_state, shardings
from t5x_like.training.step import make_step

pytestmark = pytest.mark.usefixtures("uncached")
STEPS = 10
ROWS = 16
VOCAB = 256
# Wide enough for Adafactor to factor its statistics (both axes at least 128) and for `fsdp` and
# `tensor` to split every matrix.
WIDTHS = dict(embed=128, mlp=256, heads=4, head_dim=32, layers=2)
# name: (mesh, number of devices, accumulation steps)
LAYOUTS = {
  "one": ({}, 1, 1),
  "data": ({"data": 8}, 8, 1),
  "fsdp": ({"fsdp": 8}, 8, 1),
  "data_fsdp_tensor": ({"data": 2, "fsdp": 2, "tensor": 2}, 8, 1),
  "data_stage_tensor": ({"data": 2, "stage": 2, "tensor": 2}, 8, 1),
  "accumulated": ({}, 1, 4),
  "accumulated_data_fsdp": ({"data": 2, "fsdp": 2}, 4, 4),
}
# name: (T5 version, dropout rate, optimizer, schedule, arguments of the schedule)
RUNS = {
  "adafactor": (
    "1.1",
    0.0,
    dict(name="adafactor"),
    "rsqrt",
    dict(learning_rate=0.1, warmup_steps=4),
  ),
  "adamw_dropout": (
    "1.0",
    0.1,
    dict(name="adamw", weight_decay=0.1),
    "linear",
    dict(learning_rate=1e-3, warmup_steps=4, total_steps=20),
  ),
}


def set_up(run, layout):
  version, dropout, optimizer, schedule, rate = RUNS[run]
  mesh, devices, accumulation_steps = LAYOUTS[layout]
  rules = Rules.make(make_mesh(mesh, jax.devices()[:devices]))
  make = tiny.maker(tiny.sizes(version, **WIDTHS), vocab_size=VOCAB, dropout=dropout)
  model = jax.eval_shape(make, jax.random.key(0))
  schedule = SCHEDULES[schedule](**rate)
  axes = {n: p.axes for n, p in params.named_params(model).items()}
  update = update_layerwise(build_optimizer(schedule=schedule, **optimizer), axes)
  step = make_step(
    model,
    Objective(label_smoothing=0.1, z_loss=1e-4),
    update,
    schedule,
    rules,
    seed=11,
    accumulation_steps=accumulation_steps,
  )
  return make, update, rules, abstract_state(model, update, rules), jax.jit(step, donate_argnums=0)


@functools.cache
def first_state(run):
  """Draw the state at step 0 on one device."""
  make, update, _, abstract, _ = set_up(run, "one")
  return jax.tree.map(np.asarray, init_state(make, update, abstract, seed=5))


@functools.cache
def train(run: str, layout: str):
  """Train ten steps.

  Returns: (metrics by name, each [10]; final parameters; final state on its devices; abstract
  state).
  """
  *_, rules, abstract, step = set_up(run, layout)
  state = jax.device_put(first_state(run), shardings(abstract))
  history = []
  for n in range(STEPS):
    batch = tiny.batch(ROWS, 16, 12, vocab=VOCAB, seed=n % 3)
    state, metrics = step(
      state, {name: jax.device_put(x, rules.batch()) for name, x in batch.items()}
    )
    history.append(metrics)
  metrics = {name: np.array([float(m[name]) for m in history]) for name in history[0]}
  return metrics, jax.tree.map(np.asarray, state.params), state, abstract


PAIRS = [
  ("adafactor", "data_fsdp_tensor", "one"),
  ("adafactor", "fsdp", "one"),
  ("adafactor", "data_stage_tensor", "one"),
  ("adamw_dropout", "data_fsdp_tensor", "one"),
  # Each accumulated part has another dropout key, so this is not compared with "one".
  ("adamw_dropout", "accumulated_data_fsdp", "accumulated"),
  ("adafactor", "data", "one"),
  ("adamw_dropout", "fsdp", "one"),
]


@pytest.mark.parametrize(
  "run, layout, base", more.beyond(1, PAIRS), ids=[f"{r}-{a}" for r, a, _ in PAIRS]
)
def test_every_layout_has_the_losses_and_parameters_of_one_device(run, layout, base, capfd):
  metrics, final, *_ = train(run, layout)
  # The partitioner warns with this word when it replicates an activation.
  assert "rematerialization" not in capfd.readouterr().err
  expected_metrics, expected, *_ = train(run, base)
  assert metrics.keys() == expected_metrics.keys()
  for name in metrics:
    np.testing.assert_allclose(metrics[name], expected_metrics[name], rtol=1e-5, err_msg=name)
  for name in expected:
    size = np.sqrt(np.mean(expected[name] ** 2))
    np.testing.assert_allclose(
      final[name], expected[name], rtol=1e-5, atol=1e-5 * size, err_msg=name
    )


@pytest.mark.parametrize("run", more.beyond(1, RUNS))
def test_compared_runs_change_their_parameters(run):
  """Otherwise equal parameters would prove nothing."""
  metrics, final, *_ = train(run, "one")
  start = first_state(run).params
  assert metrics["loss"][-1] < metrics["loss"][0] - 0.5
  changes = {n: np.linalg.norm(final[n] - start[n]) / np.linalg.norm(start[n]) for n in final}
  assert min(changes.values()) > 1e-3, changes


@pytest.mark.more
def test_dropout_differs_between_accumulated_parts():
  unsplit_loss = train("adamw_dropout", "one")[0]["loss"]
  parts = train("adamw_dropout", "accumulated")[0]["loss"]
  assert abs(unsplit_loss[0] - parts[0]) > 1e-3
  assert np.abs(unsplit_loss - parts).max() < 0.3


def assert_shardings(leaf, planned):
  assert leaf.shape == planned.shape
  assert leaf.dtype == planned.dtype
  assert leaf.sharding.is_equivalent_to(planned.sharding, leaf.ndim), (
    leaf.sharding,
    planned.sharding,
  )


@pytest.mark.parametrize("run, layout", more.beyond(1, [pair[:2] for pair in PAIRS]))
def test_trained_state_has_the_shardings_of_the_abstract_state(run, layout):
  *_, state, abstract = train(run, layout)
  jax.tree.map(assert_shardings, state, abstract)


def test_initial_state_is_the_same_on_every_mesh():
  expected = first_state("adafactor")
  make, update, _, abstract, _ = set_up("adafactor", "data_fsdp_tensor")
  state = init_state(make, update, abstract, seed=5)
  jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, state), expected)
  jax.tree.map(assert_shardings, state, abstract)
