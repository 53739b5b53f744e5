"""How positions enter a Transformer: one protocol; each scheme fills in the hooks it needs, in a file of its name.

A file's `make` is called with what a recipe says of the scheme and, of the following, with what it names: `rngs`, the
`dims` of the stack, whether it is `causal`, the `width` of the token vectors and the `init` of their table. Positions
are explicit integers, so packed sequences and decoding from a cache need no special case.
"""

from typing import Literal

import jax
from flax import nnx


class Position(nnx.Module):
  """No positions: every hook is the identity.

  Attributes:
    place: where the scheme lives: in the "inputs" of a stack, in the "stack", for all layers, or in each "layer".
    biased: whether `bias` gives something.
    query_dependent: whether the scheme has `logits` and `values`; only the dense core can honour these.
  """

  place: Literal["inputs", "stack", "layer"] = "layer"
  biased = False
  query_dependent = False

  def embed(self, x_BTD: jax.Array, pos_BT: jax.Array) -> jax.Array:
    """Adds an absolute encoding to the token embeddings."""
    return x_BTD

  def rotate(self, x_BTNH: jax.Array, pos_BT: jax.Array) -> jax.Array:
    """Turns queries or keys by their position."""
    return x_BTNH

  def bias(self, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array | None:
    """float32 [B or 1, N, T, S], added to the attention logits; depends on positions alone."""
    return None
