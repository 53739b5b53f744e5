"""The encoder-decoder: a decoder that also attends to an encoder's output."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.architecture import Architecture, Batch, has_aligned_positions
from t5x_like.architectures.build import StackBuilder, deepnorm_weights
from t5x_like.architectures.heads import lm
from t5x_like.nn.decode import DecodeState
from t5x_like.nn.dims import subkey
from t5x_like.nn.layer import CacheStart, Context
from t5x_like.nn.mask import Mask, positions


class EncoderDecoder(Architecture):
  """A bidirectional stack, a causal one with cross-attention, and a language model head."""

  REQUIRED_FEATURES = ("encoder_input_tokens", "decoder_input_tokens")

  def build(self, rngs: nnx.Rngs, **options) -> None:
    """Build both stacks with their inputs, and the head.

    With `variant.shared`, the encoder is the decoder without cross-attention.
    """
    variant = self.variant
    dims = self.variant.dims
    design = self.variant.design
    decoder_dims = variant.decoder_dims
    deepnorm = deepnorm_weights(dims.layers, decoder_dims.layers)
    encoder = StackBuilder(design, dims, causal=False, deepnorm=deepnorm["encoder"], **options)
    decoder = StackBuilder(
      design, decoder_dims, causal=True, cross=True, deepnorm=deepnorm["decoder"], **options
    )
    self.encoder_inputs = encoder.inputs(rngs)
    self.encoder = None if variant.shared else encoder.stack(rngs)
    self.decoder_inputs = decoder.inputs(rngs)
    self.decoder = decoder.stack(rngs)
    self.head = lm.make(rngs, variant)

  def outputs(self, batch: Batch, key: jax.Array | None = None) -> dict:
    """Compute teacher-forced logits.

    Args:
      batch: `encoder_input_tokens` [B, S] and `decoder_input_tokens` [B, T] int32; packed batches
        add `{encoder,decoder}_segment_ids` and `{encoder,decoder}_positions`.
    Returns:
      {"logits": `VocabularyLogits` [B, T, V]} and auxiliary scalars.
    """
    memory_BSD, k_pos, k_segments, k_valid, aux = self.encode(batch, subkey(key, 0))
    tokens_BT = batch["decoder_input_tokens"]
    q_pos = batch.get("decoder_positions", positions(tokens_BT.shape[1]))
    q_segments = batch.get("decoder_segment_ids")
    valid = None
    if q_segments is None:
      valid = _find_valid(tokens_BT, self.variant.tokens.pad)
    mask = Mask(
      q_pos,
      q_pos,
      q_segments,
      q_segments,
      causal=True,
      aligned=has_aligned_positions(batch, "decoder"),
    )
    if q_segments is None or k_segments is None:
      memory_mask = Mask(q_pos, k_pos, k_valid=k_valid)
    else:
      memory_mask = Mask(q_pos, k_pos, q_segments, k_segments, k_valid)
    context = Context(mask=mask, memory=memory_BSD, memory_mask=memory_mask, valid=valid)
    x_BTD = self.embed(tokens_BT, self.dtype)
    x_BTD = self.decoder_inputs(x_BTD, q_pos, key=subkey(key, 1))
    x_BTD, decoder_aux, _ = self.decoder(x_BTD, context, key=subkey(key, 2))
    total_aux = {}
    for name, value in decoder_aux.items():
      total_aux[name] = aux.get(name, 0.0) + value
    return self.head(x_BTD, self.embed) | total_aux

  def encode(self, batch: Batch, key: jax.Array | None = None):
    """Run the encoder.

    Returns:
      (memory [B, S, D], key positions, segments or None, validity bool [B, S] or None, auxiliary
      scalars)
    """
    tokens_BS, pos, segments, valid = self._features(batch, "encoder")
    aligned = has_aligned_positions(batch, "encoder")
    mask = Mask(pos, pos, segments, segments, valid, aligned=aligned)
    encoder = self.encoder
    if encoder is None:
      encoder = self.decoder.without("cross_attention")
    x_BSD = self.embed(tokens_BS, self.dtype)
    x_BSD = self.encoder_inputs(x_BSD, pos, key=subkey(key, 0))
    x_BSD, aux, _ = encoder(x_BSD, Context(mask=mask), key=subkey(key, 1))
    return x_BSD, pos, segments, valid, aux

  def prompt(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Return (tokens, validity) of the prompt: the start token, then `decoder_prefix_tokens`."""
    B = batch["encoder_input_tokens"].shape[0]
    start_B1 = jnp.full((B, 1), self.variant.tokens.start, jnp.int32)
    if "decoder_prefix_tokens" not in batch:
      valid_B1 = jnp.ones((B, 1), bool)
      return start_B1, valid_B1
    prefix_BP = batch["decoder_prefix_tokens"]
    tokens_BT = jnp.concatenate([start_B1, prefix_BP], axis=1)
    pad = self.variant.tokens.pad
    if pad is None:
      valid_BP = jnp.ones(prefix_BP.shape, bool)
    else:
      valid_BP = prefix_BP != pad
    valid_BT = jnp.concatenate([jnp.ones((B, 1), bool), valid_BP], axis=1)
    return tokens_BT, valid_BT

  def start_decoding(self, batch: Batch, slots: int) -> DecodeState:
    """Encode `encoder_input_tokens` and make an empty cache for `slots` tokens."""
    memory_BSD, k_pos, _, k_valid, _ = self.encode(batch)
    B = memory_BSD.shape[0]
    start = CacheStart(B, slots, self.dtype, memory_BSD, Mask(k_pos, k_pos))
    cache = self.decoder.start_cache(start)
    return DecodeState.empty(cache, B, slots, memory_pos=k_pos, memory_valid=k_valid)

  def decode(self, tokens_BT: jax.Array, state, valid_BT=None, prefix_BT=None):
    """Compute the logits of the next tokens, and add them to the cache.

    Args:
      tokens_BT: the next tokens.
      state: the `DecodeState` after the tokens before.
      valid_BT, prefix_BT: see `DecodeState.advance`.
    Returns:
      (logits [B, T, V], state)
    """
    q_pos, state = state.advance(tokens_BT, valid_BT, prefix_BT)
    memory_mask = Mask(q_pos, state.memory_pos, k_valid=state.memory_valid)
    mask = state.mask(q_pos)
    slot = state.slot - tokens_BT.shape[1]
    context = Context(mask, memory_mask=memory_mask, slot=slot)
    x_BTD = self.embed(tokens_BT, self.dtype)
    x_BTD = self.decoder_inputs(x_BTD, q_pos)
    x_BTD, _, cache = self.decoder(x_BTD, context, cache=state.cache)
    logits_BTV = self.head(x_BTD, self.embed)["logits"].dense()
    return logits_BTV, dataclasses.replace(state, cache=cache)


def _find_valid(tokens_BT: jax.Array, pad: int | None) -> jax.Array | None:
  """Return bool [B, T], False for padding; None without a padding id.

  The first token always counts, because T5's start token is the padding id.
  """
  if pad is None:
    return None
  is_first_1T = jnp.arange(tokens_BT.shape[1])[None] == 0
  return (tokens_BT != pad) | is_first_1T
