"""Disentangled attention equals its formula, one pair of tokens at a time."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from flax import nnx

import tiny
from t5x_like.errors import UserError
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
    size = (
      math.ceil(math.log(size / middle) / math.log((MOST - 1) / middle) * (middle - 1)) + middle
    )
  return min(max(int(math.copysign(size, distance)) + BUCKETS, 0), 2 * BUCKETS - 1)


def test_attention_follows_the_formula():
  # longer than the largest distance
  encoder = jax.jit(model)()
  T = 14
  arrays = {n: np.asarray(0.5 * np.random.default_rng(len(n)).standard_normal(x.shape), np.float32)
            for n, x in params.arrays(encoder).items()}  # fmt: skip
  encoder = params.with_arrays(encoder, arrays)
  layer = jax.tree.map(lambda x: x[0], encoder.encoder.blocks.self_attention.layer)
  x_TD = np.random.default_rng(0).standard_normal((T, D)).astype(np.float32)
  mask = Mask(positions(T), positions(T))
  vectors = np.asarray(encoder.encoder.bias(mask, 1))
  actual = jax.jit(lambda layer, x: layer(x, Context(mask=mask, bias=vectors), None, None)[0])(
    layer, x_TD[None]
  )[0]

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
  with pytest.raises(UserError, match=f"max_distance: found {sizes[1]} with {sizes[0]} buckets"):
    model(*sizes)
