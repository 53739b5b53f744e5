"""Attention on a mesh without the partitioner: each device attends for its own rows, heads and
queries."""

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
    """Select these heads from an array with all heads along `axis`."""
    return x if x.shape[axis] in (1, self.heads.size) else jnp.take(x, self.heads, axis=axis)


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
      k, v = _dropped(k, v, q.shape[2], softmax)
      softmax = dataclasses.replace(softmax, dropout=NO_DROPOUT)
    return _on_each_device(self.attend, q, k, v, mask, softmax, self.keys_axis)


def _on_each_device(
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
  (B, T, N, _), K = q.shape, k.shape[2]
  heads = "activation_heads"
  kv_heads = None
  ways = constrain.ways(heads)
  if K % ways == 0:
    kv_heads = heads
  elif N % ways or (N // ways % (N // K) and N // K % (N // ways)):
    heads = None  # a device's heads would need parts of several groups

  def run(q, k, v, q_side, k_side, rows, heads, queries, bias, position, key):
    n = heads.size
    if k.shape[2] == K and n < N:
      first = heads[0] * K // N
      k, v = (jax.lax.dynamic_slice_in_dim(x, first, max(1, n * K // N), axis=2) for x in (k, v))
    (q_pos, q_segments), (k_pos, k_segments, k_valid, k_prefix) = q_side, k_side
    options = dict(causal=mask.causal, window=mask.window, aligned=mask.aligned)
    own = Mask(q_pos, k_pos, q_segments, k_segments, k_valid, k_prefix, **options)
    places = DeviceSlice(rows, heads, queries, has_all_queries=queries.size == T)
    changes = dict(bias=bias, position=position, key=key, device_slice=places)
    return attend(q, k, v, own, dataclasses.replace(softmax, **changes))

  arguments = {
    "q": (q, ("batch", "length", heads)),
    "k": (k, ("batch", keys_axis, kv_heads)),
    "v": (v, ("batch", keys_axis, kv_heads)),
    "q_side": ((mask.q_pos, mask.q_segments), ("batch", "length")),
    "k_side": ((mask.k_pos, mask.k_segments, mask.k_valid, mask.k_prefix), ("batch", keys_axis)),
    "rows": (jnp.arange(B, dtype=jnp.int32), ("batch",)),
    "heads": (jnp.arange(N, dtype=jnp.int32), (heads,)),
    "queries": (jnp.arange(T, dtype=jnp.int32), ("length",)),
    "bias": (
      softmax.bias,
      ("batch", heads, "length") if isinstance(softmax.bias, jax.Array) else (),
    ),
    "position": (softmax.position, ()),
    "key": (softmax.key, ()),
  }
  values, axes = zip(*arguments.values(), strict=True)
  return constrain.per_device(run, values, axes)


def _dropped(
  k_BSKH: jax.Array, v_BSKH: jax.Array, heads: int, softmax: Softmax
) -> tuple[jax.Array, jax.Array]:
  """Return keys and values [B, S, N, H] of every head, without the values whose weights all queries
  would drop."""
  k_BSNH, v_BSNH = (jnp.repeat(x, heads // x.shape[2], axis=2) for x in (k_BSKH, v_BSKH))
  B, S, N, _ = v_BSNH.shape
  factors_BN1S = softmax.dropout(jnp.ones((B, N, 1, S), v_BSNH.dtype), softmax.key)
  return k_BSNH, v_BSNH * factors_BN1S.transpose(0, 3, 1, 2)
