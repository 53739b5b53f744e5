"""CoAtNet equals plain numpy, in every way of computing it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import special

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


def norm(p, name, x):
  x = x - x.mean(-1, keepdims=True)
  return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * p[f"{name}/scale"] + p[f"{name}/bias"]


def linear(p, name, x):
  return x @ p[f"{name}/kernel"] + p.get(f"{name}/bias", 0.0)


def gelu(x):
  return x * 0.5 * (1 + special.erf(x / np.sqrt(2)))


def convolution(p, name, x, stride=1):
  kernel = p[f"{name}/kernel"]
  _, Y, X, _ = x.shape
  x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
  apply = (lambda part, k: part * k) if kernel.ndim == 3 else (lambda part, k: part @ k)
  parts = []
  for dy in range(3):
    for dx in range(3):
      shifted = x[:, dy : dy + Y : stride, dx : dx + X : stride]
      parts.append(apply(shifted, kernel[dy, dx]))
  return sum(parts) + p.get(f"{name}/bias", 0.0)


def pool(x):
  _, Y, X, _ = x.shape
  cells = [[x[:, y : y + 2, c : c + 2].max((1, 2)) for c in range(0, X, 2)] for y in range(0, Y, 2)]
  return np.stack([np.stack(row, 1) for row in cells], 1)


def mbconv(p, name, x, first):
  y = norm(p, f"{name}/in_norm", x)
  if first:
    y = y[:, ::2, ::2]
    x = linear(p, f"{name}/project", pool(x))
  y = gelu(norm(p, f"{name}/expand_norm", linear(p, f"{name}/expand", y)))
  y = gelu(norm(p, f"{name}/depthwise_norm", convolution(p, f"{name}/depthwise", y)))
  gate = linear(p, f"{name}/gate/up", gelu(linear(p, f"{name}/gate/down", y.mean((1, 2)))))
  return x + linear(p, f"{name}/shrink", y / (1 + np.exp(-gate))[:, None, None])


def attention(p, name, x, side):
  B, T, _ = x.shape
  q = linear(p, f"{name}/query", x).reshape(B, T, -1, 4)
  k = linear(p, f"{name}/key", x).reshape(B, T, -1, 4)
  v = linear(p, f"{name}/value", x).reshape(B, T, -1, 4)
  table = p[f"{name}/position/table"]
  bias = np.zeros((q.shape[2], T, T))
  for t in range(T):
    for s in range(T):
      down = t // side - s // side
      right = t % side - s % side
      bias[:, t, s] = table[(down + side - 1) * (2 * side - 1) + right + side - 1]
  logits = np.einsum("BTNH,BSNH->BNTS", q, k) / 2 + bias
  probabilities = np.exp(logits - logits.max(-1, keepdims=True))
  probabilities /= probabilities.sum(-1, keepdims=True)
  return linear(p, f"{name}/out", np.einsum("BNTS,BSNH->BTNH", probabilities, v).reshape(B, T, -1))


def feed_forward(p, name, x):
  hidden = gelu(linear(p, f"{name}/layer/wi", norm(p, f"{name}/in_norm", x)))
  return x + linear(p, f"{name}/layer/wo", hidden)


def stage(p, name, x, layers, pool=pool):
  entering = pool(norm(p, f"{name}/norm", x))
  x = linear(p, f"{name}/project", pool(x))
  B, side, _, D = x.shape
  x = x.reshape(B, -1, D) + attention(
    p, f"{name}/attention", entering.reshape(B, side * side, -1), side
  )
  x = feed_forward(p, f"{name}/mlp", x)
  for layer in range(layers - 1):
    start = f"{name}/stack/blocks/"
    layer_params = {n.removeprefix(start): a[layer] for n, a in p.items() if n.startswith(start)}
    x = x + attention(
      layer_params, "self_attention/layer", norm(layer_params, "self_attention/in_norm", x), side
    )
    x = feed_forward(layer_params, "mlp", x)
  return x.reshape(B, side, side, D)


def reference(p, x, middle):
  x = gelu(norm(p, "first_norm", convolution(p, "first", x, stride=2)))
  x = convolution(p, "second", x)
  for number, first in enumerate((True, True, False, True, False)[: 5 if middle else 3]):
    x = mbconv(p, f"convolutions/{number}", x, first)
  x = stage(p, "fourth", stage(p, "third", x, 3, (lambda x: x) if middle else pool), 1)
  x = norm(p, "norm", x).mean((1, 2))
  return linear(p, "head/out", np.tanh(linear(p, "head/hidden", x)))


@pytest.mark.parametrize("variant", more.beyond(1, [SMALL, MIDDLE]), ids=["plain", "middle"])
def test_logits_equal_plain_numpys(variant):
  chosen = families.Case(f"coatnet:{variant.middle}", "coatnet", variant)
  image = families.whole(chosen, 3)["image"]
  arrays = {name: np.asarray(x, np.float64) for name, x in families.arrays(chosen).items()}
  expected = reference(arrays, image.astype(np.float64), variant.middle)
  logits = np.asarray(
    jax.jit(lambda m, x: m({"image": x})["logits"])(families.model(chosen), image)
  )
  assert np.abs(logits - expected).max() <= 1e-4 * max(1, np.abs(expected).max())
  assert np.std(expected, axis=0).min() > 1e-2  # the images differ
  assert families.model(chosen).features({"image": image}).shape == (3, 24)


@pytest.mark.more
def test_every_parameter_has_a_gradient_and_a_mesh_changes_nothing():
  plain = families.plain(CASE)
  for name, gradient in plain[1].items():
    assert np.isfinite(gradient).all(), name
    assert np.abs(gradient).max() > 0, name
  assert_same(families.value_and_gradients(CASE, families.rules(CASE)), plain)


@pytest.mark.more
@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(form.values()))
def test_scan_loop_and_remat_are_the_same_function(form):
  assert_same(families.value_and_gradients(CASE, **form), families.plain(CASE))


@pytest.mark.more
def test_dropped_paths_and_another_number_of_channels():
  batch = families.whole(CASE, 4)
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
      "found 'token', but the model has no such token",
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
