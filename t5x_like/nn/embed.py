"""Token embeddings, and the positions and types added to them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.dims import NO_DROPOUT, Dropout
from t5x_like.nn.norm import Identity
from t5x_like.nn.positions import Position
from t5x_like.parallel.constrain import constrain, exchange, ways


class Embed(nnx.Module):
  """A table of V vectors of width D."""

  def __init__(self, vocab: int, embed: int, rngs: nnx.Rngs, *, init: Callable):
    self.table = params.param(rngs, init, (vocab, embed), ("vocab", "embed"))

  def __call__(self, ids_BT: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Look up `ids_BT`; return [B, T, D] in `dtype`.

    Where vectors are split over devices (FSDP), the cheaper of two transfers runs: each device
    looks up its slice of every vector and the slices are exchanged, or, if tokens outnumber table
    rows, the table is gathered in `dtype`.
    """
    V = self.table.shape[0]
    B, T = ids_BT.shape
    output_axes = ("batch", "length", "activation_embed")
    token_ways = ways("batch") * ways("length")
    gathers_table = ways("embed") > 1 and B * T > V * token_ways
    table_VD = self.table[...]
    if gathers_table:
      gathered_VD = constrain(table_VD.astype(dtype), "vocab", "activation_embed")
      table_VD = gathered_VD.astype(table_VD.dtype)
    x_BTD = jnp.take(table_VD, ids_BT, axis=0, mode="clip").astype(dtype)
    if gathers_table:
      return constrain(x_BTD, *output_axes)
    return exchange(x_BTD, ("batch", "length", "embed"), output_axes)


class Inputs(nnx.Module):
  """The input of a stack: `project(dropout(norm(scale * x + position + type)))` of token vectors.

  Args:
    scale: factor of the token vectors, sqrt(D) in Vaswani et al. 2017 and Gemma.
    position: a scheme with absolute positions.
    types: the `Types` module (segments A and B of BERT); None for no types.
    norm: norm of the sum, as in BERT, BLOOM and BART.
    project: projection from a narrower embedding to the width of the stack (ELECTRA small).
  """

  def __init__(
    self,
    *,
    scale: float = 1.0,
    position: Position | None = None,
    types: nnx.Module | None = None,
    norm: nnx.Module | None = None,
    project: nnx.Module | None = None,
    dropout: Dropout = NO_DROPOUT,
  ):
    self.scale = scale
    self.position = position or Position()
    self.types = types
    self.norm = norm or Identity()
    self.project = project or Identity()
    self.dropout = dropout

  def __call__(
    self, x_BTD, pos_BT, types_BT: jax.Array | None = None, key: jax.Array | None = None
  ) -> jax.Array:
    if self.scale != 1.0:
      x_BTD = x_BTD * jnp.asarray(self.scale, x_BTD.dtype)
    if self.types is not None:
      if types_BT is None:
        types_BT = jnp.zeros_like(pos_BT)
      x_BTD = x_BTD + self.types(types_BT, x_BTD.dtype)
    x_BTD = self.embed_positions(x_BTD, pos_BT)
    x_BTD = self.dropout(x_BTD, key)
    return self.project(x_BTD)

  def embed_positions(self, x_BTD: jax.Array, pos_BT: jax.Array) -> jax.Array:
    """Add the positions to the vectors, and norm the sum."""
    return self.norm(self.position.embed(x_BTD, pos_BT))


class Types(nnx.Module):
  """A table with a vector for each token type."""

  def __init__(self, types: int, embed: int, rngs: nnx.Rngs, *, init: Callable):
    self.table = params.param(rngs, init, (types, embed), (None, "embed"))

  def __call__(self, types_BT: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Look up `types_BT`; return [B, T, D] in `dtype`."""
    x_BTD = jnp.take(self.table[...], types_BT, axis=0, mode="clip")
    return x_BTD.astype(dtype)
