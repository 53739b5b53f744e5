"""The hidden states and a pooled token."""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.design import Variant
from t5x_like.architectures.heads._pooler import Pooler
from t5x_like.nn.embed import Embed


class PooledHead(nnx.Module):
  """A head that returns hidden states and a pooled token.

  The outputs are {"logits": float32 [B, T, D], "pooled": float32 [B, D]}.
  """

  def __init__(self, rngs: nnx.Rngs, variant: Variant, *, activation: str = "tanh"):
    self.pooler = Pooler(rngs, variant, activation)

  def __call__(
    self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None
  ) -> dict[str, jax.Array]:
    return {"logits": x_BTD.astype(jnp.float32), "pooled": self.pooler(x_BTD).astype(jnp.float32)}


make = PooledHead
