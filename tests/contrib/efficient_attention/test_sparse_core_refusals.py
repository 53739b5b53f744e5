"""Sparse and compressed cores refuse masks, positions, lengths and options they cannot honour."""

import jax
import pytest

from t5x_like.contrib.efficient_attention.cores.bigbird import BigBird
from t5x_like.contrib.efficient_attention.cores.linformer import Linformer
from t5x_like.contrib.efficient_attention.cores.memory_compressed import MemoryCompressed
from t5x_like.errors import UserError
from t5x_like.nn.mask import Mask, positions
from t5x_like.nn.positions.alibi import Alibi
from t5x_like.nn.positions.shaw import ShawPosition
from tests.nn.cores import core_cases as cases

# `full_w5` is a mask with a window of 5.
MASKS = {kind: cases.mask(kind) for kind in ("full", "causal", "prefix", "packed", "full_w5")}
BIDIRECTIONAL = ("linformer", "bigbird")


@pytest.mark.parametrize("name", ["linformer", "bigbird", "memory_compressed"])
@pytest.mark.parametrize(
  "feature, message",
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
def test_sparse_cores_refuse_masks_and_options(name, feature, message):
  causal = name == "memory_compressed" and feature == "prefix"
  core = cases.make(name, causal=causal)
  if feature == "prefix" and name in BIDIRECTIONAL:
    message = "causal attention"  # a prefix comes with causality, which is refused first
  bias = Alibi(cases.DIMS) if feature == "bias" else None
  position = None
  if feature == "layer_bias":
    position = Alibi(cases.DIMS)
  elif feature == "shaw":
    position = ShawPosition(cases.rngs(), cases.DIMS)
  with pytest.raises(UserError) as error:
    if feature == "decoding":
      core.for_decoding()
    else:
      core(*cases.qkv(), MASKS.get(feature, MASKS["full"]), bias, position, scale=0.4)
  assert f"attention core {name!r} does not support {message}" in str(error.value)
  assert "core='dense'" in str(error.value)
  assert "\n" not in str(error.value)


def test_bigbird_refuses_another_length_of_keys():
  with pytest.raises(
    UserError, match="core 'bigbird' does not support attention from 37 queries to 20 keys"
  ):
    cases.make("bigbird")(*cases.qkv(S=20), Mask(positions(37), positions(20)), scale=0.4)


def test_bad_lengths_are_refused():
  core = BigBird(block=4, random_blocks=2)
  for T in (1, 36):
    with pytest.raises(
      UserError, match=f"core 'bigbird': found a length of {T}, expected at least 37"
    ):
      core(*cases.qkv(T=T), Mask(positions(T), positions(T)), scale=0.4)
  jax.eval_shape(lambda: core(*cases.qkv(T=37), MASKS["full"], scale=0.4))
  with pytest.raises(UserError, match="core 'linformer': found 37 keys, expected at most 36"):
    Linformer(cases.rngs(), cases.DIMS, k=4, length=36)(*cases.qkv(), MASKS["full"], scale=0.4)


def test_memory_compressed_attention_refuses_the_other_kind_of_stack():
  core = MemoryCompressed(cases.rngs(), cases.DIMS, causal=True)
  with pytest.raises(
    UserError, match="does not support bidirectional attention in a core made for a causal stack"
  ):
    core(*cases.qkv(), MASKS["full"], scale=0.4)


@pytest.mark.parametrize(
  "spec, message",
  [
    (
      {"name": "bigbird", "plan": "none"},
      "core.plan: found 'none' .*, expected 'random' or 'first'",
    ),
    (
      {"name": "bigbird", "random_blocks": -1},
      "core.random_blocks: found -1 .*, expected a whole number, at least 0",
    ),
    (
      {"name": "linformer", "share": "layers"},
      "core.share: found 'layers' .*, expected 'none' or 'headwise'",
    ),
    (
      {"name": "linformer", "start": "mean"},
      "core.start: found 'mean' .*, expected 'random' or 'pooling'",
    ),
    (
      {"name": "memory_compressed", "stride": True},
      "core.stride: found True .*, expected a whole number above 0",
    ),
    ({"name": "memory_compressed", "kernel": 3}, "core.kernel: unknown key; it takes stride"),
  ],
)
def test_bad_options_of_sparse_cores_are_refused(spec, message):
  with pytest.raises(UserError, match=message) as error:
    cases.make(spec)
  assert "\n" not in str(error.value)
