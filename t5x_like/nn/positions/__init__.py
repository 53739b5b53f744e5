"""Position schemes, one file each; a scheme overrides the hooks of `Position` that it needs.

A file is named after its scheme. A file's `make` takes the arguments that recipes give and, if its
signature names them, `rngs`, the `dims` of the stack, whether it is `causal`, the `width` of the
token vectors and the `init` of their table. Positions are explicit integers, so packed sequences
and decoding from a cache need no special case.
"""

from typing import Literal

import jax
from flax import nnx

from t5x_like.errors import UserError

_RENAMED_ATTRIBUTES = {"place": "owner"}  # of schemes written for older versions: old -> new


class Position(nnx.Module):
  """No positions: every hook is the identity.

  Attributes:
    owner: the part of a model that has the scheme: the "inputs" of a stack, the "stack" for all
      its layers, or each "layer".
    biased: whether `bias` returns an array.
    query_dependent: whether `logits` and `values` do anything, which only the dense core supports.
  """

  owner: Literal["inputs", "stack", "layer"] = "layer"
  biased = False
  query_dependent = False

  def embed(self, x_BTD: jax.Array, pos_BT: jax.Array) -> jax.Array:
    """Add an absolute encoding to the token embeddings."""
    return x_BTD

  def rotate(self, x_BTNH: jax.Array, pos_BT: jax.Array) -> jax.Array:
    """Rotate queries or keys by their position."""
    return x_BTNH

  def bias(self, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array | None:
    """Return float32 [B or 1, N, T, S], added to the logits; it depends only on positions."""
    return None

  def bias_of_distance(self, relative_X: jax.Array) -> jax.Array | None:
    """Return the bias for each `key position - query position`, float32 [N, X].

    Return None if the bias depends on anything else.
    """
    return None

  def logits(self, q_BTNH: jax.Array, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
    """Return float32 [B, N, T, S], added to logits, for `query_dependent` schemes.

    Args:
      q_BTNH: scaled queries.
    """
    raise TypeError(f"{type(self).__name__} is not query_dependent: it has no `logits`")

  def values(self, probs_BNTS: jax.Array, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
    """Return [B, T, N, H], added to the attended values; for `query_dependent` schemes."""
    raise TypeError(f"{type(self).__name__} is not query_dependent: it has no `values`")


def check_attributes(scheme: Position, where: str) -> None:
  """Raise UserError if a scheme has an attribute of an older version."""
  for old_name, new_name in _RENAMED_ATTRIBUTES.items():
    if hasattr(scheme, old_name):
      raise UserError(
        f"{where}: {type(scheme).__name__} declares {old_name!r}, which is now {new_name!r}; "
        "rename it"
      )
