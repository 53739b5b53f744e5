"""Image embeddings, in a space shared with texts."""

import jax
from flax import nnx

from t5x_like.nn.linear import Linear
from t5x_like.slots import PositiveInt


class ProjectionHead(nnx.Module):
  """A head that returns {"embeddings": [B, width]}.

  It projects the class token or, in a model without one, the mean of the patches.
  """

  def __init__(self, rngs: nnx.Rngs, variant, *, width: PositiveInt):
    D = variant.dims.embed
    self.num_class_tokens = variant.class_tokens
    self.out = Linear((D, width), ("embed", None), variant.design.kernel_init(D), rngs)

  def pool(self, x_BTD: jax.Array) -> jax.Array:
    """Return the features before their projection, [B, D]."""
    return x_BTD[:, 0] if self.num_class_tokens else x_BTD.mean(axis=1)

  def __call__(self, x_BTD: jax.Array, embed=None, valid_BT=None, key=None) -> dict[str, jax.Array]:
    return {"embeddings": self.out(self.pool(x_BTD))}


make = ProjectionHead
