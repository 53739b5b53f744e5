"""CoAtNet has recorded logits in every way of computing it; parity has those of timm."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import more
from t5x_like.contrib.multiscale.hybrid_encoder import HybridVariant
from t5x_like.contrib.multiscale.models import coatnet
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.tunings import layer_decay
from tests.models import families
from tests.models.families import FORMS, assert_close, assert_same

HEAD = {"name": "image_classification", "labels": 5, "hidden": True}
SMALL = HybridVariant(
  4, (8, 12, 16, 24), (1, 2, 3, 1), coatnet.DESIGN, 4, resolution=45, channels=2, head=HEAD
)
MIDDLE = dataclasses.replace(SMALL, middle=(20, 2))
CASE = families.Case("coatnet", "coatnet", SMALL)


# Recorded when they equalled plain numpy that follows Dai et al. 2021.
LOGITS = [
  (
    SMALL,
    [
      [0.20406, -0.37024, -0.92378, -1.23212, 0.07203],
      [0.15898, -0.18262, -0.95763, -1.28786, 0.35541],
      [0.11793, -0.23556, -0.89725, -1.25461, 0.35289],
    ],
  ),
  (
    MIDDLE,
    [
      [-0.31192, 0.41134, -0.55505, 0.68436, -1.29195],
      [-0.24856, 0.40587, -0.62872, 0.47274, -1.10439],
      [-0.33294, 0.51722, -0.56534, 0.65498, -1.38872],
    ],
  ),
]


@pytest.mark.parametrize(("variant", "expected"), more.beyond(1, LOGITS), ids=["plain", "middle"])
def test_logits_are_those_of_the_paper(variant, expected):
  case = families.Case(f"coatnet:{variant.middle}", "coatnet", variant)
  image = families.full_rows(case, 3)["image"]
  model = families.model(case)
  logits = jax.jit(lambda model, x: model({"image": x})["logits"])(model, image)
  np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
  assert model.features({"image": image}).shape == (3, 24)


@pytest.mark.more
def test_every_parameter_has_a_gradient_and_a_mesh_changes_nothing():
  plain = families.plain_value_and_gradients(CASE)
  for name, gradient in plain[1].items():
    assert np.isfinite(gradient).all(), name
    assert np.abs(gradient).max() > 0, name
  assert_same(families.value_and_gradients(CASE, families.rules(CASE)), plain)


@pytest.mark.more
@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(form.values()))
def test_scan_loop_and_remat_are_the_same_function(form):
  assert_same(families.value_and_gradients(CASE, **form), families.plain_value_and_gradients(CASE))


@pytest.mark.more
def test_dropped_paths_and_another_number_of_channels():
  batch = families.full_rows(CASE, 4)
  model = families.model(CASE, drop_path=0.5)
  plain = np.asarray(families.model(CASE)(batch)["logits"])
  assert_close(np.asarray(model(batch)["logits"]), plain)
  assert np.abs(np.asarray(model(batch, jax.random.key(0))["logits"]) - plain).max() > 1e-3
  with pytest.raises(
    UserError,
    match="config.model.channels: the model is for images of .45, 45, 2., found .45, 45, 3.",
  ):
    jax.eval_shape(
      lambda m, x: m({"image": x}), model, jax.ShapeDtypeStruct((1, 45, 45, 3), jnp.float32)
    )


@pytest.mark.parametrize(
  "changes, message",
  [
    (
      {"design": {"position": "learned_1d"}},
      "config.model.design.position: found 'learned_1d', expected one between",
    ),
    (
      {"head": {"name": "image_classification", "pooling": "token"}},
      "found 'token', but the model has no class token",
    ),
  ],
)
def test_sizes_that_do_not_fit_a_coatnet_are_refused(changes, message):
  with pytest.raises(UserError, match=message):
    jax.eval_shape(
      lambda key: coatnet.Model(nnx.Rngs(params=key), variant=SMALL, **changes), jax.random.key(0)
    )


def test_positions_may_be_none():
  none = dataclasses.replace(SMALL, design=dataclasses.replace(coatnet.DESIGN, position="none"))
  model = jax.eval_shape(
    lambda key: coatnet.Model(nnx.Rngs(params=key), variant=none), jax.random.key(0)
  )
  assert not [name for name in params.named_params(model) if "position" in name]


def test_layers_are_counted_through_convolutions_and_attention():
  model = jax.eval_shape(
    lambda key: coatnet.Model(nnx.Rngs(params=key), variant="coatnet-tiny"), jax.random.key(0)
  )
  layers = layer_decay.layers_below_heads(params.named_params(model))
  assert layers["first/kernel"] == 7
  assert layers["convolutions/0/expand/kernel"] == 6
  assert layers["convolutions/1/expand/kernel"] == 5
  assert layers["third/attention/key/kernel"] == 4
