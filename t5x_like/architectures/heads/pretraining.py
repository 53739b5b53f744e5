"""BERT's two pretraining heads: masked tokens and next sentence."""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.design import Variant
from t5x_like.architectures.heads._pooler import Pooler
from t5x_like.architectures.heads.mlm import MlmHead
from t5x_like.nn.embed import Embed
from t5x_like.nn.linear import Linear


class PretrainingHead(nnx.Module):
  """Masked tokens, and whether the second segment follows the first.

  Label 0 of the latter means that it does, 1 that it is random.
  """

  def __init__(self, rngs: nnx.Rngs, variant: Variant, *, activation: str = "tanh"):
    D = variant.dims.embed
    self.mlm = MlmHead(rngs, variant)
    self.pooler = Pooler(rngs, variant, activation)
    self.next_sentence = Linear(
      (D, 2), ("embed", None), variant.design.kernel_init(D), rngs, bias=True
    )

  def __call__(
    self,
    x_BTD: jax.Array,
    embed: Embed,
    valid_BT=None,
    key=None,
    positions_BK=None,
    first_positions_BP=None,
  ) -> dict:
    """Return {"logits" [B, T, V] as `MlmHead`, "next_sentence_logits" [B, 2]}.

    The latter are [B, P, 2] if P sequences of a row begin at `first_positions_BP`.
    """
    next_sentence = self.next_sentence(self.pooler(x_BTD, first_positions_BP)).astype(jnp.float32)
    return self.mlm(x_BTD, embed, positions_BK=positions_BK) | {
      "next_sentence_logits": next_sentence
    }


make = PretrainingHead
