"""Run sequences of any length through a stack that splits them over devices (`mesh.sequence`)."""

import math

import jax
import jax.numpy as jnp

from t5x_like.nn.layer import Context
from t5x_like.nn.mask import Mask
from t5x_like.nn.positions import Position
from t5x_like.nn.stack import Stack
from t5x_like.parallel.constrain import constrain, ways


def run_padded(
  stack: Stack,
  x_BTD: jax.Array,
  pos_BT: jax.Array,
  key: jax.Array | None,
  *,
  aligned: bool,
  position: Position | None = None,
):
  """Run a bidirectional stack and return ([B, T, D], auxiliary scalars).

  An image's patches and class token rarely divide evenly among devices, so masked tokens pad the
  sequence.

  Args:
    pos_BT: int32 [B or 1, T].
    aligned: whether positions equal sequence indices, as in `Mask.aligned`.
    position: a scheme whose vectors become `Context.position_vectors`.
  """
  T = x_BTD.shape[1]
  padding = -T % math.lcm(ways("length"), ways("residual_length"))
  valid = None
  if padding:
    x_BTD = jnp.pad(x_BTD, ((0, 0), (0, padding), (0, 0)))
    last_pos = jnp.broadcast_to(pos_BT[:, -1:], (len(pos_BT), padding))
    pos_BT = jnp.concatenate([pos_BT, last_pos], axis=1)
    is_token = jnp.arange(T + padding) < T
    valid = is_token[None]
  x_BTD = constrain(x_BTD, "batch", "residual_length", "activation_embed")
  mask = Mask(pos_BT, pos_BT, k_valid=valid, aligned=aligned and not padding)
  position_vectors = None
  if position is not None:
    position_vectors = position.embed(jnp.zeros_like(x_BTD), pos_BT)
  context = Context(mask=mask, position_vectors=position_vectors)
  x_BTD, aux, _ = stack(x_BTD, context, key=key)
  return x_BTD[:, :T], aux
