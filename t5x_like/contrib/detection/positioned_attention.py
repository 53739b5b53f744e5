"""Attention that adds position vectors to queries and keys, but not to values.

See Carion et al. 2020, figure 10.
"""

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.build import StackBuilder
from t5x_like.errors import UserError
from t5x_like.nn import attention, params
from t5x_like.nn.attention import Attention
from t5x_like.nn.dims import NO_DROPOUT
from t5x_like.nn.layer import Context
from t5x_like.nn.stack import Stack

_TEMPERATURE = 10_000
_SCALE = 2 * math.pi
_EPSILON = 1e-6
_MAX_CELLS = 50  # rows and columns of a map, as in the authors' code


@dataclasses.dataclass(frozen=True)
class PositionEmbeddings:
  """The positions that a detector adds (Carion et al. 2020, table 3).

  The defaults are the paper's choice, the last row of the table.

  Attributes:
    kind: the positions of a map's cells: sines, or learned vectors of rows and columns.
    cells: where the encoder adds them: at its input, at every attention, at both or nowhere.
    memory: whether the decoder adds them to keys at every attention to the encoder's output.
    queries: where the decoder adds the learned query vectors.
  """

  kind: Literal["sines", "learned"] = "sines"
  cells: Literal["none", "input", "attention", "both"] = "attention"
  memory: Literal["none", "attention"] = "attention"
  queries: Literal["input", "attention", "both"] = "attention"

  def at(self, stage: str, vectors: dict[str, jax.Array]) -> dict[str, jax.Array | None]:
    """Return the vectors that are added at a stage ("input" or "attention"), None for others.

    Args:
      vectors: by name, `cells`, `memory` and `queries`.
    """
    return {
      name: x if getattr(self, name) in (stage, "both") else None for name, x in vectors.items()
    }

  def positions(self, rngs: nnx.Rngs, width: int) -> "LearnedCells | None":
    """Make the cells' learned positions; None if sines are added, or nothing."""
    if self.kind != "learned" or (self.cells == "none" and self.memory == "none"):
      return None
    return LearnedCells(rngs, width)


class LearnedCells(nnx.Module):
  """Learned vectors of columns, in the first half of the channels, and of rows."""

  def __init__(self, rngs: nnx.Rngs, width: int):
    init = jax.nn.initializers.uniform(1.0)
    shape = (_MAX_CELLS, width // 2)
    self.rows = params.param(rngs, init, shape, (None, None))
    self.columns = params.param(rngs, init, shape, (None, None))

  def __call__(self, valid_BYX: jax.Array) -> jax.Array:
    """Return float32 [1, Y * X, width]."""
    _, Y, X = valid_BYX.shape
    if max(Y, X) > _MAX_CELLS:
      raise UserError(
        f"config.model.places.kind: learned positions are for up to {_MAX_CELLS} rows and columns, "
        f"found {Y} x {X}; make the images smaller or choose 'sines'"
      )
    shape = (Y, X, self.rows.shape[-1])
    columns = jnp.broadcast_to(self.columns[...][None, :X], shape)
    rows = jnp.broadcast_to(self.rows[...][:Y, None], shape)
    return jnp.concatenate([columns, rows], axis=-1).reshape(1, Y * X, -1)


def add_positions(x_BTD: jax.Array, positions_BTD: jax.Array | None) -> jax.Array:
  """Add vectors of positions if there are any."""
  return x_BTD if positions_BTD is None else x_BTD + positions_BTD


class PositionedSelfAttention(attention.SelfAttention):
  """Attention among the vectors of a stack, with positions `context.position_vectors`."""

  def __call__(self, x_BTD: jax.Array, context: Context, cache: None, key: jax.Array | None):
    positioned_BTD = add_positions(x_BTD, context.position_vectors)
    mask = context.mask
    k_BSKH, v_BSKH = self.keys_and_values(self.key(positioned_BTD), self.value(x_BTD), mask.q_pos)
    q_BTX = self.query(positioned_BTD)
    return self.attend(self.core, q_BTX, k_BSKH, v_BSKH, mask, context.bias, key), {}, cache


class PositionedCrossAttention(attention.CrossAttention):
  """Attention from a decoder to its memory, with positions of both.

  They are `context.position_vectors` and `context.memory_position_vectors`.
  """

  def __call__(self, x_BTD: jax.Array, context: Context, cache: None, key: jax.Array | None):
    memory_BSD = context.memory
    mask = context.memory_mask
    positioned_BSD = add_positions(memory_BSD, context.memory_position_vectors)
    k_BSKH, v_BSKH = self.keys_and_values(
      self.key(positioned_BSD), self.value(memory_BSD), mask.k_pos
    )
    q_BTX = self.query(add_positions(x_BTD, context.position_vectors))
    return self.attend(self.core, q_BTX, k_BSKH, v_BSKH, mask, None, key), {}, cache


class PositionedBuilder(StackBuilder):
  """A builder of stacks with these attentions. As in DETR, no dropout follows the last block."""

  def stack(self, rngs) -> Stack:
    return super().stack(rngs).without(dropout=NO_DROPOUT)

  def _attention(self, kind: type[Attention], rngs, layer_index: int | None = None) -> Attention:
    is_self = kind is attention.SelfAttention
    positioned = PositionedSelfAttention if is_self else PositionedCrossAttention
    return super()._attention(positioned, rngs, layer_index)


def sine_positions(valid_BYX: jax.Array, width: int) -> jax.Array:
  """Encode row and column by sines and cosines: float32 [B, Y * X, width].

  Rows and columns are fractions of the image without padding. The first half of the channels
  encodes the row; in each half, sines and cosines alternate (Carion et al. 2020, appendix A.4, as
  in the authors' code).

  Args:
    valid_BYX: bool, False for padding.
  """
  frequency = _TEMPERATURE ** (-(jnp.arange(width // 2) // 2 * 2) / (width / 2))
  real_BYX = valid_BYX.astype(jnp.float32)
  halves = []
  for axis in (1, 2):
    count = jnp.cumsum(real_BYX, axis=axis)
    share = count / (jax.lax.index_in_dim(count, -1, axis) + _EPSILON) * _SCALE
    angles = share[..., None] * frequency
    halves.append(jnp.where(jnp.arange(width // 2) % 2, jnp.cos(angles), jnp.sin(angles)))
  return jnp.concatenate(halves, axis=-1).reshape(len(valid_BYX), -1, width)
