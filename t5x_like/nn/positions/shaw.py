"""Shaw's relative positions: learned vectors, added to keys and to values."""

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from t5x_like.nn.positions import Position
from t5x_like.slots import PositiveInt


class ShawPosition(Position):
  """Learned vectors for each clipped distance, added to keys and to values.

  They follow Shaw et al. 2018, equations 3 and 4. The vectors are shared by the heads of a layer,
  as in the paper (section 3.3); every layer has its own. In array names, X is the dimension of
  clipped distances.

  Args:
    clip: the largest distance with a vector of its own, in tokens; farther keys share its vector.
    values: whether vectors are added to the values too (equation 3), not only to the keys.
  """

  query_dependent = True

  def __init__(self, rngs: nnx.Rngs, dims: Dims, *, clip: PositiveInt = 16, values: bool = True):
    init = params.fan_in_normal(dims.head_dim)
    shape = (2 * clip + 1, dims.head_dim)
    axes = (None, None)
    self.keys = params.param(rngs, init, shape, axes)
    self.value_table = params.param(rngs, init, shape, axes) if values else None
    self.clip = clip

  def logits(self, q_BTNH: jax.Array, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
    # Multiply queries by the vector of every distance, then look distances up: an array of shape
    # [T, S, H] is never built.
    keys_XH = self.keys[...].astype(q_BTNH.dtype)
    logits_BTNX = jnp.einsum("BTNH,XH->BTNX", q_BTNH, keys_XH)
    onehot_BTSX = self._onehot(q_pos_BT, k_pos_BS, jnp.float32, batch=q_BTNH.shape[0])
    return jnp.einsum("BTNX,BTSX->BNTS", logits_BTNX.astype(jnp.float32), onehot_BTSX)

  def values(self, probs_BNTS: jax.Array, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
    if self.value_table is None:
      return jnp.zeros((), probs_BNTS.dtype)
    onehot_BTSX = self._onehot(q_pos_BT, k_pos_BS, probs_BNTS.dtype, batch=probs_BNTS.shape[0])
    probs_BTNX = jnp.einsum("BNTS,BTSX->BTNX", probs_BNTS, onehot_BTSX)
    value_table_XH = self.value_table[...].astype(probs_BNTS.dtype)
    return jnp.einsum("BTNX,XH->BTNH", probs_BTNX, value_table_XH)

  def _onehot(self, q_pos_BT, k_pos_BS, dtype, *, batch: int) -> jax.Array:
    """Return the clipped distance from each query to each key, one-hot [B, T, S, X]."""
    distance_BTS = k_pos_BS[:, None, :] - q_pos_BT[:, :, None]
    clipped_BTS = jnp.clip(distance_BTS, -self.clip, self.clip)
    onehot_BTSX = jax.nn.one_hot(clipped_BTS + self.clip, 2 * self.clip + 1, dtype=dtype)
    return jnp.broadcast_to(onehot_BTSX, (batch, *onehot_BTSX.shape[1:]))


make = ShawPosition
