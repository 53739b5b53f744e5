"""XLM's masked language model head."""

import jax
from flax import nnx

from t5x_like.architectures.design import Variant
from t5x_like.architectures.heads.lm import LmHead, hidden_scale
from t5x_like.architectures.heads.mlm import gather_tokens
from t5x_like.nn.embed import Embed


class LinearMlmHead(nnx.Module):
  """The token table as output layer, with a bias, but without BERT's layer before it.

  It follows Lample and Conneau 2019.
  """

  def __init__(self, rngs: nnx.Rngs, variant: Variant):
    scale = hidden_scale(variant.design, variant.embed or variant.dims.embed)
    self.lm = LmHead(rngs, bias=variant.vocab_size, scale=scale)

  def __call__(
    self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None, positions_BK=None, **_
  ) -> dict:
    """Return {"logits": VocabularyLogits [B, T, V]}, or [B, K, V] at the given positions."""
    if positions_BK is not None:
      x_BTD = gather_tokens(x_BTD, positions_BK)
    return self.lm(x_BTD, embed)


make = LinearMlmHead
