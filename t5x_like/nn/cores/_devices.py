"""Attention on a mesh without the partitioner: each device attends for its own queries."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from t5x_like.nn.cores import Core, Softmax
from t5x_like.nn.dims import NO_DROPOUT
from t5x_like.nn.mask import Mask
from t5x_like.parallel import constrain


@dataclasses.dataclass(frozen=True)
class DeviceSlice:
  """The rows, heads and queries of one device, as indices into the whole arrays.

  Attributes:
    rows, heads, queries: int32 [B], [N], [T].
    has_all_queries: whether the queries cover the whole sequence.
  """

  rows: jax.Array
  heads: jax.Array
  queries: jax.Array
  has_all_queries: bool = dataclasses.field(default=True, metadata={"static": True})

  def select_heads(self, x: jax.Array, axis: int) -> jax.Array:
    """Select these heads from an array with all heads, or a single one, along `axis`."""
    if x.shape[axis] in (1, self.heads.size):
      return x
    return jnp.take(x, self.heads, axis=axis)


jax.tree_util.register_dataclass(DeviceSlice)


class PerDevice(Core):
  """A core that each device runs by itself, on its rows, heads and queries.

  Attributes:
    keys_axis: the logical axis that splits the keys over devices; None if every device has all keys
      of its rows.
  """

  keys_axis: str | None = None

  def run_sharded(self, q, k, v, mask, softmax):
    if "dropout" in self.refuses and softmax.drops_whole_keys:
      k, v = _drop_values(k, v, q.shape[2], softmax)
      softmax = dataclasses.replace(softmax, dropout=NO_DROPOUT)
    return _attend_per_device(self.attend, q, k, v, mask, softmax, self.keys_axis)


def _attend_per_device(
  attend: Callable,
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  mask: Mask,
  softmax: Softmax,
  keys_axis: str | None,
) -> jax.Array:
  """Run `attend(q, k, v, mask, softmax)` on each device, on its rows, heads and queries.

  Each device gets all keys of its rows and heads, or its own part along the logical axis
  `keys_axis`.
  """
  B, T, N, _ = q.shape
  K = k.shape[2]
  heads_axis, kv_heads_axis = _head_axes(N, K)

  def attend_on_device(q, k, v, q_fields, k_fields, rows, heads, queries, bias, position, key):
    if k.shape[2] == K and heads.size < N:
      k = _kv_heads_of(k, heads, N)
      v = _kv_heads_of(v, heads, N)
    q_pos, q_segments = q_fields
    k_pos, k_segments, k_valid, k_prefix = k_fields
    device_mask = Mask(
      q_pos,
      k_pos,
      q_segments,
      k_segments,
      k_valid,
      k_prefix,
      causal=mask.causal,
      window=mask.window,
      aligned=mask.aligned,
    )
    device_slice = DeviceSlice(rows, heads, queries, has_all_queries=queries.size == T)
    device_softmax = dataclasses.replace(
      softmax, bias=bias, position=position, key=key, device_slice=device_slice
    )
    return attend(q, k, v, device_mask, device_softmax)

  bias_axes = ("batch", heads_axis, "length") if isinstance(softmax.bias, jax.Array) else ()
  arguments = [  # each with its logical axes
    (q, ("batch", "length", heads_axis)),
    (k, ("batch", keys_axis, kv_heads_axis)),
    (v, ("batch", keys_axis, kv_heads_axis)),
    ((mask.q_pos, mask.q_segments), ("batch", "length")),
    ((mask.k_pos, mask.k_segments, mask.k_valid, mask.k_prefix), ("batch", keys_axis)),
    (jnp.arange(B, dtype=jnp.int32), ("batch",)),
    (jnp.arange(N, dtype=jnp.int32), (heads_axis,)),
    (jnp.arange(T, dtype=jnp.int32), ("length",)),
    (softmax.bias, bias_axes),
    (softmax.position, ()),
    (softmax.key, ()),
  ]
  arrays, axes = zip(*arguments, strict=True)
  return constrain.per_device(attend_on_device, arrays, axes)


def _head_axes(N: int, K: int) -> tuple[str | None, str | None]:
  """Return the logical axes that split N query heads and K key/value heads; None for no split."""
  ways = constrain.ways("activation_heads")
  if K % ways == 0:
    return "activation_heads", "activation_heads"
  if N % ways:
    return None, None
  heads_per_device = N // ways
  group = N // K
  if heads_per_device % group and group % heads_per_device:
    return None, None  # a device's heads would need parts of several groups
  return "activation_heads", None


def _kv_heads_of(x_BSKH: jax.Array, heads: jax.Array, N: int) -> jax.Array:
  """Select the key/value heads that a device's query heads, of N in all, read."""
  K = x_BSKH.shape[2]
  first = heads[0] * K // N
  count = max(1, heads.size * K // N)
  return jax.lax.dynamic_slice_in_dim(x_BSKH, first, count, axis=2)


def _drop_values(
  k_BSKH: jax.Array, v_BSKH: jax.Array, heads: int, softmax: Softmax
) -> tuple[jax.Array, jax.Array]:
  """Repeat keys and values for every head, and zero the values that all queries would drop."""
  k_BSNH = jnp.repeat(k_BSKH, heads // k_BSKH.shape[2], axis=2)
  v_BSNH = jnp.repeat(v_BSKH, heads // v_BSKH.shape[2], axis=2)
  B, S, N, _ = v_BSNH.shape
  factors_BN1S = softmax.dropout(jnp.ones((B, N, 1, S), v_BSNH.dtype), softmax.key)
  return k_BSNH, v_BSNH * factors_BN1S.transpose(0, 3, 1, 2)
