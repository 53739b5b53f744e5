"""The kernel that holds complete rows of logits equals the dense core, in Pallas's interpreter."""

import types

import core_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from more import beyond
from t5x_like.nn import dims
from t5x_like.nn.cores import Softmax, fused
from t5x_like.nn.cores.fused import Fused, draw_seeds, dropout_mask
from t5x_like.nn.dims import Dropout
from t5x_like.nn.mask import Mask, positions
from t5x_like.parallel.constrain import use_layout, use_platform
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules

CORE = Fused()


@pytest.mark.parametrize(
  "kind, bias, kv_heads, logits",
  beyond(
    2,
    [
      ("packed_causal", "table", 4, 2**18),
      ("packed_causal", "table", 4, 1),
      ("full", "none", 2, 2**18),
      ("prefix_w5", "array", 4, 2**18),
      ("prefix_w5", "array", 4, 1),
      ("full", "table", 1, 2**18),
    ],
  ),
)
def test_output_and_gradients_equal_the_dense_cores(kind, bias, kv_heads, logits, monkeypatch):
  """A step of the kernel has several rows, or one where its limit of logits is 1."""
  monkeypatch.setattr(fused, "LOGITS_PER_STEP", logits)
  cases.assert_equals_dense(CORE, cases.mask(kind), (*cases.qkv(K=kv_heads), *cases.bias(bias)))


@pytest.mark.parametrize(
  "T, S, heads, width, biased, chip, refuses",
  [
    (512, 512, 12, 64, True, "TPU v4", False),
    (512, 1024, 12, 64, True, "TPU v4", True),
    (724, 724, 16, 64, False, "TPU v4", False),
    (512, 1024, 20, 80, False, "TPU v4", True),
    (512, 1024, 20, 80, False, "TPU v5 lite", False),
  ],
)
def test_lengths_that_exceed_the_memory_of_a_chip_are_refused(
  T, S, heads, width, biased, chip, refuses
):
  """The compiler reported these limits for each chip."""
  mesh = types.SimpleNamespace(devices=np.array([types.SimpleNamespace(device_kind=chip)]))
  q = jax.ShapeDtypeStruct((4, T, heads, width), jnp.bfloat16)
  k = jax.ShapeDtypeStruct((4, S, heads, width), jnp.bfloat16)
  bias = jax.ShapeDtypeStruct((1, heads, T, S), jnp.float32) if biased else None
  with use_layout(types.SimpleNamespace(mesh=mesh)):
    reason = Fused.unsupported(q, k, Mask(positions(T), positions(S)), Softmax(bias))
  assert bool(reason) == refuses
  assert not refuses or "16 MiB of a TPU v4" in reason


@pytest.mark.more
@pytest.mark.parametrize("width", [80, 96])
def test_cross_attention_of_odd_lengths_equals_the_dense_cores(width):
  """One row has no visible key, and each row has other biases."""
  T = 19
  S = 45
  mask = Mask(positions(T), positions(S), k_valid=jnp.arange(S)[None] < jnp.array([[S], [0]]))
  args = (*cases.qkv(T=T, S=S, H=width), jnp.asarray(cases.normal(2, 4, T, S, seed=3)), None)
  cases.assert_equals_dense(CORE, mask, args, rows=jnp.ones((2, T), bool))


@pytest.mark.more
def test_bfloat16_steps_of_several_rows_and_heads_equal_the_dense_cores():
  """A register holds two heads of width 64, and a step has eight rows of 24 tokens."""
  q, k, v = (x.astype(jnp.bfloat16) for x in cases.qkv(B=8, T=24, S=40, N=4, K=4, H=64))
  mask = Mask(
    positions(24), positions(40), k_valid=jnp.arange(40)[None] < jnp.arange(33, 41)[:, None]
  )
  exact = cases.make("dense")(q, k, v, mask, scale=0.1).astype(jnp.float32)
  np.testing.assert_allclose(CORE(q, k, v, mask, scale=0.1).astype(jnp.float32), exact, atol=0.02)


@pytest.mark.parametrize("shared", beyond(1, [(), ((-2,),)]))
def test_dropout_applies_the_mask_that_the_kernel_draws(shared):
  """Output and gradients equal a reference with the same mask outside of the kernel.

  The kernel runs on a mesh that splits rows, queries and heads.
  """
  dropout = Dropout(0.3, shared)
  key = jax.random.key(3)
  mask = cases.mask("causal", T=38)
  q, k, v = cases.qkv(T=38, K=4)
  masks = [
    dropout_mask(dropout, draw_seeds(key), 38, 38, row, head)
    for row in range(2)
    for head in range(4)
  ]
  keep = jnp.stack(masks).reshape(2, 4, -1, 38)
  rate = round(0.3 * 2**16) / 2**16  # the kernel compares 16 random bits

  def expected(q, k, v):
    logits = jnp.where(mask.dense(), jnp.einsum("BTNH,BSNH->BNTS", q, k), -1e10)
    return jnp.einsum("BNTS,BSNH->BTNH", jax.nn.softmax(logits) * keep / (1 - rate), v)

  def actual(q, k, v):
    return CORE(q, k, v, mask, scale=1.0, dropout=dropout, key=key)

  def results(function):
    return jax.jit(jax.value_and_grad(lambda *qkv: (function(*qkv) ** 2).sum(), (0, 1, 2)))(q, k, v)

  with Rules.make(make_mesh(dict(data=2, sequence=2, tensor=2), jax.devices())).activate():
    actual_results = results(actual)
  for a, e in zip(jax.tree.leaves(actual_results), jax.tree.leaves(results(expected)), strict=True):
    np.testing.assert_allclose(a, e, rtol=2e-4, atol=3e-5)


def test_kernel_can_be_mapped_over_stages_of_a_pipeline():
  """Each stage has another key. The kernels are lowered for a TPU."""
  mask = Mask(positions(128), positions(128), causal=True)

  def loss(q, key):
    return CORE(
      q, q, q, mask, scale=0.4, dropout=Dropout(0.1), key=jax.random.wrap_key_data(key)
    ).sum()

  q = jax.ShapeDtypeStruct((2, 2, 128, 2, 64), jnp.bfloat16)
  keys = jax.ShapeDtypeStruct((2, 2), jnp.uint32)
  with use_platform("tpu"):
    lowered = (
      jax.jit(jax.vmap(jax.value_and_grad(loss))).trace(q, keys).lower(lowering_platforms=("tpu",))
    )
  assert lowered.as_text().count("@tpu_custom_call(") == 2


def test_dropout_masks_are_random():
  """Masks of neighbours, heads, rows and keys are independent, within five standard deviations."""
  draws = np.stack(
    [
      dropout_mask(Dropout(0.1), pair, 64, 65, row, head)
      for pair in ((1, 2), (2, 1))
      for row in (0, 1)
      for head in (0, 1)
    ]
  )
  centred = (draws - 0.9) / 0.3
  pairs = [centred.ravel(), centred[:, 1:] * centred[:, :-1], centred[..., 1:] * centred[..., :-1]]
  pairs += [centred[..., :32] * centred[..., 33:]]  # halves of the same bits
  pairs += [centred[i] * centred[j] for i in range(8) for j in range(i)]
  rows, _ = dims.dropout_mask(jax.random.key(7), 0.1, (64, 32, 16))  # outside of the kernel
  pairs += [(rows[1:] - 0.9) * (rows[:-1] - 0.9) / 0.09, (rows - 0.9) / 0.3]
  assert all(abs(x.mean()) < 5 / np.sqrt(x.size) for x in pairs)
