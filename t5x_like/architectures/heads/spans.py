"""Extractive answers: the start and end of an answer (SQuAD)."""

import jax
from flax import nnx

from t5x_like.architectures.design import Variant
from t5x_like.architectures.heads.tokens import TokenClassifier
from t5x_like.nn.embed import Embed


class SpanHead(TokenClassifier):
  """Start and end of an answer.

  The outputs are {"logits" [B, T, 2], "start_logits" [B, T], "end_logits" [B, T]}.
  """

  def __init__(self, rngs: nnx.Rngs, variant: Variant):
    super().__init__(rngs, variant, 0.0, labels=2)

  def __call__(
    self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None
  ) -> dict[str, jax.Array]:
    logits_BT2 = super().__call__(x_BTD, embed, valid_BT, key)["logits"]
    return {
      "logits": logits_BT2,
      "start_logits": logits_BT2[..., 0],
      "end_logits": logits_BT2[..., 1],
    }


make = SpanHead
