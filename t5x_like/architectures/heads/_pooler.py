"""The pooler of heads that read one token of a sequence."""

import jax
from flax import nnx

from t5x_like import slots
from t5x_like.architectures.design import Variant
from t5x_like.architectures.heads.mlm import gather_tokens
from t5x_like.nn.feed_forward import ACTIVATIONS
from t5x_like.nn.linear import Linear


class Pooler(nnx.Module):
  """`activation(dense(x))` of the first token of each sequence."""

  def __init__(self, rngs: nnx.Rngs, variant: Variant, activation: str):
    D = variant.dims.embed
    init = variant.design.kernel_init(D)
    self.dense = Linear((D, D), ("embed", None), init, rngs, bias=True)
    self.activation, _ = slots.find("config.model.head.activation", activation, ACTIVATIONS)

  def __call__(self, x_BTD: jax.Array, first_positions_BP: jax.Array | None = None) -> jax.Array:
    """Return [B, D], or [B, P, D] for packed sequences, which begin at `first_positions_BP`."""
    if first_positions_BP is None:
      first = x_BTD[:, 0]
    else:
      first = gather_tokens(x_BTD, first_positions_BP)
    return self.activation(self.dense(first))
