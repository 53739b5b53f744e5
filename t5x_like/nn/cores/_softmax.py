"""The settings of attention's softmax, besides the mask, and the part of it that one device computes."""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_like.nn.dims import dropout
from t5x_like.nn.positions import Position


@dataclasses.dataclass(frozen=True)
class Places:
  """The rows, heads and queries of one device, as indices into the whole arrays.

  Attributes:
    rows, heads, queries: int32 [B], [N], [T].
    whole: whether the queries cover the whole sequence.
  """

  rows: jax.Array
  heads: jax.Array
  queries: jax.Array
  whole: bool = dataclasses.field(default=True, metadata={"static": True})

  def own_heads(self, x: jax.Array, axis: int) -> jax.Array:
    """Select these heads from an array with all heads along `axis`."""
    return x if x.shape[axis] in (1, self.heads.size) else jnp.take(x, self.heads, axis=axis)


jax.tree_util.register_dataclass(Places)


@dataclasses.dataclass(frozen=True)
class Softmax:
  """The settings that turn logits into weights, besides the mask.

  Attributes:
    bias: the stack's bias: an array [B or 1, N, T, S], or a `Position` that computes pieces of it.
    position: the layer's own position scheme.
    softcap: logits become `softcap * tanh(logits / softcap)`.
    dropout_rate, key: dropout of the weights; none if the key is None.
    places: the device's part of the arrays, set in cores that run on each device by itself.
  """

  bias: jax.Array | Position | None = None
  position: Position = dataclasses.field(default_factory=Position)
  softcap: float | None = None
  dropout_rate: float = 0.0
  key: jax.Array | None = None
  places: Places | None = None

  def capped(self, logits: jax.Array) -> jax.Array:
    return logits if self.softcap is None else self.softcap * jnp.tanh(logits / self.softcap)

  def biases(self, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array | None:
    """Return the sum of the stack's and the layer's bias: float32 [B or 1, N, T, S], or None."""
    shared = self.bias.bias(q_pos_BT, k_pos_BS) if isinstance(self.bias, Position) else self.bias
    own = self.position.bias(q_pos_BT, k_pos_BS)
    if shared is None or own is None:
      return own if shared is None else shared
    return shared + own

  def dropped(self, weights_BNTS: jax.Array) -> jax.Array:
    return dropout(weights_BNTS, self.dropout_rate, self.key)
