"""Disentangled attention equals its formula, one pair of tokens at a time."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from flax import nnx

import tiny
from arrays import normal
from refusals import refuses
from t5x_like.models import deberta
from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from t5x_like.nn.layer import Context
from t5x_like.nn.mask import Mask, positions

D = 8
N = 2
H = 4
BUCKETS = 6
MOST = 11
DESIGN = dataclasses.replace(deberta.DESIGN, attention_scale=(3 * H) ** -0.5)
DIMS = Dims(D, N, N, H, 16, 1)


def model(buckets=BUCKETS, max_distance=MOST):
  sizes = dict(head="none", buckets=buckets, max_distance=max_distance)
  variant = deberta.DebertaVariant(DIMS, DESIGN, tiny.VOCAB, deberta.TOKENS, **sizes)
  return deberta.Model(nnx.Rngs(params=0), variant=variant)


def row(distance):
  """Return the table row of He et al. 2021 for a distance, by the released code."""
  middle = BUCKETS // 2
  size = abs(distance)
  if size > middle:
    share = math.log(size / middle) / math.log((MOST - 1) / middle)
    size = math.ceil(share * (middle - 1)) + middle
  return min(max(int(math.copysign(size, distance)) + BUCKETS, 0), 2 * BUCKETS - 1)


def test_attention_follows_the_formula():
  T = 14  # longer than the largest distance
  encoder = jax.jit(model)()
  arrays = {}
  for name, array in params.arrays(encoder).items():
    arrays[name] = normal(*array.shape, seed=len(name), scale=0.5)
  encoder = params.with_arrays(encoder, arrays)
  layer = jax.tree.map(lambda x: x[0], encoder.encoder.blocks.self_attention.layer)
  x_TD = normal(T, D)
  mask = Mask(positions(T), positions(T))
  vectors = np.asarray(encoder.encoder.bias(mask, 1))
  context = Context(mask=mask, bias=vectors)
  actual = jax.jit(lambda layer, x: layer(x, context, None, None)[0])(layer, x_TD[None])[0]

  def project(name, x):
    linear = getattr(layer, name)
    y = x @ np.asarray(linear.kernel[...]) + np.asarray(linear.bias[...])
    return y.reshape(len(y), -1)

  q = project("query", x_TD).reshape(-1, N, H)
  k = project("key", x_TD).reshape(-1, N, H)
  v = project("value", x_TD).reshape(-1, N, H)
  r_q = project("query", vectors).reshape(-1, N, H)
  r_k = project("key", vectors).reshape(-1, N, H)
  expected = np.zeros((T, N, H))
  for n in range(N):
    for i in range(T):
      sums = [
        q[i, n] @ k[j, n] + q[i, n] @ r_k[row(i - j), n] + k[j, n] @ r_q[row(i - j), n]
        for j in range(T)
      ]
      weights = np.exp(np.array(sums) / math.sqrt(3 * H))
      expected[i, n] = weights @ v[:, n] / weights.sum()
  np.testing.assert_allclose(actual, project("out", expected.reshape(T, -1)), atol=1e-4)


@pytest.mark.parametrize("sizes", [(2, 512), (256, 129)])
def test_sizes_without_buckets_are_refused(sizes):
  with refuses("max_distance", f"found {sizes[1]} with {sizes[0]} buckets"):
    model(*sizes)
