"""MViT equals plain numpy, and starts as its authors' code."""

import jax
import numpy as np
import pytest

import more
from t5x_like.contrib.multiscale.models import mvit
from tests.models import families
from tests.models.families import assert_close
from tests.models.image_families import case, deviation

OTHER = {"resolution": 14, "kv_stride": 2, "patch": 4, "patch_size": 5}


@pytest.mark.parametrize("changes", more.beyond(1, [{}, OTHER]), ids=str)
def test_mvits_logits_equal_plain_numpys(changes):
  chosen = case("mvit", depths=(1, 2), **changes)
  batch = families.whole(chosen, 2)
  arrays = {n: np.asarray(a) for n, a in families.arrays(chosen).items()}
  logits = np.asarray(jax.jit(lambda m, b: m(b)["logits"])(families.model(chosen), batch))
  assert_close(
    logits,
    np.stack([compute_logits(arrays, chosen.variant, image) for image in batch["image"]]),
    rtol=1e-4,
  )


def compute_logits(p: dict, variant, image: np.ndarray) -> np.ndarray:
  """Return the logits [labels] of an image [Y, X, C] by loops (Li et al. 2022, section 4.1)."""
  size = variant.patch_size
  step = variant.patch
  side = -(-len(image) // step)
  padded = np.pad(image, ((size // 2, size), (size // 2, size), (0, 0)))
  x = np.zeros((side, side, variant.embed))
  for i, j in np.ndindex(side, side):
    patch = padded[i * step : i * step + size, j * step : j * step + size]
    x[i, j] = np.tensordot(patch, p["patches/kernel"], 3) + p["patches/bias"]
  for stage, depth in enumerate(variant.depths):
    stride = max(variant.kv_stride // 2**stage, 1)
    for layer in range(depth):
      entry = stage > 0 and layer == 0
      name = f"stage_{stage + 1}/" + ("entry/" if entry else "stack/blocks/")
      at = () if entry else (layer - (stage > 0),)

      def get(part):
        return p[name + part][at]

      normed = norm(x, get, "self_attention/in_norm/")
      y = pooling_attention(normed, get, variant.heads[stage], 2 if entry else 1, stride)
      x = (max_pool(linear(normed, get, "self_attention/shortcut/")) if entry else x) + y
      hidden = linear(norm(x, get, "mlp/in_norm/"), get, "mlp/layer/wi/")
      x = x + linear(np.asarray(jax.nn.gelu(hidden, approximate=False)), get, "mlp/layer/wo/")

  def get_stem(part):
    return p[part]

  return linear(norm(x, get_stem, "final_norm/").mean((0, 1)), get_stem, "head/out/")


def linear(x, get, name):
  return x @ get(name + "kernel") + get(name + "bias")


def norm(x, get, name):
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
  return x * get(name + "scale") + get(name + "bias")


def max_pool(x):
  padded = np.pad(x, ((1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
  side = -(-len(x) // 2)
  return np.array(
    [
      [padded[2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max((0, 1)) for j in range(side)]
      for i in range(side)
    ]
  )


def pooling_attention(x, get, heads, q_stride, kv_stride):
  def pool(name, stride):
    y = linear(x, get, f"self_attention/layer/{name}/")
    kernel = get(f"self_attention/layer/pool_{name}/kernel")
    side = -(-len(y) // stride)
    outputs = np.zeros((side, side, heads, kernel.shape[-1]))
    padded = np.pad(y.reshape(*y.shape[:2], heads, -1), ((1, 1), (1, 1), (0, 0), (0, 0)))
    for i, j in np.ndindex(side, side):
      for a, b in np.ndindex(3, 3):
        outputs[i, j] += padded[i * stride + a, j * stride + b] * kernel[a, b]
    return norm(outputs, get, f"self_attention/layer/pool_{name}/norm/")

  q = pool("query", q_stride)
  k = pool("key", kv_stride)
  v = pool("value", kv_stride)
  Q = len(q)
  K = len(k)
  H = q.shape[-1]
  rows = get("self_attention/layer/position/rows")
  columns = get("self_attention/layer/position/columns")

  def key_position(i, j):
    return int(i * max(K / Q, 1) + (K - 1 - j) * max(Q / K, 1))

  out = np.zeros_like(q)
  for i, j, n in np.ndindex(Q, Q, heads):
    logits = np.zeros((K, K))
    for a, b in np.ndindex(K, K):
      logits[a, b] = q[i, j, n] @ (
        k[a, b, n] / np.sqrt(H) + rows[key_position(i, a)] + columns[key_position(j, b)]
      )
    weights = np.exp(logits - logits.max())
    out[i, j, n] = np.tensordot(weights / weights.sum(), v[:, :, n], 2) + q[i, j, n]
  return linear(out.reshape(Q, Q, -1), get, "self_attention/layer/out/")


def test_patches_pools_and_heads_start_as_in_the_authors_code():
  """PyTorch's convolutions have the variance 1 / (3 * fan in), and the head the deviation 0.02."""
  assert deviation(mvit, "mvit-tiny") == pytest.approx((3 * 147) ** -0.5)
  pool = "stage_2/stack/blocks/self_attention/layer/pool_key/kernel"
  assert deviation(mvit, "mvit-tiny", pool) == pytest.approx(27**-0.5)
  assert deviation(mvit, "mvit-tiny", "head/out/kernel") == 0.02
