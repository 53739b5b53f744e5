"""Scores of whole rows, from a decoder's last token."""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.design import Variant
from t5x_like.nn.dims import Dropout
from t5x_like.nn.linear import Linear


class Scores(nnx.Module):
  """A linear layer on the last token of each row, as GPT-1's "extract" token.

  See Radford et al. 2018, section 3.2.
  """

  def __init__(self, rngs: nnx.Rngs, variant: Variant, dropout_rate: float, number: int):
    D = variant.dims.embed
    init = variant.design.kernel_init(D)
    self.out = Linear((D, number), ("embed", None), init, rngs, bias=True)
    self.dropout_rate = dropout_rate

  def __call__(
    self, x_BTD: jax.Array, valid_BT: jax.Array | None, key: jax.Array | None
  ) -> dict[str, jax.Array]:
    """Return {"scores": float32 [B, number]}."""
    B, T, _ = x_BTD.shape
    if valid_BT is None:
      last_B = jnp.full((B,), T - 1)
    else:
      last_B = jnp.maximum(jnp.sum(valid_BT, axis=1) - 1, 0)
    last_B1D = jnp.take_along_axis(x_BTD, last_B[:, None, None], axis=1)
    x_BD = Dropout(self.dropout_rate)(last_B1D[:, 0], key)
    scores_BN = self.out(x_BD)
    return {"scores": scores_BN.astype(jnp.float32)}
