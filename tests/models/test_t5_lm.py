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


def make_model(name: str):
  variant = dataclasses.replace(t5_lm.VARIANTS[name], dims=DIMS, vocab_size=tiny.VOCAB)
  return t5_lm.Model(nnx.Rngs(params=0), variant=variant)


def make_batch(prefix: int) -> dict[str, np.ndarray]:
  """Return a batch of two rows that begin with a prefix of so many tokens."""
  tokens_BT = np.random.default_rng(0).integers(3, tiny.VOCAB, (2, T)).astype(np.int32)
  in_prefix_BT = np.broadcast_to(np.arange(T) < prefix, (2, T)).astype(np.int32)
  return {"decoder_input_tokens": tokens_BT, "decoder_causal_attention": in_prefix_BT}


def compute_logits(model, batch):
  return np.asarray(jax.jit(lambda model, batch: model(batch)["logits"])(model, batch))


def test_prefix_lm_on_a_full_prefix_equals_t5s_encoder():
  model = make_model("prefix-tiny")
  arrays = {n.replace("decoder/", "encoder/"): x for n, x in params.arrays(model).items()}
  variant = dataclasses.replace(model.variant, design=t5.V1_0, head="none")
  encoder = params.with_arrays(
    jax.eval_shape(lambda: Encoder(nnx.Rngs(params=0), variant=variant)), arrays
  )
  batch = make_batch(T)
  x_BTD = jax.jit(
    lambda encoder, tokens_BT: encoder.encode({"encoder_input_tokens": tokens_BT})[0]
  )(encoder, batch["decoder_input_tokens"])
  expected = model.head(x_BTD, model.embed)["logits"].dense()
  np.testing.assert_allclose(compute_logits(model, batch), expected, atol=1e-5)


@pytest.mark.parametrize("name, is_distinguished", [("tiny", False), ("prefix-tiny", True)])
def test_only_the_prefix_lm_distinguishes_keys_after_the_query(name, is_distinguished):
  model = make_model(name)
  bias_NTS = np.asarray(model.decoder.position.bias(np.arange(T)[None], np.arange(T)[None]))[0]
  bias_of_later_keys = bias_NTS[:, ~np.tri(T, dtype=bool)]
  assert (len(np.unique(bias_of_later_keys[0])) > 1) == is_distinguished


@pytest.mark.parametrize("name", ["tiny", "prefix-tiny"])
def test_attention_is_bidirectional_only_in_the_prefix(name):
  model = make_model(name)
  batch = make_batch(prefix=10)
  changed = {**batch, "decoder_input_tokens": batch["decoder_input_tokens"].copy()}
  changed["decoder_input_tokens"][:, 9] = 2
  differs_BT = (compute_logits(model, batch) != compute_logits(model, changed)).any(-1)
  assert differs_BT.all()  # all outputs depend on the last token of the prefix
  changed["decoder_input_tokens"][:] = batch["decoder_input_tokens"]
  changed["decoder_input_tokens"][:, 15] = 2
  differs_BT = (compute_logits(model, batch) != compute_logits(model, changed)).any(-1)
  assert not differs_BT[:, :15].any()
  assert differs_BT[:, 15:].all()
