"""MViT has recorded logits, and starts as its authors' code; parity has those of timm."""

import jax
import numpy as np
import pytest

import more
from t5x_like.contrib.multiscale.models import mvit
from tests.models import families
from tests.models.image_families import case, deviation

SMALL_STRIDES = {"resolution": 14, "kv_stride": 2, "patch": 4, "patch_size": 5}
# Recorded when they equalled loops in numpy that follow Li et al. 2022, section 4.1.
LOGITS = [
  (
    {},
    [
      [-0.63789, -0.18857, 1.02271, 1.17303, 1.17202],
      [-0.34550, -0.30305, 0.18555, 0.62113, 0.69536],
    ],
  ),
  (
    SMALL_STRIDES,
    [
      [-0.82410, 0.17882, -0.68753, 0.31541, 2.24396],
      [-0.19052, 0.30316, -0.02159, 0.52411, 0.25544],
    ],
  ),
]


@pytest.mark.parametrize(("changes", "expected"), more.beyond(1, LOGITS))
def test_logits_are_those_of_the_paper(changes, expected):
  small = case("mvit", depths=(1, 2), **changes)
  batch = families.full_rows(small, 2)
  logits = jax.jit(lambda model, batch: model(batch)["logits"])(families.model(small), batch)
  np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def test_patches_pools_and_heads_start_as_in_the_authors_code():
  """PyTorch's convolutions have the variance 1 / (3 * fan in), and the head the deviation 0.02."""
  assert deviation(mvit, "mvit-tiny") == pytest.approx((3 * 147) ** -0.5)
  pool = "stage_2/stack/blocks/self_attention/layer/pool_key/kernel"
  assert deviation(mvit, "mvit-tiny", pool) == pytest.approx(27**-0.5)
  assert deviation(mvit, "mvit-tiny", "head/out/kernel") == 0.02
