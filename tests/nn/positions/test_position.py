"""Relative buckets equal T5's published table and the formula in exact arithmetic."""

import fractions

import jax
import numpy as np
import pytest

from arrays import rngs
from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from t5x_like.nn.positions import Position
from t5x_like.nn.positions.relative_bias import RelativeBias, relative_buckets

# The first distance of each logarithmic bucket in T5's code, with 32 buckets and distance 128.
BIDIRECTIONAL = {8: 8, 12: 9, 16: 10, 23: 11, 32: 12, 46: 13, 64: 14, 91: 15}
CAUSAL_DISTANCES = (16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113)
CAUSAL = {distance: 16 + i for i, distance in enumerate(CAUSAL_DISTANCES)}


def heads(n):
  return Dims(8 * n, n, n, 8, 32, 1)


compute_buckets = jax.jit(
  relative_buckets, static_argnames=("bidirectional", "buckets", "max_distance")
)


def buckets_of_earlier_keys(distances, *, bidirectional, buckets=32, max_distance=128):
  """Return the bucket of a key at each distance before the query."""
  relative = -np.asarray(distances, np.int32)
  options = dict(bidirectional=bidirectional, buckets=buckets, max_distance=max_distance)
  return np.asarray(compute_buckets(relative, **options))


def exact_bucket(d, buckets, max_distance):
  """Compute `exact + floor(log(d/exact) / log(max/exact) * (buckets-exact))` without rounding."""
  exact = buckets // 2
  if d < exact:
    return d
  n = buckets - exact
  bucket = exact
  while bucket < buckets - 1 and fractions.Fraction(d, exact) ** n >= fractions.Fraction(
    max_distance, exact
  ) ** (bucket + 1 - exact):
    bucket += 1
  return bucket


@pytest.mark.parametrize("bidirectional, first", [(True, BIDIRECTIONAL), (False, CAUSAL)])
def test_buckets_of_earlier_keys_equal_the_published_table(bidirectional, first):
  buckets = buckets_of_earlier_keys(range(400), bidirectional=bidirectional)
  small = min(first)
  expected = []
  bucket = 0
  for d in range(400):
    bucket = d if d < small else first.get(d, bucket)
    expected.append(bucket)
  np.testing.assert_array_equal(buckets, expected)
  assert (np.diff(buckets) >= 0).all()
  assert (buckets[list(first)[-1] :] == buckets[-1]).all()
  last = 15 if bidirectional else 31
  assert buckets_of_earlier_keys([2**31 - 1, 10**6], bidirectional=bidirectional).tolist() == [
    last,
    last,
  ]


@pytest.mark.parametrize(
  "buckets, max_distance", [(32, 128), (16, 128), (32, 64), (64, 1000), (8, 20)]
)
def test_buckets_equal_the_formula_in_rationals(buckets, max_distance):
  distances = list(range(3 * max_distance))
  expected = [exact_bucket(d, buckets, max_distance) for d in distances]
  for bidirectional, count in ((False, buckets), (True, 2 * buckets)):
    options = dict(bidirectional=bidirectional, buckets=count, max_distance=max_distance)
    np.testing.assert_array_equal(buckets_of_earlier_keys(distances, **options), expected)


def test_later_keys_have_separate_buckets_or_share_the_first():
  distances = np.arange(1, 300)
  earlier = buckets_of_earlier_keys(distances, bidirectional=True)
  later = buckets_of_earlier_keys(-distances, bidirectional=True)
  np.testing.assert_array_equal(later, 16 + earlier)
  assert (buckets_of_earlier_keys(-distances, bidirectional=False) == 0).all()
  assert buckets_of_earlier_keys([0], bidirectional=True) == 0
  assert buckets_of_earlier_keys([0], bidirectional=False) == 0


def test_bias_reads_the_table_at_explicit_positions():
  position = RelativeBias(rngs(), heads(3))
  q = np.array([[5, 0, 90], [7, 7, 7]], np.int32)
  k = np.array([[0, 5, 6, 300], [1, 2, 3, 4]], np.int32)
  bias = np.asarray(jax.jit(position.bias)(q, k))
  table = np.asarray(position.table[...])
  assert bias.shape == (2, 3, 3, 4)
  assert bias.dtype == np.float32
  for b, t, s in np.ndindex(2, 3, 4):
    d = int(k[b, s]) - int(q[b, t])
    row = (16 if d > 0 else 0) + exact_bucket(abs(d), 16, 128)
    np.testing.assert_allclose(bias[b, :, t, s], table[row], rtol=1e-6)


def test_bias_trains_the_table():
  position = RelativeBias(rngs(), heads(2), causal=True)
  positions = np.arange(6, dtype=np.int32)[None]

  def total(arrays):
    return params.with_arrays(position, arrays).bias(positions, positions).sum()

  gradient = np.asarray(jax.jit(jax.grad(total))(params.arrays(position))["table"])
  distances = np.maximum(positions.T - positions, 0).ravel()
  counts = np.bincount(buckets_of_earlier_keys(distances, bidirectional=False), minlength=32)
  np.testing.assert_allclose(gradient, np.repeat(counts[:, None], 2, axis=1))


def test_base_class_of_positions_is_the_identity():
  x = np.ones((1, 2, 3), np.float32)
  assert Position().embed(x, None) is x
  assert Position().rotate(x, None) is x
  assert Position().bias(None, None) is None
