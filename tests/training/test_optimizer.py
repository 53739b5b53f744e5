"""Optimizers update each layer of a stack separately, and shard their state like the parameters."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tiny
from t5x_like import slots
from t5x_like.nn import params
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.training import optimizers
from t5x_like.training.optimizer import (
  OPTIMIZERS,
  build_optimizer,
  decay_mask,
  state_axes,
  update_layerwise,
  with_upper_bounds,
)
from t5x_like.training.state import abstract_state

LAYERS = 3
AXES = {
  "blocks/mlp": ("layers", "embed", "mlp"),
  "blocks/square": ("layers", "embed", "heads"),
  "blocks/norm": ("layers", None),
  "deeper/mlp": ("layers", "mlp", "embed"),
  "table": ("vocab", "embed"),
}
SHAPES = {
  "blocks/mlp": (LAYERS, 128, 160),
  "blocks/square": (LAYERS, 128, 128),
  "blocks/norm": (LAYERS, 128),
  "deeper/mlp": (2, 160, 128),
  "table": (192, 128),
}


def draw_layers(seed, scale=1.0):
  """Draw arrays whose layers differ in magnitude, so that mixing their statistics would show."""
  generator = np.random.default_rng(seed)
  arrays = {}
  for name, shape in SHAPES.items():
    a = generator.standard_normal(shape) * scale
    if AXES[name][0] == "layers":
      a *= 10.0 ** np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    arrays[name] = jnp.asarray(a, jnp.float32)
  return arrays


def update_repeatedly(optimizer, values, gradients):
  state = optimizer.init(values)
  update = jax.jit(optax.with_extra_args_support(optimizer).update)
  for step, gradient in enumerate(gradients):
    updates, state = update(gradient, state, values, step=step)
    values = optax.apply_updates(values, updates)
  return values


def select_layer(arrays, layer):
  """Return the arrays of one layer, of the stacks that have it."""
  return {n: a[layer] for n, a in arrays.items() if AXES[n][0] == "layers" and layer < a.shape[0]}


RATE = optax.linear_schedule(0.1, 0.02, 3)
CONSTANT = optax.constant_schedule(0.1)


def build_layered(name, rate=CONSTANT, axes=AXES, **options):
  return update_layerwise(build_optimizer(name, rate, **options), axes)


def is_matrix(params):
  """Return whether each parameter is a matrix."""
  return jax.tree.map(lambda array: array.ndim > 1, params)


# name: (our optimizer, the same one of optax for a single layer)
CASES = {
  "adafactor": (build_optimizer("adafactor", RATE), optax.adafactor(RATE)),
  "adamw": (
    build_optimizer("adamw", RATE, b1=0.8, b2=0.98, eps=1e-6, weight_decay=0.1),
    optax.adamw(RATE, 0.8, 0.98, 1e-6, weight_decay=0.1, mask=is_matrix),
  ),
  "adamw_bfloat16": (
    build_optimizer("adamw", RATE, mu_dtype="bfloat16"),
    optax.adamw(RATE, mu_dtype=jnp.bfloat16, weight_decay=0.01, mask=is_matrix),
  ),
  "lamb": (
    build_optimizer("lamb", RATE, weight_decay=0.1),
    optax.chain(
      optax.scale_by_adam(eps=1e-6),
      optax.add_decayed_weights(0.1, is_matrix),
      optax.masked(optax.scale_by_trust_ratio(), is_matrix),
      optax.scale_by_learning_rate(RATE),
    ),
  ),
  "unfactored_adafactor": (
    build_optimizer(
      "unfactored_adafactor", RATE, decay_rate=0.7, momentum=0.8, clipping_threshold=1.0
    ),
    optax.chain(
      optax.adafactor(RATE, factored=False, decay_rate=0.7, momentum=0.8),
      optax.masked(
        optax.inject_hyperparams(optax.add_decayed_weights)(lambda t: -(RATE(t) ** 2)), is_matrix
      ),
    ),
  ),
  "undecayed_adafactor": (
    build_optimizer(
      "unfactored_adafactor", RATE, momentum=0.8, clipping_threshold=1.0, decay_power=None
    ),
    optax.adafactor(RATE, factored=False, momentum=0.8),
  ),
  "momentum_adafactor": (
    build_optimizer(
      "momentum_adafactor", RATE, b2=0.3, momentum=0.8, mu_dtype="float32", weight_decay=0.1
    ),
    optax.chain(
      optax.scale_by_factored_rms(
        min_dim_size_to_factor=32, decay_rate_fn=lambda t, c: jnp.minimum(0.3, 1 - (t + 1.0) ** -c)
      ),
      optax.ema(0.8, debias=False),
      optax.add_decayed_weights(0.1, is_matrix),
      optax.scale_by_learning_rate(RATE),
    ),
  ),
  "lars": (
    build_optimizer("lars", RATE, weight_decay=0.1, trust_coefficient=0.01),
    optax.lars(RATE, 0.1, is_matrix, 0.01, trust_ratio_mask=is_matrix),
  ),
  "lion": (
    build_optimizer("lion", RATE, b1=0.8, b2=0.98, weight_decay=0.3),
    optax.lion(RATE, 0.8, 0.98, weight_decay=0.3, mask=is_matrix),
  ),
  "sgd": (
    build_optimizer("sgd", RATE, momentum=0.9, weight_decay=0.1),
    optax.chain(optax.add_decayed_weights(0.1, is_matrix), optax.sgd(RATE, 0.9)),
  ),
}


@pytest.mark.parametrize("case", CASES)
def test_layers_of_a_stack_are_updated_as_separate_parameters(case):
  our_optimizer, single_optimizer = CASES[case]
  start = draw_layers(0)
  gradients = [draw_layers(s, 0.1 * s) for s in range(1, 4)]
  final = update_repeatedly(update_layerwise(our_optimizer, AXES), start, gradients)
  assert final.keys() == start.keys()

  def assert_near(actual, expected, name):
    size = float(np.sqrt(np.mean(np.square(expected))))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5 * size, err_msg=name)

  table = {"table": start["table"]}
  table_gradients = [{"table": gradient["table"]} for gradient in gradients]
  expected = update_repeatedly(single_optimizer, table, table_gradients)
  assert_near(final["table"], expected["table"], "table")
  for layer in range(LAYERS):
    layer_gradients = [select_layer(gradient, layer) for gradient in gradients]
    expected = update_repeatedly(single_optimizer, select_layer(start, layer), layer_gradients)
    for name, array in expected.items():
      assert_near(final[name][layer], array, f"{name} {layer}")


def orthogonalise(matrix):
  """Return a matrix with singular values of nearly 1, by Muon's iteration."""
  x = matrix / np.linalg.norm(matrix)
  for _ in range(5):
    a = x @ x.T
    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
  assert np.abs(np.linalg.svd(x)[1] - 1).mean() < 0.4
  return x


def test_muon_orthogonalises_updates_of_hidden_matrices_and_uses_adamw_for_the_rest():
  start = draw_layers(0)
  gradients = [draw_layers(s, 0.1 * s) for s in range(1, 4)]
  final = update_repeatedly(build_layered("muon", RATE, weight_decay=0.3), start, gradients)
  adam = update_repeatedly(build_layered("adamw", RATE, weight_decay=0.3), start, gradients)
  hidden = {"blocks/mlp", "blocks/square"}
  for name, layer in itertools.product(hidden, range(LAYERS)):
    w = np.asarray(start[name][layer])
    momentum = 0.0
    for step, gradient in enumerate(gradients):
      g = np.asarray(gradient[name][layer], np.float64)
      momentum = 0.95 * momentum + g
      direction = orthogonalise(g + 0.95 * momentum)
      w = w - RATE(step) * (0.2 * np.sqrt(max(w.shape)) * direction + 0.3 * w)
    np.testing.assert_allclose(final[name][layer], w, rtol=1e-3, atol=1e-4 * np.abs(w).max())
  for name in SHAPES.keys() - hidden:
    np.testing.assert_allclose(final[name], adam[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_zero_result_in_finite_parameters(case):
  start = draw_layers(0)
  gradients = [
    jax.tree.map(jnp.zeros_like, start),
    {n: g.at[..., 5:].set(0) for n, g in draw_layers(1).items()},
  ]
  final = update_repeatedly(update_layerwise(CASES[case][0], AXES), start, gradients)
  assert all(np.isfinite(a).all() for a in final.values())
  if case == "adafactor":
    np.testing.assert_array_equal(final["table"][:, 5:], start["table"][:, 5:])


def test_bounded_parameter_stops_at_its_bound_and_can_leave_it():
  optimizer = with_upper_bounds(build_layered("sgd", optax.constant_schedule(1.0)), {"table": 2.0})
  start = {"table": jnp.array([[0.0, 1.5]]), "blocks/norm": jnp.zeros((3, 1))}
  up = jax.tree.map(lambda x: jnp.full_like(x, -1.0), start)
  down = jax.tree.map(lambda x: jnp.full_like(x, 0.5), start)
  np.testing.assert_array_equal(update_repeatedly(optimizer, start, [up])["table"], [[1.0, 2.0]])
  final = update_repeatedly(optimizer, start, [up, up, down])
  np.testing.assert_array_equal(final["table"], [[1.5, 1.5]])
  np.testing.assert_array_equal(final["blocks/norm"], np.full((3, 1), 1.5))


# The sharding of optimizer states


class ShapeAndAxes(NamedTuple):
  shape: tuple
  axes: tuple


def find_key(path, names) -> str | None:
  """Return the first key or field of a path that is one of the names."""
  keys = [getattr(part, "key", getattr(part, "name", None)) for part in path]
  return next((key for key in keys if key in names), None)


def axes_by_statistic(name, shapes=SHAPES, axes=AXES):
  """Return (shape, logical axes) of each statistic of an optimizer, by parameter and statistic."""
  arrays = {n: jax.ShapeDtypeStruct(shape, jnp.float32) for n, shape in shapes.items()}
  state = jax.eval_shape(build_layered(name, axes=axes).init, arrays)
  tree = state_axes(state, {n: ShapeAndAxes(shapes[n], axes[n]) for n in shapes})
  axes_by_key = {}

  def is_axes(node):
    return type(node) is tuple and all(axis is None or isinstance(axis, str) for axis in node)

  leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_axes)
  for (path, leaf_axes), leaf in zip(leaves, jax.tree.leaves(state), strict=True):
    assert len(leaf_axes) == leaf.ndim
    statistic = find_key(path, ("v_row", "v_col", "v", "mu", "nu", "count"))
    axes_by_key[find_key(path, shapes), statistic] = (leaf.shape, leaf_axes)
  return axes_by_key


def test_adafactor_statistics_have_the_axes_of_their_rows_and_columns():
  expected = {
    ("table", "v_row"): ((128,), ("embed",)),
    ("table", "v_col"): ((192,), ("vocab",)),
    ("table", "v"): ((1,), (None,)),
    ("blocks/mlp", "v_row"): ((3, 128), ("layers", "embed")),
    ("blocks/mlp", "v_col"): ((3, 160), ("layers", "mlp")),
    ("blocks/mlp", "v"): ((3, 1), (None, None)),
    ("deeper/mlp", "v_row"): ((2, 128), ("layers", "embed")),
    ("deeper/mlp", "v_col"): ((2, 160), ("layers", "mlp")),
    ("blocks/norm", "v"): ((3, 128), ("layers", None)),
    ("blocks/norm", "v_row"): ((3, 1), (None, None)),
  }
  actual = axes_by_statistic("adafactor")
  assert {key: actual[key] for key in expected} == expected


@pytest.mark.parametrize("stacked", [False, True])
def test_equal_dimensions_are_distinguished_by_values(stacked):
  """A gradient that differs only by row shows which statistic is of rows."""
  axes = ("layers", "embed", "heads") if stacked else ("embed", "heads")
  shape = (2, 128, 128) if stacked else (128, 128)
  statistics_axes = axes_by_statistic("adafactor", {"w": shape}, {"w": axes})
  optimizer = build_layered("adafactor", axes={"w": axes})
  by_row = jnp.broadcast_to(jnp.arange(1.0, 129.0)[:, None], shape)
  _, state = optimizer.update({"w": by_row}, optimizer.init({"w": by_row}), {"w": by_row}, step=0)
  checked = set()
  for path, values in jax.tree_util.tree_leaves_with_path(state):
    statistic = find_key(path, ("v_row", "v_col"))
    if statistic:
      varies = np.ptp(np.asarray(values).reshape(-1, 128)[0]) > 1
      assert statistics_axes["w", statistic][1][-1] == ("embed" if varies else "heads")
      checked.add(statistic)
  assert checked == {"v_row", "v_col"}


def test_adam_moments_have_the_axes_of_their_parameter():
  statistics_axes = axes_by_statistic("adamw")
  for name in SHAPES:
    assert statistics_axes[name, "mu"] == statistics_axes[name, "nu"] == (SHAPES[name], AXES[name])


@pytest.mark.parametrize("name", slots.names(optimizers))
def test_optimizer_state_of_a_model_is_sharded_like_its_parameters(name):
  """On a mesh of `fsdp` and `tensor`, no statistic of a matrix is replicated."""
  rules = Rules.make(make_mesh({"fsdp": 4, "tensor": 2}))
  make = tiny.maker(tiny.sizes("1.1", embed=128, mlp=256, heads=4, head_dim=32), vocab_size=256)
  model = jax.eval_shape(make, jax.random.key(0))
  named = params.named_params(model)
  optimizer = build_layered(name, axes={n: p.axes for n, p in named.items()})
  state = abstract_state(model, optimizer, rules)
  shapes = {p.shape for p in named.values()}
  for path, leaf in jax.tree_util.tree_leaves_with_path(state):
    local = int(np.prod(leaf.sharding.shard_shape(leaf.shape)))
    if leaf.shape in shapes and leaf.ndim > 1 and min(leaf.shape[-2:]) >= 128:
      assert local * 8 == leaf.size, (path, leaf.sharding)
    elif leaf.ndim and leaf.shape[-1] >= 128 and find_key(path, ("v_row", "v_col")):
      assert local < leaf.size, (path, leaf.sharding)


def test_weight_decay_excludes_vectors_and_biases():
  """The biases of all experts form a matrix, but are excluded too."""
  kernels = {"layer/wi": (8, 4, 6), "out/kernel": (4, 6)}
  tables = {"embed/table": (9, 4), "position/table": (5, 4)}
  shapes = {**kernels, **tables, "layer/wi_bias": (8, 6), "out/bias": (6,), "norm/scale": (4,)}
  arrays = {name: jnp.zeros(shape) for name, shape in shapes.items()}
  decayed = {
    "vectors": {*kernels, *tables},
    "tables": {*kernels},
    "embeddings": {*shapes} - {*tables},
    "nothing": shapes,
  }
  for undecayed, names in decayed.items():
    mask = decay_mask(arrays, undecayed)
    assert {name for name in mask if mask[name]} == set(names), undecayed


GRADIENTS = [np.arange(1.0, 7).reshape(2, 3), np.full((2, 3), -40.0), *np.ones((2, 2, 3))]


def update_matrix(name: str, **options) -> np.ndarray:
  """Return a matrix of 2s after updates by GRADIENTS at a rate of 0.1."""
  start = {"w": jnp.full((2, 3), 2.0)}
  gradients = [{"w": jnp.asarray(g, jnp.float32)} for g in GRADIENTS]
  optimizer = build_optimizer(name, CONSTANT, weight_decay=0.3, **options)
  return update_repeatedly(optimizer, start, gradients)["w"]


def test_stable_adamw_follows_its_paper():
  """See algorithm 2 of Wortsman et al. 2023; the large second gradient lowers the rate."""
  b1 = 0.9
  b2 = 0.95
  eps = 1e-6
  w = np.full((2, 3), 2.0)
  mean = second = 0.0
  rates = []
  for t, g in enumerate(GRADIENTS, 1):
    mean = b1 * mean + (1 - b1) * g
    second = b2 * second + (1 - b2) * g**2
    unbiased = second / (1 - b2**t)
    rates.append(0.1 / max(1.0, np.sqrt(np.mean(g**2 / np.maximum(unbiased, eps**2)))))
    w = w - rates[-1] * (0.3 * w + mean / (1 - b1**t) / (np.sqrt(unbiased) + eps))
  assert rates[1] < 0.08 < rates[0]
  actual = update_matrix("stable_adamw", b1=b1, b2=b2, eps=eps)
  np.testing.assert_allclose(actual, w, rtol=1e-5)


def test_ademamix_follows_its_paper():
  """See algorithm 1 of Pagliardini et al. 2024; updates and warm-up are counted from 1."""
  b1 = 0.8
  b2 = 0.95
  b3 = 0.99
  alpha = 4.0
  warmup = 3

  def half_life(beta):
    return np.log(0.5) / np.log(beta) - 1

  w = np.full((2, 3), 2.0)
  fast = slow = second = 0.0
  for t, g in enumerate(GRADIENTS, 1):
    share = min(1.0, t / warmup)
    beta = 0.5 ** (1 / ((1 - share) * half_life(b1) + share * half_life(b3) + 1))
    fast = b1 * fast + (1 - b1) * g
    slow = beta * slow + (1 - beta) * g
    second = b2 * second + (1 - b2) * g**2
    mean = fast / (1 - b1**t) + share * alpha * slow
    w = w - 0.1 * (0.3 * w + mean / (np.sqrt(second / (1 - b2**t)) + 1e-8))
  actual = update_matrix("ademamix", b1=b1, b2=b2, b3=b3, alpha=alpha, warmup_steps=warmup)
  np.testing.assert_allclose(actual, w, rtol=1e-5)


def argument_names(name: str) -> list[str]:
  return slots.argument_names(OPTIMIZERS.find("optimizer", name))


@pytest.mark.parametrize(
  "name", [name for name in slots.names(optimizers) if "mu_dtype" in argument_names(name)]
)
def test_first_moments_are_stored_in_bfloat16(name):
  """AdEMAMix's slow average stays in float32, because bfloat16 rounds its small changes away."""
  options = {"momentum": 0.9} if name == "sgd" else {}
  optimizer = build_optimizer(name, RATE, mu_dtype="bfloat16", **options)
  params = {"w": jnp.ones((2, 2))}
  state = optimizer.init(params)
  update = jax.jit(optimizer.update)
  types = [x.dtype for x in jax.tree.leaves(state)]
  assert types.count(jnp.bfloat16) == 1
  for step in range(2):
    _, state = update({"w": jnp.ones((2, 2))}, state, params, step=step)
    assert [x.dtype for x in jax.tree.leaves(state)] == types
