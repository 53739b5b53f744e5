"""What the cores refuse: masks, positions, lengths and options they cannot honour."""

import core_cases as cases
import jax
import pytest

from t5x_like.errors import UserError
from t5x_like.nn import cores
from t5x_like.nn.cores.bigbird import BigBird
from t5x_like.nn.cores.linformer import Linformer
from t5x_like.nn.cores.memory_compressed import MemoryCompressed
from t5x_like.nn.mask import Mask, positions
from t5x_like.nn.position import Alibi
from t5x_like.nn.relative_position import ShawPosition

SIZES = dict(heads=4, kv_heads=2, head_dim=8)

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
