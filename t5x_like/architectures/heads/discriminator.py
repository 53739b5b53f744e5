"""ELECTRA's head: detection of replaced tokens."""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.design import Variant
from t5x_like.nn.embed import Embed
from t5x_like.nn.feed_forward import ACTIVATIONS
from t5x_like.nn.linear import Linear


class DiscriminatorHead(nnx.Module):
  """A logit [B, T] for each token, positive where it was replaced (Clark et al. 2020)."""

  def __init__(self, rngs: nnx.Rngs, variant: Variant):
    D = variant.dims.embed
    init = variant.design.kernel_init(D)
    self.dense = Linear((D, D), ("embed", None), init, rngs, bias=True)
    self.out = Linear((D, 1), ("embed", None), init, rngs, bias=True)
    self.activation, _ = ACTIVATIONS[variant.design.activation]

  def __call__(
    self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None
  ) -> dict[str, jax.Array]:
    hidden_BTD = self.activation(self.dense(x_BTD))
    logits_BT = self.out(hidden_BTD)[..., 0]
    return {"logits": logits_BT.astype(jnp.float32)}


make = DiscriminatorHead
