"""XLM's masked language model head."""

import jax
from flax import nnx

from t5x_like.architectures.design import Variant
from t5x_like.architectures.heads.lm import LmHead, hidden_scale
from t5x_like.architectures.heads.mlm import gather_tokens
from t5x_like.nn.embed import Embed


class LinearMlmHead(nnx.Module):
  """`x` times the token table, plus a bias (Lample and Conneau 2019), without BERT's layer before
  it."""

  def __init__(self, rngs: nnx.Rngs, variant: Variant):
    self.lm = LmHead(
      rngs,
      bias=variant.vocab_size,
      scale=hidden_scale(variant.design, variant.embed or variant.dims.embed),
    )

  def __call__(
    self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None, positions_BK=None, **_
  ) -> dict:
    """Return {"logits": VocabularyLogits [B, T, V]}, or [B, K, V] at the given places."""
    return self.lm(x_BTD if positions_BK is None else gather_tokens(x_BTD, positions_BK), embed)


make = LinearMlmHead
