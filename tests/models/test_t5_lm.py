"""T5's decoder-only models attend in both directions in a prefix, and causally after it."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

import tiny
from t5x_like.architectures.encoder import Encoder
from t5x_like.models import t5, t5_lm
from t5x_like.nn import params
from t5x_like.nn.dims import Dims

DIMS = Dims(embed=16, heads=4, kv_heads=4, head_dim=4, mlp=32, layers=2)
T = 24  # longer than the exact buckets of relative positions


def model(name: str):
  variant = dataclasses.replace(t5_lm.VARIANTS[name], dims=DIMS, vocab_size=tiny.VOCAB)
  return t5_lm.Model(nnx.Rngs(params=0), variant=variant)


def batch(prefix: int) -> dict[str, np.ndarray]:
  tokens = np.random.default_rng(0).integers(3, tiny.VOCAB, (2, T)).astype(np.int32)
  marks = np.broadcast_to(np.arange(T) < prefix, (2, T)).astype(np.int32)
  return {"decoder_input_tokens": tokens, "decoder_causal_attention": marks}


def logits(m, batch):
  return np.asarray(jax.jit(lambda m, batch: m(batch)["logits"])(m, batch))


def test_prefix_lm_on_a_full_prefix_equals_t5s_encoder():
  m = model("prefix-tiny")
  arrays = {n.replace("decoder/", "encoder/"): x for n, x in params.arrays(m).items()}
  variant = dataclasses.replace(m.variant, design=t5.V1_0, head="none")
  encoder = params.with_arrays(
    jax.eval_shape(lambda: Encoder(nnx.Rngs(params=0), variant=variant)), arrays
  )
  inputs = batch(T)
  x_BTD = jax.jit(lambda m, tokens_BT: m.encode({"encoder_input_tokens": tokens_BT})[0])(
    encoder, inputs["decoder_input_tokens"]
  )
  np.testing.assert_allclose(logits(m, inputs), m.head(x_BTD, m.embed)["logits"].dense(), atol=1e-5)


@pytest.mark.parametrize("name, used", [("tiny", False), ("prefix-tiny", True)])
def test_only_the_prefix_lm_distinguishes_keys_after_the_query(name, used):
  m = model(name)
  bias_NTS = np.asarray(m.decoder.position.bias(np.arange(T)[None], np.arange(T)[None]))[0]
  bias_of_later_keys = bias_NTS[:, ~np.tri(T, dtype=bool)]
  assert (len(np.unique(bias_of_later_keys[0])) > 1) == used


@pytest.mark.parametrize("name", ["tiny", "prefix-tiny"])
def test_attention_is_bidirectional_only_in_the_prefix(name):
  m = model(name)
  inputs = batch(10)
  changed = {**inputs, "decoder_input_tokens": inputs["decoder_input_tokens"].copy()}
  changed["decoder_input_tokens"][:, 9] = 2
  differs = (logits(m, inputs) != logits(m, changed)).any(-1)
  assert differs.all()  # all outputs depend on the last token of the prefix
  changed["decoder_input_tokens"][:] = inputs["decoder_input_tokens"]
  changed["decoder_input_tokens"][:, 15] = 2
  differs = (logits(m, inputs) != logits(m, changed)).any(-1)
  assert not differs[:, :15].any()
  assert differs[:, 15:].all()
