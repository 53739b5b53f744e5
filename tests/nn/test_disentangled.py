"""DeBERTa's table rows for distances equal the released code's; see test_golden.py for outputs."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from flax import nnx

import tiny
from refusals import refuses
from t5x_like.models import deberta
from t5x_like.nn.dims import Dims

BUCKETS = 6
LONGEST = 11
DESIGN = dataclasses.replace(deberta.DESIGN, attention_scale=12**-0.5)
DIMS = Dims(embed=8, heads=2, kv_heads=2, head_dim=4, mlp=16, layers=1)


def build_model(buckets=BUCKETS, max_distance=LONGEST):
  sizes = dict(head="none", buckets=buckets, max_distance=max_distance)
  variant = deberta.DebertaVariant(DIMS, DESIGN, tiny.VOCAB, deberta.TOKENS, **sizes)
  return deberta.Model(nnx.Rngs(params=0), variant=variant)


def find_row(distance):
  """Return the table row of He et al. 2021 for a distance, by the released code."""
  middle = BUCKETS // 2
  size = abs(distance)
  if size > middle:
    share = math.log(size / middle) / math.log((LONGEST - 1) / middle)
    size = math.ceil(share * (middle - 1)) + middle
  return min(max(int(math.copysign(size, distance)) + BUCKETS, 0), 2 * BUCKETS - 1)


def test_rows_of_distances_equal_the_released_code():
  layer = jax.eval_shape(build_model).encoder.blocks.self_attention.layer
  distances = np.arange(-2 * LONGEST, 2 * LONGEST + 1)
  rows = jax.jit(lambda distances: layer.table_rows(distances))(distances)
  assert rows.tolist() == [find_row(distance) for distance in distances.tolist()]


@pytest.mark.parametrize("sizes", [(2, 512), (256, 129)])
def test_sizes_without_buckets_are_refused(sizes):
  with refuses("max_distance", f"found {sizes[1]} with {sizes[0]} buckets"):
    build_model(*sizes)
