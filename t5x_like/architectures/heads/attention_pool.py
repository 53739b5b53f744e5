"""Image embeddings by attention: a learned query reads all patches.

This is MAP (Zhai et al. 2022, arXiv:2106.04560).
"""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn.attention import CrossAttention
from t5x_like.nn.cores.auto import Auto
from t5x_like.nn.feed_forward import ACTIVATIONS
from t5x_like.nn.feed_forward.mlp import Mlp
from t5x_like.nn.layer import Context
from t5x_like.nn.mask import Mask, positions
from t5x_like.nn.params import param


class AttentionPool(nnx.Module):
  """A head that returns {"embeddings": [B, D]}.

  They are `y + mlp(norm(y))`, where a learned query reads y from the last hidden states. Heads and
  the width of the feed-forward layer are the stack's.
  """

  def __init__(self, rngs: nnx.Rngs, variant):
    dims = variant.dims
    design = variant.design
    D = dims.embed
    F = dims.mlp
    activation, gated = ACTIVATIONS[design.activation]
    init = design.kernel_init(D)
    self.query = param(rngs, init, (1, D), (None, "embed"))
    self.attention = CrossAttention(
      dims,
      rngs,
      scale=dims.head_dim**-0.5,
      init=init,
      biases=design.biases,
      core=Auto(),
      out_init=init,
    )
    self.norm = design.make_norm(D, rngs)
    self.mlp = Mlp(
      D,
      F,
      rngs,
      activation=activation,
      gated=gated,
      bias="mlp" in design.biases,
      init=init,
      out_init=design.kernel_init(F),
    )

  def pool(self, x_BTD: jax.Array) -> jax.Array:
    """Return the embeddings, [B, D]."""
    B, T, D = x_BTD.shape
    q_pos = positions(1)
    query_1D = self.query[...].astype(x_BTD.dtype)
    query_B1D = jnp.broadcast_to(query_1D, (B, 1, D))
    memory_mask = Mask(q_pos, positions(T))
    context = Context(mask=Mask(q_pos, q_pos), memory=x_BTD, memory_mask=memory_mask)
    y_B1D, _, _ = self.attention(query_B1D, context, None, None)
    mlp_B1D, _, _ = self.mlp(self.norm(y_B1D), context, None, None)
    return (y_B1D + mlp_B1D)[:, 0]

  def __call__(self, x_BTD: jax.Array, embed=None, valid_BT=None, key=None) -> dict[str, jax.Array]:
    return {"embeddings": self.pool(x_BTD)}


make = AttentionPool
