"""DETR has its published sizes, and computes the same function in every way of computing it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_like import recipes
from t5x_like.contrib.detection.models import detr
from t5x_like.contrib.detection.objectives import detection
from t5x_like.contrib.detection.positioned_attention import PositionEmbeddings, sine_positions
from t5x_like.nn import params
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.training import flops
from t5x_like.training.build import build_parts
from t5x_like.training.resolve import resolve
from tests.refusals import refuses

RESNET = {"name": "resnet", "stem": 8, "widths": (16, 32), "depths": (1, 2)}


def batch(B=8, Y=40, X=56):
  generator = np.random.default_rng(0)
  low = generator.uniform(0, 0.5, (B, 3, 2))
  labels = generator.integers(0, 4, (B, 3)).astype(np.int32)
  labels[1:, 2] = -1
  return {
    "image": generator.standard_normal((B, Y, X, 3)).astype(np.float32),
    "image_size": generator.integers([Y // 2, X // 2], [Y + 1, X + 1], (B, 2)).astype(np.int32),
    "boxes": np.concatenate([low, low + 0.3], -1).astype(np.float32),
    "box_labels": labels,
    "example_weights": np.ones(B, np.float32),
  }


def model(**changes):
  options = dict(variant="detr-tiny", queries=6, labels=4) | changes
  return detr.Model(nnx.Rngs(params=jax.random.key(0)), **options)


def loss_and_gradients(detector, data, rules=None):
  def loss(arrays, data):
    return detection.Objective()(params.with_arrays(detector, arrays), data)[0]

  def run(arrays, data):
    if rules is None:
      return jax.value_and_grad(loss)(arrays, data)
    with rules.activate():
      return jax.value_and_grad(loss)(arrays, data)

  arrays = params.arrays(detector)
  if rules is not None:
    shardings = rules.param_shardings(params.named_params(detector))
    arrays = {name: jax.device_put(x, shardings[name]) for name, x in arrays.items()}
    data = jax.device_put(data, rules.batch())
  value, gradients = jax.jit(run)(arrays, data)
  return float(value), {name: np.asarray(g) for name, g in gradients.items()}


def assert_same(actual, expected):
  assert actual[0] == pytest.approx(expected[0], rel=1e-4)
  for name, gradient in expected[1].items():
    np.testing.assert_allclose(
      actual[1][name], gradient, atol=2e-3 * max(np.abs(gradient).max(), 1e-3), err_msg=name
    )


@pytest.mark.more
def test_every_way_of_computing_is_the_same_function_and_all_but_frozen_norms_is_trained():
  data = batch()
  plain = loss_and_gradients(model(backbone=RESNET, layers="loop"), data)
  for name, gradient in plain[1].items():
    frozen = name.startswith("backbone/") and "/norm/" in name
    assert np.isfinite(gradient).all(), name
    assert (np.abs(gradient).max() > 0) != frozen, name
  assert_same(loss_and_gradients(model(backbone=RESNET, layers="scan", remat="full"), data), plain)
  rules = Rules.make(make_mesh({"data": 2, "fsdp": 2, "tensor": 2}, jax.devices()), {})
  assert_same(loss_and_gradients(model(backbone=RESNET, layers="scan"), data, rules), plain)


def test_published_sizes():
  config = resolve(recipes.load("configs/detr/base.py"))
  parts = build_parts(config)
  sizes = {name: math.prod(p.shape) for name, p in params.named_params(parts.model).items()}
  buffers = {name for name in sizes if name.startswith("backbone/") and "/norm/" in name}
  assert sum(size for name, size in sizes.items() if name not in buffers) == 41_524_768
  # As the authors count: without the stem, the first stage and all batch norms, which no decay may
  # touch either.
  assert sum(sizes[name] for name in parts.trained) == 41_302_368


def test_the_flops_of_a_detector_that_is_frozen_in_part_are_counted():
  detector = jax.eval_shape(lambda: model(backbone=RESNET))

  def count(trained):
    return flops.step_flops(detector, detection.Objective(), batch(), trained)

  names = set(params.arrays(detector))
  stem = 2 * 8 * 20 * 28 * 7 * 7 * 3 * 8
  assert count(names) == count(None) - stem  # no gradient goes to the image
  assert (
    count({"queries"})
    < count({name for name in names if not name.startswith("backbone/")})
    < count(names)
  )


def test_attention_sees_the_image_and_no_padding():
  data = batch(2, 88, 96)
  detector = model(backbone=RESNET)
  data["image_size"] = np.array([[24, 32], [88, 96]], np.int32)

  def outputs(image):
    return sum(jnp.sum(x[:1] ** 2) for x in detector(data | {"image": image}).values())

  gradient = jax.jit(jax.grad(outputs))(data["image"])
  visible = np.abs(np.asarray(gradient[0])).max(-1) > 0
  # A place of the map sees a little more than its own 8 x 8 pixels.
  assert visible[:24, :32].mean() > 0.9
  assert not visible[56:].any()
  assert not visible[:, 64:].any()
  assert not np.asarray(gradient[1]).any()


def test_sines_are_of_shares_of_the_image():
  unpadded = sine_positions(jnp.ones((1, 4, 6), bool), 16).reshape(4, 6, 16)
  assert np.ptp(unpadded[:, :, :8], axis=1).max() == 0
  assert np.ptp(unpadded[:, :, 8:], axis=0).max() == 0
  np.testing.assert_allclose(unpadded[1, 0, :2], [np.sin(np.pi), np.cos(np.pi)], atol=1e-5)
  np.testing.assert_allclose(unpadded[0, 2, 10], np.sin(np.pi / 10_000 ** (2 / 8)), atol=1e-5)
  padded = sine_positions(jnp.zeros((1, 7, 9), bool).at[:, :4, :6].set(True), 16).reshape(7, 9, 16)
  np.testing.assert_allclose(padded[:4, :6], unpadded, atol=1e-5)


TABLE_3 = [  # the places of a row, and what is added to the inputs and to attention
  ({"cells": "none", "memory": "none", "queries": "input"}, {"queries"}, set()),
  ({"cells": "input", "memory": "none", "queries": "input"}, {"cells", "queries"}, set()),
  ({"kind": "learned"}, set(), {"cells", "memory", "queries"}),
  ({"cells": "none"}, set(), {"memory", "queries"}),
  ({}, set(), {"cells", "memory", "queries"}),
]


@pytest.mark.parametrize(("row", "at_input", "at_attention"), TABLE_3)
def test_each_row_of_table_3_adds_positions_where_it_says(row, at_input, at_attention):
  places = PositionEmbeddings(**row)
  vectors = {"cells": 1, "memory": 2, "queries": 3}
  for place, expected in (("input", at_input), ("attention", at_attention)):
    added = places.at(place, vectors)
    assert {name for name, vector in added.items() if vector is not None} == expected


def test_learned_positions_are_of_columns_and_rows():
  detector = model(places=PositionEmbeddings(kind="learned"), backbone=RESNET)
  assert len([name for name in params.arrays(detector) if name.startswith("position/")]) == 2
  table = np.asarray(detector.position(jnp.ones((1, 3, 4), bool))).reshape(3, 4, -1)
  assert np.ptp(table[:, :, :32], axis=0).max() == 0
  assert np.ptp(table[:, :, 32:], axis=1).max() == 0
  assert len(np.unique(table.reshape(12, -1), axis=0)) == 12
  with refuses("config.model.places.kind", "3 x 51"):
    detector.position(jnp.ones((1, 3, 51), bool))


@pytest.mark.parametrize(
  ("places", "are_in_values"), [({}, False), ({"cells": "both", "queries": "both"}, True)]
)
def test_values_carry_positions_only_if_these_are_added_to_the_inputs(places, are_in_values):
  """Attention is uniform, so only values can tell where a thing is."""
  detector = model(places=PositionEmbeddings(**places))
  uniform = params.arrays(detector)
  for name, array in uniform.items():
    if "query" in name or "/key/" in name:
      uniform[name] = jnp.zeros_like(array)
  part = np.random.default_rng(0).standard_normal((8, 8, 3)).astype(np.float32)
  image = np.zeros((2, 96, 96, 3), np.float32)
  image[0, 32:40, 32:40] = part
  image[1, 48:56, 40:48] = part
  data = {"image": image, "image_size": np.full((2, 2), 96, np.int32)}
  boxes = jax.jit(lambda arrays: params.with_arrays(detector, arrays)(data)["boxes"])(uniform)
  assert (np.abs(boxes[0] - boxes[1]).max() > 1e-3) == are_in_values


def test_dropout_follows_its_key():
  data = batch(2)
  detector = model(dropout=0.3)
  boxes = jax.jit(lambda model, data, key: model(data, key)["boxes"])
  np.testing.assert_array_equal(boxes(detector, data, None), boxes(model(), data, None))
  first = boxes(detector, data, jax.random.key(0))
  np.testing.assert_array_equal(first, boxes(detector, data, jax.random.key(0)))
  assert np.abs(first - boxes(detector, data, jax.random.key(1))).max() > 1e-4


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"channels": 1}, ("config.model.channels", "1 channels", "3")),
    ({"backbone": "resnt"}, ("config.model.backbone", "'resnt'", "'resnet'")),
    ({"design": {"position": "alibi"}}, ("config.model.design.position", "'alibi'", "'none'")),
  ],
)
def test_arguments_that_do_not_fit_are_refused(changes, words):
  with refuses(*words):
    jax.eval_shape(lambda: model(**changes)(batch(2)))


def test_cells_enter_the_encoder_without_dropout():
  """Dropout is in the layers alone, as in the authors' code."""
  data = batch(2)
  detector = model(dropout=0.5)
  detector.encoder = lambda x_BSD, context, key: (x_BSD, {}, None)
  detector._run_decoder = lambda x_BQD, context, key: context.memory[None, :, :6]
  boxes = jax.jit(lambda data, key: detector(data, key)["boxes"])
  np.testing.assert_array_equal(boxes(data, jax.random.key(0)), boxes(data, None))


TUNED_BY_PART = (
  "tuning.name=by_part",
  "clip_norm=0.0",
  "schedule.learning_rate=0.1",
  "optimizer.weight_decay=0.0",
)


def build_by_part(rates: str):
  overrides = [*TUNED_BY_PART, f"tuning.rates={rates}"]
  return build_parts(
    resolve(recipes.load("configs/detr/base.py:tiny", overrides)), jax.devices()[:1]
  )


@pytest.mark.more
def test_parts_train_at_their_own_rates():
  parts = build_by_part('{"backbone/*": 0.1, "backbone/stem/*": 0.0}')
  arrays = params.arrays(parts.make_model(jax.random.key(0)))
  stem = {name for name in arrays if name.startswith("backbone/stem/")}
  assert arrays.keys() - set(parts.trained) == stem
  gradients = {name: jnp.ones_like(arrays[name]) for name in parts.trained}
  extra = {"step": jnp.int32(200), "accepted": jnp.bool_(True)}
  updates, _ = parts.optimizer.update(gradients, parts.optimizer.init(arrays), arrays, **extra)
  sizes = {name: float(np.abs(update).max()) for name, update in updates.items()}
  assert sizes["project/kernel"] == pytest.approx(0.1, rel=1e-3)
  assert sizes["backbone/blocks/0/units/0/conv/kernel"] == pytest.approx(0.01, rel=1e-3)


def test_a_rate_of_no_parameter_is_refused():
  with refuses("'backbon/*'"):
    build_by_part('{"backbon/*": 0.1}')
