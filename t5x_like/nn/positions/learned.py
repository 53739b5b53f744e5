"""A learned vector for each position, added to the token vectors."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.positions import Position
from t5x_like.slots import PositiveFloat, PositiveInt


class LearnedPosition(Position):
  """A vector for each of `length` positions.

  Args:
    offset: row of position 0 (BART and RoBERTa reserve two rows).
    stddev: initial standard deviation; None for the token table's.
  """

  owner = "inputs"

  def __init__(
    self,
    rngs: nnx.Rngs,
    width: int,
    init: Callable,
    *,
    length: PositiveInt = 512,
    offset: int = 0,
    stddev: PositiveFloat | None = None,
  ):
    init = init if stddev is None else params.normal(stddev)
    self.table = params.param(rngs, init, (length + offset, width), (None, "embed"))
    self.length = length
    self.offset = offset

  def embed(self, x_BTD: jax.Array, pos_BT: jax.Array) -> jax.Array:
    if x_BTD.shape[1] > self.length:
      raise UserError(
        f"the model has positions for {self.length} tokens, found a length of {x_BTD.shape[1]}; "
        "shorten the sequences or make a model with more positions"
      )
    vectors = jnp.take(self.table[...], pos_BT + self.offset, axis=0, mode="clip")
    return x_BTD + vectors.astype(x_BTD.dtype)

  def resize(self, table: jax.Array, source: "LearnedPosition") -> jax.Array:
    """Resize another scheme's table to this one's rows: repeat its positions, or keep the first."""
    reserved = table[: self.offset]
    vectors = table[self.offset :]
    rows = jnp.arange(self.length) % len(vectors)
    return jnp.concatenate([reserved, vectors[rows]])


make = LearnedPosition
