"""Position schemes and DeepNorm equal their papers' formulas, computed element by element."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from arrays import normal, rngs
from t5x_like.architectures.build import StackBuilder, deepnorm_weights
from t5x_like.architectures.design import Design
from t5x_like.nn import params
from t5x_like.nn.block import Residual
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.dims import Dims
from t5x_like.nn.mask import Mask
from t5x_like.nn.positions.alibi import Alibi, alibi_slopes
from t5x_like.nn.positions.learned import LearnedPosition
from t5x_like.nn.positions.rope import LinearScaling, Llama3Scaling, Rope
from t5x_like.nn.positions.shaw import ShawPosition
from t5x_like.nn.positions.sinusoidal import SinusoidalPosition
from t5x_like.parallel.constrain import use_platform

# Positions are explicit, so they may be in any order and repeat.
POS = np.array([[0, 1, 2, 7, 31], [5, 0, 3, 3, 400]], np.int32)


@pytest.mark.parametrize("interleaved", [True, False])
def test_sinusoidal_positions_follow_their_paper(interleaved):
  """Vaswani et al. 2017, section 3.5.

  PE(pos, 2i) = sin(pos / 10000^(2i/d)) and PE(pos, 2i+1) = cos(pos / 10000^(2i/d)).
  """
  D = 8
  x = normal(2, 5, 8)
  expected = x.astype(np.float64)
  for b, t in np.ndindex(*POS.shape):
    for i in range(D // 2):
      angle = POS[b, t] / 10_000 ** (2 * i / D)
      sine, cosine = (2 * i, 2 * i + 1) if interleaved else (i, D // 2 + i)
      expected[b, t, sine] += math.sin(angle)
      expected[b, t, cosine] += math.cos(angle)
  actual = SinusoidalPosition(interleaved=interleaved).embed(jnp.asarray(x), POS)
  np.testing.assert_allclose(actual, expected, atol=5e-5)


@pytest.mark.parametrize("offset", [0, 2])
def test_learned_positions_are_rows_of_a_table(offset):
  scheme = LearnedPosition(rngs(), 8, params.normal(1.0), length=40, offset=offset)
  pos = np.minimum(POS, 39)
  table = np.asarray(scheme.table[...])
  x = normal(2, 5, 8)
  assert table.shape == (40 + offset, 8)
  actual = scheme.embed(jnp.asarray(x), pos)
  for b, t in np.ndindex(*pos.shape):
    np.testing.assert_allclose(actual[b, t], x[b, t] + table[pos[b, t] + offset], rtol=1e-6)


def scale_as_llama3(frequency):
  """Scale a frequency as Llama 3.1 does, with factor 8, low 1, high 4 and original length 64."""
  wavelength = 2 * math.pi / frequency
  if wavelength < 64 / 4:
    return frequency
  if wavelength > 64 / 1:
    return frequency / 8
  smooth = (64 / wavelength - 1) / (4 - 1)
  return (1 - smooth) * frequency / 8 + smooth * frequency


SCALINGS = {
  "none": ({}, lambda f: f),
  "linear": ({"linear": LinearScaling(3.0)}, lambda f: f / 3.0),
  "llama3": ({"llama3": Llama3Scaling(8.0, 1.0, 4.0, 64)}, scale_as_llama3),
}


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize(
  "interleaved, fraction", [(False, 1.0), (True, 1.0), (False, 0.5), (True, 0.25)]
)
def test_rope_follows_its_paper(interleaved, fraction, scaling):
  """Su et al. 2021, equation 15: the pair (x1, x2) turns by pos * theta^(-2i/R)."""
  H = 16
  x = normal(2, 5, 3, 16)
  R = int(H * fraction)
  arguments, scale = SCALINGS[scaling]
  expected = x.astype(np.float64)
  for b, t in np.ndindex(*POS.shape):
    for i in range(R // 2):
      angle = POS[b, t] * scale(100.0 ** (-2 * i / R))
      channel, partner = (2 * i, 2 * i + 1) if interleaved else (i, R // 2 + i)
      x1 = x[b, t, :, channel].astype(np.float64)
      x2 = x[b, t, :, partner].astype(np.float64)
      expected[b, t, :, channel] = x1 * math.cos(angle) - x2 * math.sin(angle)
      expected[b, t, :, partner] = x1 * math.sin(angle) + x2 * math.cos(angle)
  rope = Rope(theta=100.0, fraction=fraction, interleaved=interleaved, **arguments)
  np.testing.assert_allclose(jax.jit(rope.rotate)(x, POS), expected, atol=2e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_on_tpu_equals_rope_on_cpu_exactly(interleaved, dtype):
  """On a TPU, it permutes channels by a matrix product."""
  x = jnp.asarray(normal(2, 5, 3, 16, seed=0), dtype)
  gradient = jnp.asarray(normal(2, 5, 3, 16, seed=1), dtype)
  rope = Rope(interleaved=interleaved)
  results = {}
  for platform in ("cpu", "tpu"):
    with use_platform(platform):
      out, vjp = jax.vjp(lambda x: rope.rotate(x, POS), x)
      results[platform] = np.asarray(out), np.asarray(vjp(gradient)[0])
  np.testing.assert_array_equal(results["tpu"], results["cpu"])


@pytest.mark.parametrize("interleaved", [False, True])
def test_gradient_of_rope_equals_finite_differences(interleaved):
  rope = Rope(interleaved=interleaved, fraction=0.5)
  x = jnp.asarray(normal(2, 5, 3, 16))
  check_grads(lambda x: rope.rotate(x, POS), (x,), order=1, modes=["rev"])


def test_frequencies_of_the_test_cover_all_regions_of_llama3_scaling():
  frequencies = [100.0 ** (-2 * i / 16) for i in range(8)]
  factors = [round(scale_as_llama3(f) / f, 6) for f in frequencies]
  assert factors[0] == 1.0
  assert factors[-1] == 0.125
  assert any(0.125 < k < 1 for k in factors)


@pytest.mark.parametrize("heads", [1, 4, 8])
def test_alibi_follows_its_paper(heads):
  """Press et al. 2022, section 3: a penalty of m times the distance, m = 2^(-8/n), 2^(-16/n), …"""
  bias = np.asarray(Alibi(Dims(64, heads, heads, 16, 128, 1)).bias(POS, POS[:, ::-1]))
  assert bias.shape == (2, heads, 5, 5)
  assert bias.dtype == np.float32
  for b, n, t, s in np.ndindex(*bias.shape):
    slope = (2 ** (-8 / heads)) ** (n + 1)
    assert bias[b, n, t, s] == pytest.approx(-slope * abs(int(POS[b, t]) - int(POS[b, 4 - s])))


def test_alibi_slopes_of_other_head_counts():
  """For 6 heads, the paper's code has the slopes of 4 heads, then every second slope of 8 heads.

  MPT has the slopes of 8 heads, those with odd indices first, and keeps the first 6.
  """
  slopes_of_4 = [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]
  slopes_of_8 = [2.0**-i for i in range(1, 9)]
  assert alibi_slopes(6) == (*slopes_of_4, *slopes_of_8[0:4:2])
  assert alibi_slopes(6, mpt=True) == (*slopes_of_8[1::2], *slopes_of_8[0:4:2])
  assert alibi_slopes(8, mpt=True) == alibi_slopes(8) == tuple(slopes_of_8)


def test_alibi_of_falcon_is_rounded_to_bfloat16():
  """Slopes and their products with absolute positions are rounded to bfloat16.

  The bias is added to the logits before the division by sqrt(head_dim), so it is divided as well.
  """
  k_pos = np.array([[0, 1, 7, 255, 257, 2047]])
  alibi = Alibi(Dims(64, 16, 16, 4, 128, 1), falcon=True)
  bias = np.asarray(jax.jit(alibi.bias)(POS[:1, :3], k_pos))
  assert bias.shape == (1, 16, 3, 6)
  assert bias.dtype == np.float32
  slopes = np.asarray(alibi_slopes(16)).astype(jnp.bfloat16)
  expected = (slopes[:, None] * k_pos[0].astype(jnp.bfloat16)).astype(np.float32) / 2
  np.testing.assert_array_equal(bias[0], np.broadcast_to(expected[:, None], (16, 3, 6)))


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_shaws_relative_positions_follow_their_paper(values, kv_heads):
  """Shaw et al. 2018, equations 3 to 5.

  e_ij = q_i (k_j + aK_ij) / sqrt(H) and z_i = sum_j alpha_ij (v_j + aV_ij).
  """
  B, T = POS.shape
  N = 4
  H = 6
  clip = 3
  scheme = ShawPosition(rngs(), Dims(N * H, N, N, H, 8, 1), clip=clip, values=values)
  a_key = np.asarray(scheme.keys[...], np.float64)
  a_value = np.asarray(scheme.value_table[...], np.float64) if values else np.zeros_like(a_key)
  q = normal(B, T, N, H)
  k = normal(B, T, kv_heads, H, seed=1)
  v = normal(B, T, kv_heads, H, seed=2)
  mask = Mask(jnp.asarray(POS), jnp.asarray(POS), causal=True)
  attend = jax.jit(lambda *qkv: Dense()(*qkv, mask, None, scheme, scale=H**-0.5))
  actual = attend(q, k, v)
  for b, t, n in np.ndindex(B, T, N):
    visible = [s for s in range(T) if POS[b, s] <= POS[b, t]]
    rows = np.clip(POS[b, visible] - POS[b, t], -clip, clip) + clip
    head = n * kv_heads // N
    e = (k[b, visible, head] + a_key[rows]) @ q[b, t, n] / math.sqrt(H)
    alpha = np.exp(e - e.max()) / np.exp(e - e.max()).sum()
    z = alpha @ (v[b, visible, head] + a_value[rows])
    np.testing.assert_allclose(actual[b, t, n], z, rtol=1e-4, atol=1e-5)


# DeepNorm


def test_deepnorm_weights_follow_the_table_of_the_paper():
  """Wang et al. 2022, the table in figure 2: N encoder layers and M decoder layers."""
  N = 18
  M = 6
  encoder = ((2 * N) ** (1 / 4), (8 * N) ** (-1 / 4))
  assert deepnorm_weights(N, 0)["encoder"] == pytest.approx(encoder)
  decoder = ((2 * M) ** (1 / 4), (8 * M) ** (-1 / 4))
  assert deepnorm_weights(0, M)["decoder"] == pytest.approx(decoder)
  both = deepnorm_weights(N, M)
  encoder = (0.81 * (N**4 * M) ** (1 / 16), 0.87 * (N**4 * M) ** (-1 / 16))
  assert both["encoder"] == pytest.approx(encoder)
  decoder = ((3 * M) ** (1 / 4), (12 * M) ** (-1 / 4))
  assert both["decoder"] == pytest.approx(decoder)


DEEPNORM = Design(norm="layernorm", norm_position="deepnorm")


@pytest.mark.parametrize("side, depths", [("encoder", (6, 0)), ("decoder", (0, 6))])
def test_deepnorm_scales_all_kernels_except_query_and_key(side, depths):
  dims = Dims(64, 4, 4, 16, 128, 6)
  alpha, beta = deepnorm_weights(*depths)[side]
  builder = StackBuilder(DEEPNORM, dims, causal=side == "decoder", deepnorm=(alpha, beta))
  blocks = jax.jit(lambda: builder.stack(rngs()).blocks)()
  assert blocks.self_attention.alpha == blocks.mlp.alpha == alpha
  attention = blocks.self_attention.layer
  mlp = blocks.mlp.layer
  gains = [(attention.query, 1), (attention.key, 1)]
  gains += [(linear, beta) for linear in (attention.value, attention.out, mlp.wi, mlp.wo)]
  for linear, gain in gains:
    kernel = np.asarray(linear.kernel[...])
    assert kernel.std() * math.sqrt(kernel.shape[1]) == pytest.approx(gain, rel=0.03)


def test_deepnorm_normalises_the_weighted_sum():
  """A sublayer G returns `LayerNorm(alpha x + G(x))`."""
  x = normal(1, 3, 64)
  norm = DEEPNORM.make_norm(64, rngs())
  residual = Residual(lambda x, *_: (jnp.tanh(x), {}, None), out_norm=norm, alpha=1.5)
  y = 1.5 * x.astype(np.float64) + np.tanh(x)
  deviation = np.sqrt(y.var(-1, keepdims=True) + DEEPNORM.norm_epsilon)
  expected = (y - y.mean(-1, keepdims=True)) / deviation
  actual, _, _ = residual(jnp.asarray(x), None, None, None)
  np.testing.assert_allclose(actual, expected, atol=2e-5)
