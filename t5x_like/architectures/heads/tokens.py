"""Classification of tokens."""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.design import Variant
from t5x_like.nn.dims import Dropout, subkey
from t5x_like.nn.embed import Embed
from t5x_like.nn.linear import Linear
from t5x_like.slots import PositiveInt


class TokenClassifier(nnx.Module):
  """A head that returns {"logits": float32 [B, T, labels]}."""

  def __init__(
    self, rngs: nnx.Rngs, variant: Variant, dropout_rate: float, *, labels: PositiveInt = 2
  ):
    D = variant.dims.embed
    init = variant.design.kernel_init(D)
    self.out = Linear((D, labels), ("embed", None), init, rngs, bias=True)
    self.dropout_rate = dropout_rate

  def __call__(
    self, x_BTD: jax.Array, embed: Embed, valid_BT=None, key=None
  ) -> dict[str, jax.Array]:
    x_BTD = Dropout(self.dropout_rate)(x_BTD, subkey(key, 0))
    logits_BTC = self.out(x_BTD)
    return {"logits": logits_BTC.astype(jnp.float32)}


make = TokenClassifier
