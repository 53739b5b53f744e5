"""The kernel for many short sequences equals the dense core, in Pallas's interpreter."""

import core_cases as cases
import jax
import jax.numpy as jnp
import pytest

from more import beyond
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.cores.short import Short
from t5x_like.nn.mask import Mask, positions
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules


@pytest.mark.parametrize(
  "kind, bias, T, N, K, H",
  beyond(
    1,
    [
      ("padded", "array", 49, 6, 3, 32),  # two groups of heads, the second of half a register
      ("packed_causal", "none", 37, 4, 2, 16),
      ("full", "array", 37, 3, 3, 16),  # a head without a neighbour
      ("full", "table", 64, 8, 8, 32),
      ("prefix_w5", "none", 37, 2, 1, 64),
    ],
  ),
)
def test_output_and_gradients_equal_the_dense_cores(kind, bias, T, N, K, H):
  """There are too few sequences to fill a tile."""
  args = (*cases.qkv(T=T, N=N, K=K, H=H), *cases.bias(bias, T, N))
  cases.assert_equals_dense(Short(), cases.mask(kind, T), args, rows=jnp.ones((2, T), bool))


@pytest.mark.more
def test_bfloat16_blocks_on_a_mesh_equal_the_dense_core():
  """Sequences share the bias, so its gradient is a sum over all of them."""
  q, k, v = (x.astype(jnp.bfloat16) for x in cases.qkv(B=80, T=49, N=8, K=8, H=32))
  mask = Mask(positions(49), positions(49))
  bias = jnp.asarray(cases.normal(1, 8, 49, 49, seed=7))
  rows = jnp.ones((80, 49), bool)
  with Rules.make(make_mesh(dict(data=2), jax.devices()[:2])).activate():
    sharded = cases.with_gradients(Short(), mask, rows)(q, k, v, bias, None)
  expected = cases.with_gradients(Dense(), mask, rows)(q, k, v, bias, None)
  for a, e in zip(jax.tree.leaves(sharded), jax.tree.leaves(expected), strict=True):
    difference = jnp.abs(a.astype(jnp.float32) - e.astype(jnp.float32))
    assert float(difference.max()) < 0.02 * float(jnp.abs(e).max())
