"""No head."""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn.embed import Embed


class NoHead(nnx.Module):
  """A head that returns the hidden states: {"logits": float32 [B, T, D]}."""

  def __call__(
    self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None
  ) -> dict[str, jax.Array]:
    return {"logits": x_BTD.astype(jnp.float32)}


make = NoHead
