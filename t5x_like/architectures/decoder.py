"""The decoder: every token sees its predecessors; a prefix marked in the batch is bidirectional."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.architecture import Architecture, Batch, has_aligned_positions
from t5x_like.architectures.build import StackBuilder, deepnorm_weights
from t5x_like.architectures.design import Variant
from t5x_like.architectures.heads import lm
from t5x_like.architectures.heads._scores import Scores
from t5x_like.nn.block import add_aux
from t5x_like.nn.decode import DecodeState
from t5x_like.nn.dims import subkey
from t5x_like.nn.layer import CacheStart, Context
from t5x_like.nn.mask import Mask
from t5x_like.slots import NonNegativeInt


class Decoder(Architecture):
  """A causal stack and a language model head.

  Args:
    scores: number of scores that a linear layer computes from each row's last token, for tasks on
      whole texts; 0 for none.
    options: the arguments of `Architecture`.
  """

  REQUIRED_FEATURES = ("decoder_input_tokens",)
  STACK_BUILDER: ClassVar[type[StackBuilder]] = StackBuilder

  def __init__(
    self, rngs: nnx.Rngs, *, variant: str | Variant, scores: NonNegativeInt = 0, **options
  ):
    self._score_count = scores
    super().__init__(rngs, variant=variant, **options)

  def build(self, rngs: nnx.Rngs, **options) -> None:
    """Build the inputs, the causal stack, the head and the scores."""
    variant = self.variant
    dims = self.variant.dims
    deepnorm = deepnorm_weights(0, dims.layers)["decoder"]
    parts = self.STACK_BUILDER(variant.design, dims, causal=True, deepnorm=deepnorm, **options)
    self.inputs = parts.inputs(rngs)
    self.decoder = parts.stack(rngs)
    self.head = lm.make(rngs, variant)
    scores = None
    if self._score_count:
      scores = Scores(rngs, variant, parts.dropout_rate, self._score_count)
    self.scores = scores

  def outputs(self, batch: Batch, key: jax.Array | None = None) -> dict:
    """Compute next-token logits at every position.

    Args:
      batch: `decoder_input_tokens` int32 [B, T]; optional `decoder_causal_attention` (1 where
        attention is bidirectional), and for packed batches `decoder_segment_ids` and
        `decoder_positions`.
    Returns:
      {"logits": `VocabularyLogits` [B, T, V]} and auxiliary scalars; with `scores`, {"scores":
      float32 [B, scores]}.
    """
    tokens_BT, pos, segments, valid = self._features(batch, "decoder")
    prefix = _prefix(batch, valid)
    # Padding comes last, where causality hides it from the tokens, or has a segment of its own.
    mask = Mask(
      pos,
      pos,
      segments,
      segments,
      None,
      prefix,
      causal=True,
      aligned=has_aligned_positions(batch, "decoder"),
    )
    x_BTD = self.embed(tokens_BT, self.dtype)
    x_BTD = self.inputs(x_BTD, pos, key=subkey(key, 0))
    context = Context(mask=mask, valid=valid)
    x_BTD, aux, _ = self.decoder(x_BTD, context, key=subkey(key, 1))
    ahead = self.predict_ahead(tokens_BT, x_BTD, context, subkey(key, 3))
    add_aux(aux, "ahead", ahead)
    scores = {}
    if self.scores is not None:
      scores = self.scores(x_BTD, valid, subkey(key, 2))
    return self.head(x_BTD, self.embed, valid) | scores | aux

  def predict_ahead(
    self, tokens_BT: jax.Array, x_BTD: jax.Array, context: Context, key: jax.Array | None
  ) -> dict:
    """Return further outputs in training, from the stack's output; see `multi_token`."""
    return {}

  def prompt(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Return the prompt of generation: (int32 [B, P] tokens, bool [B, P] False for padding)."""
    tokens_BP, _, _, valid_BP = self._features(batch, "decoder")
    if valid_BP is None:
      valid_BP = jnp.ones(tokens_BP.shape, bool)
    return tokens_BP, valid_BP

  def start_decoding(self, batch: Batch, slots: int) -> DecodeState:
    """Make an empty cache for `slots` tokens, including the prompt."""
    B = batch["decoder_input_tokens"].shape[0]
    cache = self.decoder.start_cache(CacheStart(B, slots, self.dtype))
    return DecodeState.empty(cache, B, slots, prefix="decoder_causal_attention" in batch)

  def decode(self, tokens_BT: jax.Array, state: DecodeState, valid_BT=None, prefix_BT=None):
    """Feed the next tokens through the cache, see `DecodeState.advance`.

    Returns:
      (logits [B, T, V], state)
    """
    q_pos, state = state.advance(tokens_BT, valid_BT, prefix_BT)
    context = Context(mask=state.mask(q_pos), slot=state.slot - tokens_BT.shape[1])
    x_BTD = self.embed(tokens_BT, self.dtype)
    x_BTD = self.inputs(x_BTD, q_pos)
    x_BTD, _, cache = self.decoder(x_BTD, context, cache=state.cache)
    logits_BTV = self.head(x_BTD, self.embed)["logits"].dense()
    return logits_BTV, dataclasses.replace(state, cache=cache)


def _prefix(batch: Batch, valid: jax.Array | None) -> jax.Array | None:
  """Return bool [B, T], True for tokens of a prefix that is read in both directions."""
  prefix = batch.get("decoder_causal_attention")
  if prefix is None:
    return None
  if valid is None:
    return prefix > 0
  return (prefix > 0) & valid
