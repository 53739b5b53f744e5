"""Sparse and compressed cores equal plain numpy and cost as little as their papers say."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.contrib.efficient_attention.cores.bigbird import BigBird, draw_random_blocks
from t5x_like.contrib.efficient_attention.cores.linformer import Linformer
from t5x_like.contrib.efficient_attention.cores.memory_compressed import MemoryCompressed
from t5x_like.nn import params
from t5x_like.nn.dims import Dropout
from t5x_like.nn.mask import Mask, positions
from tests.nn.cores import core_cases as cases


def attention(q, k, v, counts, scale):
  """Return dense attention in float64 where each key counts `counts` [N, T, S] times."""
  groups = q.shape[1] // k.shape[1]
  q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
  logits = scale * np.einsum("TNH,SNH->NTS", q, k.repeat(groups, axis=1))
  weights = counts * np.exp(logits - logits.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  return np.einsum("NTS,SNH->TNH", weights, v.repeat(groups, axis=1))


def padding_mask(T, padding):
  """Return a mask of two rows, of which the second ends in padding, and its valid tokens."""
  valid = np.arange(T)[None] < np.array([[T], [T - padding]])
  return Mask(positions(T), positions(T), k_valid=jnp.asarray(valid)), valid


def build_with_random_parameters(core):
  """Return the core with random parameters, so that a null key has an effect."""
  arrays = params.arrays(core)
  noisy = {
    name: a + cases.normal(*a.shape, seed=50 + i) for i, (name, a) in enumerate(arrays.items())
  }
  return params.with_arrays(core, noisy)


# BigBird


def bigbird_counts(core, T, valid, N, K):
  """Return how often each query sees each key, [N, T, T], by a matrix of blocks."""
  n = -(-T // core.block)
  blocks = np.zeros((N, n, n), np.int64)
  blocks[:, [0, -1], :] = 1
  blocks[:, :, [0, -1]] = 1
  for i in range(1, n - 1):
    blocks[:, i, i - 1 : i + 2] = 1
    for head in range(N):
      if core.plan == "first":
        blocks[head, i, 0] += core.random_blocks
      else:
        plan = draw_random_blocks(n, K, core.random_blocks, core.seed)
        blocks[head, i, plan[head // (N // K), i - 1]] = 1
  counts = blocks.repeat(core.block, axis=1).repeat(core.block, axis=2)[:, :T, :T]
  return counts * valid[None, None, :]


@pytest.mark.parametrize("plan", ["random", "first"])
@pytest.mark.parametrize("random_blocks, T, kv_heads", [(0, 28, 1), (1, 32, 2), (2, 39, 4)])
def test_bigbird_equals_dense_attention_under_its_block_matrix(plan, random_blocks, T, kv_heads):
  core = BigBird(block=4, random_blocks=random_blocks, seed=3, plan=plan)
  q, k, v = cases.qkv(T=T, K=kv_heads)
  mask, valid = padding_mask(T, 6)
  out = jax.jit(lambda q, k, v: core(q, k, v, mask, scale=0.4))(q, k, v)
  for row in range(2):
    counts = bigbird_counts(core, T, valid[row], 4, kv_heads)
    expected = attention(q[row], k[row], v[row], counts, 0.4)
    np.testing.assert_allclose(out[row], expected * valid[row][:, None, None], rtol=1e-4, atol=1e-5)


def test_random_blocks_of_bigbird_are_a_valid_plan():
  plan = draw_random_blocks(20, 3, 4, seed=0)
  for head, row in np.ndindex(3, 18):
    blocks = set(plan[head, row].tolist())
    assert len(blocks) == 4
    assert not blocks & {0, 19, row, row + 1, row + 2}
  assert (plan[0] != plan[1]).any()
  assert (plan != draw_random_blocks(20, 3, 4, seed=1)).any()
  assert (plan == draw_random_blocks(20, 3, 4, seed=0)).all()


def test_bigbird_gradient_stays_within_its_blocks():
  T = 48
  core = BigBird(block=4, random_blocks=1)
  q, k, v = cases.qkv(B=1, T=T)
  t = 21
  run = jax.grad(lambda v: core(q, k, v, Mask(positions(T), positions(T)), scale=0.4)[0, t].sum())
  gradient = jax.jit(run)(v)
  reached = np.abs(np.asarray(gradient[0])).sum((1, 2)) > 0
  counts = bigbird_counts(core, T, np.ones(T, int), 4, 2)[:, t].sum(0) > 0
  assert reached.tolist() == counts.tolist()


# Linformer


@pytest.mark.parametrize("share", ["none", "headwise", "kv"])
@pytest.mark.parametrize("S", [13, 20])
def test_linformer_equals_numpy(share, S):
  spec = {"name": "linformer", "k": 5, "length": 20, "share": share}
  core = build_with_random_parameters(cases.make(spec))
  assert params.count(core) == {"none": 2 * 2, "headwise": 2, "kv": 1}[share] * 5 * 20
  q, k, v = cases.qkv(T=S)
  mask, valid = padding_mask(S, 6)
  out = core(q, k, v, mask, scale=0.4)
  keys = np.asarray(core.keys[...])[..., :S]
  values = keys if share == "kv" else np.asarray(core.values[...])[..., :S]
  for row in range(2):
    product = "NKS,SNH->KNH" if share == "none" else "KS,SNH->KNH"
    short_k = np.einsum(product, keys * valid[row], k[row])
    short_v = np.einsum(product, values * valid[row], v[row])
    expected = attention(q[row], short_k, short_v, np.ones((4, S, 5)), 0.4)
    np.testing.assert_allclose(out[row], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("share", ["none", "headwise"])
def test_linformer_projects_each_sequence_of_a_packed_row_by_itself(share):
  core = build_with_random_parameters(
    cases.make({"name": "linformer", "k": 5, "length": 37, "share": share, "sequences": 2})
  )
  q, k, v = cases.qkv()
  segments, pos = cases.segments_and_positions()
  out = core(q, k, v, Mask(pos, pos, segments, segments, segments > 0), scale=0.4)
  for row, lengths in enumerate([(11, 9), (20, 6)]):
    start = 0
    for length in lengths:
      sequence = tuple(x[row : row + 1, start : start + length] for x in (q, k, v))
      alone = core(*sequence, Mask(positions(length), positions(length)), scale=0.4)
      np.testing.assert_allclose(
        out[row : row + 1, start : start + length], alone, rtol=1e-4, atol=1e-5
      )
      start += length
  assert np.array_equal(np.isnan(out).any((2, 3)), segments > 2)


@pytest.mark.parametrize("share", ["none", "kv"])
@pytest.mark.parametrize("length", [5, 15])
def test_linformer_may_start_as_mean_pooling(share, length):
  spec = {"name": "linformer", "k": 5, "length": length, "share": share, "start": "pooling"}
  q, k, v = cases.qkv(T=length)
  out = cases.make(spec)(q, k, v, Mask(positions(length), positions(length)), scale=0.4)
  for row in range(2):
    pooled_k, pooled_v = (
      np.reshape(x[row], (5, -1, 2, 8)).sum(1) / (length // 5) ** 0.5 for x in (k, v)
    )
    expected = attention(q[row], pooled_k, pooled_v, np.ones((4, length, 5)), 0.4)
    np.testing.assert_allclose(out[row], expected, rtol=1e-4, atol=1e-5)


# Memory-compressed


def compress(x_SNH, kernel_NKHD, stride):
  """Return strides of a row, each multiplied by the kernel of its places; [blocks, N, H]."""
  padding = -len(x_SNH) % stride
  blocks = np.pad(x_SNH, ((0, padding), (0, 0), (0, 0))).reshape(-1, stride, *x_SNH.shape[1:])
  return np.einsum("BKNH,NKHD->BND", blocks, kernel_NKHD)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("S, stride", [(12, 3), (14, 3), (9, 2)])
def test_memory_compressed_attention_equals_numpy(causal, S, stride):
  spec = {"name": "memory_compressed", "stride": stride}
  core = build_with_random_parameters(cases.make(spec, causal=causal))
  q, k, v = cases.qkv(T=S)
  mask, valid = padding_mask(S, 4)
  mask = dataclasses.replace(mask, causal=causal)
  out = jax.jit(lambda q, k, v: core(q, k, v, mask, scale=0.4))(q, k, v)
  for row in range(2):
    is_token = valid[row][:, None, None]
    short_k = compress(is_token * np.asarray(k[row]), np.asarray(core.keys[...]), stride)
    short_v = compress(is_token * np.asarray(v[row]), np.asarray(core.values[...]), stride)
    counts = np.zeros((4, S, len(short_k)))
    for t, block in np.ndindex(S, len(short_k)):
      tokens = range(block * stride, (block + 1) * stride)
      are_valid = [s < S and valid[row, s] for s in tokens]
      counts[:, t, block] = all(are_valid) and tokens[-1] <= t if causal else any(are_valid)
    if causal:
      short_k = np.concatenate([np.asarray(core.null_key[...])[None], short_k])
      short_v = np.concatenate([np.asarray(core.null_value[...])[None], short_v])
      counts = np.concatenate([np.ones((4, S, 1)), counts], axis=2)
    expected = attention(q[row], short_k, short_v, counts, 0.4)
    np.testing.assert_allclose(out[row], expected, rtol=1e-4, atol=1e-5)


def test_memory_compressed_attention_is_causal():
  core = build_with_random_parameters(MemoryCompressed(cases.rngs(), cases.DIMS, causal=True))
  q, k, v = cases.qkv(B=1, T=12)
  mask = Mask(positions(12), positions(12), causal=True)
  run = jax.jit(
    jax.grad(lambda k, v, t: core(q, k, v, mask, scale=0.4)[0, t].sum(), argnums=(0, 1))
  )
  for t in (0, 1, 2, 7, 11):
    for gradient in run(k, v, t):
      reached = np.abs(np.asarray(gradient[0])).sum((1, 2)) > 0
      assert reached.tolist() == [s < (t + 1) // 3 * 3 for s in range(12)]


@pytest.mark.parametrize("core", ["linformer", "bigbird"])
def test_dropout_keeps_the_expectation(core):
  if core == "linformer":
    core = Linformer(cases.rngs(), cases.DIMS, k=5, length=40)
  else:
    core = BigBird(block=4, random_blocks=1)
  q, k, v = cases.qkv(T=40)
  mask = Mask(positions(40), positions(40))

  def attend(key):
    return core(q, k, v, mask, scale=0.4, dropout=Dropout(0.2), key=key)

  out = jax.jit(jax.vmap(attend))(jax.random.split(jax.random.key(0), 256))
  error = jnp.abs(out.mean(0) - jax.jit(lambda: attend(None))())
  assert float(error.max()) < 6 * float(out.std(0).max()) / 16
  assert float(out.std(0).max()) > 0.01


# Cost


@pytest.mark.parametrize(
  "core",
  [
    {"name": "bigbird", "block": 8, "random_blocks": 1},
    {"name": "linformer", "k": 32},
  ],
)
def test_flops_grow_linearly_with_the_length(core):
  lengths = (256, 1024)
  specs = [core | ({"length": T} if core["name"] == "linformer" else {}) for T in lengths]
  short_flops, long_flops = map(cases.flops, specs, lengths)
  assert 3.7 < long_flops / short_flops < 4.3


@pytest.mark.parametrize("stride", [3, 6])
def test_memory_compressed_attention_saves_flops(stride):
  compressed = {"name": "memory_compressed", "stride": stride}
  dense_flops = cases.flops("dense", 3072, causal=True)
  assert cases.flops(compressed, 3072, causal=True) < 1.25 / stride * dense_flops
