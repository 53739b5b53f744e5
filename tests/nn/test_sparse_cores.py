"""The cores that compute something else than dense attention, against plain numpy; refusals; whole models."""

import core_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.nn import cores, params
from t5x_like.nn.architectures import Decoder, Encoder, EncoderDecoder, Variant
from t5x_like.nn.cores.bigbird import BigBird, random_plan
from t5x_like.nn.cores.linformer import Linformer
from t5x_like.nn.cores.memory_compressed import MemoryCompressed
from t5x_like.nn.design import Design
from t5x_like.nn.dims import Dims
from t5x_like.nn.mask import Mask, positions
from t5x_like.nn.position import Alibi
from t5x_like.nn.relative_position import ShawPosition

SIZES = dict(heads=4, kv_heads=2, head_dim=8)


def attention(q, k, v, counts, scale):
  """Dense attention in float64 where each key counts `counts` [N, T, S] times; all rows of one example [T, N, H]."""
  T, N, _ = q.shape
  out = np.zeros(q.shape, np.float64)
  for head in range(N):
    kv_head = head // (N // k.shape[1])
    for t in range(T):
      logits = k[:, kv_head].astype(np.float64) @ q[t, head].astype(np.float64) * scale
      weights = counts[head, t] * np.exp(logits - logits.max())
      out[t, head] = weights @ v[:, kv_head].astype(np.float64) / weights.sum()
  return out


def moved(core):
  """The core with all its parameters away from their initial values, so that a null key is none."""
  arrays = params.arrays(core)
  noisy = {name: a + cases.normal(*a.shape, seed=50 + i) for i, (name, a) in enumerate(arrays.items())}
  return params.with_arrays(core, noisy)


# BigBird


def bigbird_counts(core, T, valid, N, K):
  """[N, T, T]: how often each query sees each key, from an explicit matrix of blocks."""
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
        plan = random_plan(n, K, core.random_blocks, core.seed)
        blocks[head, i, plan[head // (N // K), i - 1]] = 1
  counts = blocks.repeat(core.block, axis=1).repeat(core.block, axis=2)[:, :T, :T]
  return counts * valid[None, None, :]


@pytest.mark.parametrize("plan", ["random", "first"])
@pytest.mark.parametrize("random_blocks, T, kv_heads", [(0, 28, 1), (1, 32, 2), (2, 39, 4)])
def test_bigbird_equals_dense_attention_under_its_block_matrix(plan, random_blocks, T, kv_heads):
  core = BigBird(block=4, random_blocks=random_blocks, seed=3, plan=plan)
  q, k, v = cases.qkv(T=T, K=kv_heads)
  valid = np.arange(T)[None] < np.array([[T], [T - 6]])
  mask = Mask(positions(T), positions(T), k_valid=jnp.asarray(valid))
  out = jax.jit(lambda q, k, v: core(q, k, v, mask, scale=0.4))(q, k, v)
  for row in range(2):
    counts = bigbird_counts(core, T, valid[row], 4, kv_heads)
    expected = attention(*(np.asarray(x[row]) for x in (q, k, v)), counts, 0.4)
    np.testing.assert_allclose(out[row], expected * valid[row][:, None, None], rtol=1e-4, atol=1e-5)


def test_bigbird_random_plan():
  plan = random_plan(20, 3, 4, seed=0)
  for head, row in np.ndindex(3, 18):
    seen = set(plan[head, row].tolist())
    assert len(seen) == 4 and not seen & {0, 19, row, row + 1, row + 2}
  assert (plan[0] != plan[1]).any() and (plan != random_plan(20, 3, 4, seed=1)).any()
  assert (plan == random_plan(20, 3, 4, seed=0)).all()


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
def test_linformer(share, S):
  spec = {"name": "linformer", "k": 5, "length": 20, "share": share}
  core = moved(cores.make(spec, cases.rngs(), **SIZES, causal=False))
  assert params.count(core) == {"none": 2 * 2, "headwise": 2, "kv": 1}[share] * 5 * 20
  q, k, v = cases.qkv(T=S)
  valid = np.arange(S)[None] < np.array([[S], [S - 6]])
  out = core(q, k, v, Mask(positions(S), positions(S), k_valid=jnp.asarray(valid)), scale=0.4)
  q, k, v = (np.asarray(x) for x in (q, k, v))
  E = np.asarray(core.keys[...])
  F = E if share == "kv" else np.asarray(core.values[...])
  for row in range(2):
    short_k, short_v = np.zeros((5, 2, 8)), np.zeros((5, 2, 8))
    for slot in range(5):
      for head in range(2):
        for s in range(S):
          if valid[row, s]:
            short_k[slot, head] += (E[head] if share == "none" else E)[slot, s] * k[row, s, head]
            short_v[slot, head] += (F[head] if share == "none" else F)[slot, s] * v[row, s, head]
    expected = attention(np.asarray(q[row]), short_k, short_v, np.ones((4, S, 5)), 0.4)
    np.testing.assert_allclose(out[row], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("share", ["none", "kv"])
@pytest.mark.parametrize("length", [5, 15])
def test_linformer_that_starts_by_pooling(share, length):
  core = cores.make(
    {"name": "linformer", "k": 5, "length": length, "share": share, "start": "pooling"},
    cases.rngs(),
    **SIZES,
    causal=False,
  )
  q, k, v = (np.asarray(x) for x in cases.qkv(T=length))
  out = core(q, k, v, Mask(positions(length), positions(length)), scale=0.4)
  for row in range(2):
    pooled = lambda x: x[row].reshape(5, -1, 2, 8).sum(1) / (length // 5) ** 0.5  # noqa: B023, E731
    expected = attention(q[row], pooled(k), pooled(v), np.ones((4, length, 5)), 0.4)
    np.testing.assert_allclose(out[row], expected, rtol=1e-4, atol=1e-5)


# Memory-compressed


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("S, stride", [(12, 3), (14, 3), (9, 2)])
def test_memory_compressed(causal, S, stride):
  spec = {"name": "memory_compressed", "stride": stride}
  core = moved(cores.make(spec, cases.rngs(), **SIZES, causal=causal))
  q, k, v = cases.qkv(T=S)
  valid = np.arange(S)[None] < np.array([[S], [S - 4]])
  mask = Mask(positions(S), positions(S), k_valid=jnp.asarray(valid), causal=causal)
  out = jax.jit(lambda q, k, v: core(q, k, v, mask, scale=0.4))(q, k, v)
  q, k, v = (np.asarray(x) for x in (q, k, v))
  n = -(-S // stride)
  for row in range(2):
    short = {}
    for name, x, kernel in (("k", k, np.asarray(core.keys[...])), ("v", v, np.asarray(core.values[...]))):
      short[name] = np.zeros((n, 2, 8))
      for s in range(S):
        if valid[row, s]:
          for head in range(2):
            short[name][s // stride, head] += x[row, s, head] @ kernel[head, s % stride]
    counts = np.zeros((4, S, n))
    for t in range(S):
      for block in range(n):
        under = range(block * stride, (block + 1) * stride)
        tokens = [s < S and valid[row, s] for s in under]
        counts[:, t, block] = all(tokens) and max(under) <= t if causal else any(tokens)
    if causal:
      short = {
        "k": np.concatenate([np.asarray(core.null_key[...])[None], short["k"]]),
        "v": np.concatenate([np.asarray(core.null_value[...])[None], short["v"]]),
      }
      counts = np.concatenate([np.ones((4, S, 1)), counts], axis=2)
    expected = attention(np.asarray(q[row]), short["k"], short["v"], counts, 0.4)
    np.testing.assert_allclose(out[row], expected, rtol=1e-4, atol=1e-5)


def test_memory_compressed_is_causal():
  core = moved(MemoryCompressed(2, 8, cases.rngs(), causal=True))
  q, k, v = cases.qkv(B=1, T=12)
  mask = Mask(positions(12), positions(12), causal=True)
  run = jax.jit(jax.grad(lambda k, v, t: core(q, k, v, mask, scale=0.4)[0, t].sum(), argnums=(0, 1)))
  for t in (0, 1, 2, 7, 11):
    for gradient in run(k, v, t):
      reached = np.abs(np.asarray(gradient[0])).sum((1, 2)) > 0
      assert reached.tolist() == [s < (t + 1) // 3 * 3 for s in range(12)]


@pytest.mark.parametrize("core", ["linformer", "bigbird"])
def test_dropout_keeps_the_expectation(core):
  core = Linformer(2, cases.rngs(), k=5, length=40) if core == "linformer" else BigBird(block=4, random_blocks=1)
  q, k, v = cases.qkv(T=40)
  mask = Mask(positions(40), positions(40))

  def attend(key):
    return core(q, k, v, mask, scale=0.4, dropout_rate=0.2, key=key)

  out = jax.jit(jax.vmap(attend))(jax.random.split(jax.random.key(0), 256))
  error = jnp.abs(out.mean(0) - jax.jit(lambda: attend(None))())
  assert float(error.max()) < 6 * float(out.std(0).max()) / 16 and float(out.std(0).max()) > 0.01


# Cost


def flops(spec, T, causal=False):
  """Of the forward and the backward pass, as the compiler counts them."""
  sizes = dict(heads=2, kv_heads=2, head_dim=16, causal=causal)
  core = cores.make(spec, cases.rngs(), **sizes)
  mask = Mask(positions(T), positions(T), causal=causal)
  shapes = [jax.ShapeDtypeStruct((1, T, 2, 16), jnp.float32)] * 3

  def run(core, q, k, v):
    return jnp.sum(core(q, k, v, mask, scale=0.25) ** 2)

  return jax.jit(jax.grad(run, argnums=(0, 1, 2, 3))).lower(core, *shapes).compile().cost_analysis()["flops"]


@pytest.mark.parametrize(
  "spec, causal",
  [
    ({"name": "local", "window": 16}, False),
    ({"name": "local", "window": 16}, True),
    ({"name": "bigbird", "block": 8, "random_blocks": 1}, False),
    ({"name": "bigbird", "block": 8, "random_blocks": 1, "plan": "first"}, False),
  ],
)
def test_flops_grow_linearly_with_the_length(spec, causal):
  assert 3.7 < flops(spec, 1024, causal) / flops(spec, 256, causal) < 4.3


def test_linformer_flops_grow_linearly_with_the_length():
  ratio = [flops({"name": "linformer", "k": 32, "length": T}, T) for T in (1024, 256)]
  assert 3.7 < ratio[0] / ratio[1] < 4.3


@pytest.mark.parametrize("stride", [3, 6])
def test_memory_compressed_takes_a_part_of_the_flops_of_dense(stride):
  compressed, dense = ({"name": "memory_compressed", "stride": stride}, "dense")
  assert flops(compressed, 3072, True) < 1.25 / stride * flops(dense, 3072, True)


# Refusals

M = {kind: cases.mask(kind) for kind in ("full", "causal", "prefix", "packed", "full_w5")}
BIDIRECTIONAL = ("linformer", "bigbird")


@pytest.mark.parametrize("name", ["linformer", "bigbird", "memory_compressed"])
@pytest.mark.parametrize(
  "what, words",
  [
    ("causal", "causal attention"),
    ("full_w5", "a sliding window"),
    ("packed", "packed sequences (segment ids)"),
    ("prefix", "a bidirectional prefix"),
    ("bias", "a position bias on the logits"),
    ("layer_bias", "a position bias on the logits"),
    ("shaw", "positions that depend on the query (Shaw)"),
    ("decoding", "decoding from a cache"),
  ],
)
def test_refusals_of_the_approximate_cores(name, what, words):
  causal = name == "memory_compressed" and what == "prefix"
  core = cores.make(name, cases.rngs(), **SIZES, causal=causal)
  if what == "prefix" and name in BIDIRECTIONAL:
    words = "causal attention"  # a prefix comes with causality, which is refused first
  bias = Alibi(4) if what == "bias" else None
  position = {"layer_bias": Alibi(4), "shaw": ShawPosition(8, cases.rngs())}.get(what)
  with pytest.raises(UserError) as error:
    core.decoding() if what == "decoding" else core(*cases.qkv(), M.get(what, M["full"]), bias, position, scale=0.4)
  assert f"attention core {name!r} cannot do {words}" in str(error.value) and "core='dense'" in str(error.value)
  assert "\n" not in str(error.value)


def test_refusals_of_the_exact_cores():
  shaw = ShawPosition(8, cases.rngs())
  for name in ("chunked", "local"):
    with pytest.raises(UserError, match=f"core '{name}' cannot do positions that depend on the query"):
      cores.make(name, cases.rngs(), **SIZES, causal=False)(*cases.qkv(), M["full_w5"], None, shaw, scale=0.4)
  with pytest.raises(UserError, match="core 'local' cannot do attention without a window.*design.windows"):
    cores.make("local", cases.rngs(), **SIZES, causal=False)(*cases.qkv(), M["full"], scale=0.4)


@pytest.mark.parametrize("name", ["local", "bigbird"])
def test_refusal_of_other_lengths_of_keys(name):
  core = cores.make({"name": "local", "window": 3} if name == "local" else name, cases.rngs(), **SIZES, causal=False)
  with pytest.raises(UserError, match=f"core '{name}' cannot do attention from 37 queries to 20 keys"):
    core(*cases.qkv(S=20), Mask(positions(37), positions(20)), scale=0.4)


def test_refusals_of_lengths():
  core = BigBird(block=4, random_blocks=2)
  for T in (1, 36):
    with pytest.raises(UserError, match=f"core 'bigbird': found a length of {T}, expected at least 37"):
      core(*cases.qkv(T=T), Mask(positions(T), positions(T)), scale=0.4)
  jax.eval_shape(lambda: core(*cases.qkv(T=37), M["full"], scale=0.4))
  with pytest.raises(UserError, match="core 'linformer': found 37 keys, expected at most 36"):
    Linformer(2, cases.rngs(), k=4, length=36)(*cases.qkv(), M["full"], scale=0.4)


def test_memory_compressed_refuses_the_other_kind_of_stack():
  core = MemoryCompressed(2, 8, cases.rngs(), causal=True)
  with pytest.raises(UserError, match="cannot do bidirectional attention when it was made for a causal stack"):
    core(*cases.qkv(), M["full"], scale=0.4)


@pytest.mark.parametrize(
  "spec, words",
  [
    ({"name": "chunked", "key_chunk": 0}, "core 'chunked': key_chunk: found 0, expected a whole number above 0"),
    ({"name": "local", "window": 2.5}, "core 'local': window: found 2.5"),
    ({"name": "bigbird", "plan": "none"}, "core 'bigbird': plan: found 'none', expected one of random, first"),
    ({"name": "bigbird", "random_blocks": -1}, "core 'bigbird': random_blocks: found -1"),
    ({"name": "linformer", "share": "layerwise"}, "core 'linformer': share: found 'layerwise', expected one of none"),
    ({"name": "linformer", "start": "mean"}, "core 'linformer': start: found 'mean', expected one of random, pooling"),
    ({"name": "memory_compressed", "stride": True}, "core 'memory_compressed': stride: found True"),
    ({"name": "memory_compressed", "kernel": 3}, "core 'memory_compressed': .*unexpected keyword argument 'kernel'"),
    ("bigbrid", "did you mean 'bigbird'"),
  ],
)
def test_bad_options(spec, words):
  with pytest.raises(UserError, match=words):
    cores.make(spec, cases.rngs(), **SIZES, causal=False)


# Whole models

T = 30
DIMS = Dims(embed=16, heads=4, kv_heads=2, head_dim=4, mlp=32, layers=2)
SPECS = {
  "chunked": {"name": "chunked", "query_chunk": 8, "key_chunk": 8},
  "local": {"name": "local", "window": 6},
  "bigbird": {"name": "bigbird", "block": 4, "random_blocks": 1},
  "linformer": {"name": "linformer", "k": 6, "length": T},
  "memory_compressed": {"name": "memory_compressed", "stride": 3},
}


def model(kind, core, position="rope", **options):
  variant = Variant(DIMS, Design(norm="rmsnorm", position=position), 32)
  return jax.jit(lambda key: kind(nnx.Rngs(params=key), variant=variant, design={"core": core}, **options))(
    jax.random.key(0)
  )


def batch(side):
  tokens = np.random.default_rng(0).integers(2, 32, (2, T)).astype(np.int32)
  tokens[1, 25:] = 0
  return {f"{side}_input_tokens": jnp.asarray(tokens)}


MODELS = [(Encoder, name, "rope") for name in ("bigbird", "linformer", "memory_compressed")]
MODELS += [(Decoder, "memory_compressed", "rope"), (Decoder, "chunked", "relative_bias")]
MODELS += [(Decoder, "local", "relative_bias")]


@pytest.mark.parametrize("kind, name, position", MODELS)
def test_models_scan_equals_loop(kind, name, position):
  """Outputs, and all gradients of cores with parameters or a backward pass of their own, rematerialised in the scan;
  the dense core agrees where the core is exact."""
  features = batch("encoder" if kind is Encoder else "decoder")
  valid = next(iter(features.values()))[..., None] != 0

  def run(core, **options):
    made = model(kind, core, position, **options)
    if name in ("local", "bigbird"):
      return jax.jit(lambda m: jnp.where(valid, m(features)["logits"], 0))(made), {"none": jnp.ones(())}
    loss = jax.jit(jax.value_and_grad(lambda m: jnp.sum(jnp.where(valid, m(features)["logits"], 0) ** 2)))
    value, gradients = loss(made)
    return value, params.arrays(gradients)

  scan, loop = run(SPECS[name], remat="full"), run(SPECS[name], layers="loop")
  exact = run("dense") if name == "chunked" else scan
  scale = max(float(jnp.abs(g).max()) for g in scan[1].values())
  for a, b, c in zip(jax.tree.leaves(scan), jax.tree.leaves(loop), jax.tree.leaves(exact), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5 * scale)
    np.testing.assert_allclose(a, c, rtol=1e-3, atol=1e-5 * scale)


@pytest.mark.parametrize("name", ["chunked", "local"])
@pytest.mark.parametrize("position", ["rope", "relative_bias"])
def test_decoding_equals_the_forward_pass(name, position):
  made, features = model(Decoder, SPECS[name], position), batch("decoder")
  tokens = features["decoder_input_tokens"]
  expected = jax.jit(lambda b: made(b)["logits"])(features)
  state = made.start_decoding(features, T)
  decode = jax.jit(lambda tokens, state: made.decode(tokens, state, tokens != 0))
  first, state = decode(tokens[:, :20], state)
  steps = [first]
  for t in range(20, 25):
    logits, state = decode(tokens[:, t : t + 1], state)
    steps.append(logits)
  np.testing.assert_allclose(jnp.concatenate(steps, axis=1), expected[:, :25], rtol=1e-4, atol=1e-5)


def test_models_refuse_what_their_core_refuses():
  for core in BIDIRECTIONAL:
    with pytest.raises(UserError, match=f"core '{core}' cannot do causal attention"):
      jax.eval_shape(model(Decoder, SPECS[core]), batch("decoder"))
  with pytest.raises(UserError, match="core 'linformer' cannot do causal attention"):
    jax.eval_shape(model(EncoderDecoder, SPECS["linformer"]), batch("encoder") | batch("decoder"))
  made = model(Decoder, SPECS["memory_compressed"])
  state = made.start_decoding(batch("decoder"), T)
  with pytest.raises(UserError, match="core 'memory_compressed' cannot do decoding from a cache"):
    jax.eval_shape(made.decode, batch("decoder")["decoder_input_tokens"], state)
  with pytest.raises(UserError, match="core 'bigbird' cannot do a position bias on the logits"):
    jax.eval_shape(model(Encoder, SPECS["bigbird"], "alibi"), batch("encoder"))
