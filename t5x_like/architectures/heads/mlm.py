"""BERT's masked language model head."""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.design import Variant
from t5x_like.architectures.heads.lm import LmHead, hidden_scale
from t5x_like.nn.embed import Embed
from t5x_like.nn.feed_forward import ACTIVATIONS
from t5x_like.nn.linear import Linear


class MlmHead(nnx.Module):
  """The token table on `norm(activation(dense(x)))`, with a bias.

  It follows the code of Devlin et al. 2019.
  """

  def __init__(self, rngs: nnx.Rngs, variant: Variant):
    design = variant.design
    D = variant.dims.embed
    width = variant.embed or D
    norm = design.make_norm(width, rngs)  # first, for the order of random keys
    self.dense = Linear(
      (D, width), ("embed", None), design.kernel_init(D), rngs, bias="mlp" in design.biases
    )
    self.norm = norm
    self.lm = LmHead(rngs, bias=variant.vocab_size, scale=hidden_scale(design, width))
    self.activation, _ = ACTIVATIONS[design.activation]

  def __call__(
    self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None, positions_BK=None, **_
  ) -> dict:
    """Return {"logits": VocabularyLogits [B, T, V]}.

    With `positions_BK`, return [B, K, V] at these positions, which saves most of the work.
    """
    if positions_BK is not None:
      x_BTD = gather_tokens(x_BTD, positions_BK)
    h_BTD = self.activation(self.dense(x_BTD))
    return self.lm(self.norm(h_BTD), embed)


def gather_tokens(x_BTD: jax.Array, positions_BK: jax.Array) -> jax.Array:
  """Gather each row's states at its positions `positions_BK`, int32: [B, K, D]."""
  return jnp.take_along_axis(x_BTD, positions_BK[..., None], axis=1)


make = MlmHead
