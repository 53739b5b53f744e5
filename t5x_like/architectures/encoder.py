"""The encoder: every token sees every other."""

from typing import ClassVar

import jax
from flax import nnx

from t5x_like import slots
from t5x_like.architectures import heads
from t5x_like.architectures.architecture import Architecture, Batch, has_aligned_positions
from t5x_like.architectures.build import StackBuilder, deepnorm_weights, resolve_variant
from t5x_like.architectures.design import Variant
from t5x_like.nn.dims import subkey
from t5x_like.nn.hidden_states import LAST_STATE, read_states
from t5x_like.nn.layer import Context
from t5x_like.nn.mask import Mask

# batch features with positions of tokens, and the head's arguments for them
HEAD_POSITIONS = {
  "encoder_masked_positions": "positions_BK",
  "encoder_cls_positions": "first_positions_BP",
}


class Encoder(Architecture):
  """A bidirectional stack and a head.

  Args:
    head: one of `architectures.heads`, a name or {"name": …} with its arguments; None for the
      variant's.
    options: the arguments of `Architecture`.
  """

  REQUIRED_FEATURES = ("encoder_input_tokens",)
  STACK_BUILDER: ClassVar[type[StackBuilder]] = StackBuilder

  def __init__(
    self, rngs: nnx.Rngs, *, variant: str | Variant, head: str | dict | None = None, **options
  ):
    super().__init__(rngs, variant=resolve_variant(self.VARIANTS, variant, head=head), **options)

  def build(self, rngs: nnx.Rngs, **options) -> None:
    variant = self.variant
    dims = self.variant.dims
    deepnorm = deepnorm_weights(dims.layers, 0)["encoder"]
    parts = self.STACK_BUILDER(variant.design, dims, causal=False, deepnorm=deepnorm, **options)
    self.inputs = parts.inputs(rngs, width=variant.embed, types=variant.types)
    self.encoder = parts.stack(rngs)
    self.head = slots.make(
      "config.model.head",
      variant.head,
      heads,
      "make",
      rngs=rngs,
      variant=variant,
      dropout_rate=parts.dropout_rate,
    )

  def outputs(self, batch: Batch, key: jax.Array | None = None) -> dict:
    """Compute the head's outputs.

    Args:
      batch: `encoder_input_tokens` int32 [B, S]; optional `encoder_token_types`, and for packed
        batches `encoder_segment_ids` and `encoder_positions`; `encoder_masked_positions` int32 [B,
        K] where only some tokens are predicted, and `encoder_cls_positions` int32 [B, P] where
        several pairs of segments share a row.
    Returns:
      {"logits", …}. The MLM head returns `VocabularyLogits` [B, S, V], or [B, K, V] at masked
      positions; see `architectures.heads` for others.
    """
    x_BSD, valid, aux = self.encode(batch, subkey(key, 0))
    token_positions = {}
    for name, argument in HEAD_POSITIONS.items():
      if name in batch:
        token_positions[argument] = batch[name]
    return self.head(x_BSD, self.embed, valid, subkey(key, 1), **token_positions) | aux

  def encode(self, batch: Batch, key: jax.Array | None = None):
    """Run the stack.

    Returns:
      (hidden states [B, S, D], or the states that the head reads side by side; validity bool [B, S]
      or None; auxiliary scalars)
    """
    tokens_BS, pos, segments, valid = self._features(batch, "encoder")
    context = Context(
      mask=Mask(
        pos, pos, segments, segments, valid, aligned=has_aligned_positions(batch, "encoder")
      )
    )
    x_BSD = self.inputs(
      self.embed(tokens_BS, self.dtype), pos, batch.get("encoder_token_types"), subkey(key, 0)
    )
    x_BSD, aux = read_states(
      self.encoder, x_BSD, context, subkey(key, 1), getattr(self.head, "states", LAST_STATE)
    )
    return x_BSD, valid, aux
