"""Multi-head attention, within a sequence and from a decoder to its encoder."""

import dataclasses
from collections.abc import Callable

import jax
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.cores.dense import dense
from t5x_like.nn.dims import Dims, subkey
from t5x_like.nn.linear import Linear
from t5x_like.nn.mask import Mask
from t5x_like.nn.position import Position
from t5x_like.parallel.constrain import constrain


@dataclasses.dataclass(frozen=True)
class Context:
  """What all layers of one call share.

  Attributes:
    mask: who sees whom among the tokens of this stack; its positions also drive the position scheme.
    bias: float32 [B or 1, N, T, S] from the position table that the stack's layers share.
    memory: [B, S, D] output of the encoder, for stacks with cross-attention.
    memory_mask: from this stack's queries to the encoder's keys.
    slot: int32 scalar, where in the cache this call's keys and values are written; None without a cache.
  """

  mask: Mask
  bias: jax.Array | None = None
  memory: jax.Array | None = None
  memory_mask: Mask | None = None
  slot: jax.Array | None = None


jax.tree_util.register_dataclass(Context)


class Attention(nnx.Module):
  """Query, key, value and output projections around an attention core.

  Kernels are two-dimensional ([D, N*H] and [N*H, D]), so that Adafactor factors them as T5 does.
  """

  def __init__(
    self,
    dims: Dims,
    rngs: nnx.Rngs,
    *,
    scale: float,
    query_init: Callable,
    position: Position | None = None,
    core: Callable = dense,
    dropout_rate: float = 0.0,
  ):
    D, N, K, H = dims.embed, dims.heads, dims.kv_heads, dims.head_dim
    init = params.fan_in_normal(D)
    self.query = Linear((D, N * H), ("embed", "heads"), query_init, rngs, unit=(1, H))
    self.key = Linear((D, K * H), ("embed", "kv_heads"), init, rngs, unit=(1, H))
    self.value = Linear((D, K * H), ("embed", "kv_heads"), init, rngs, unit=(1, H))
    self.out = Linear((N * H, D), ("heads", "embed"), params.fan_in_normal(N * H), rngs, unit=(H, 1))
    self.position = position or Position()
    self.core = core
    self.scale = scale
    self.head_dim = H
    self.dropout_rate = dropout_rate

  def project_kv(self, x_BSD: jax.Array, pos_BS: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Keys and values, each [B, S, K, H]."""
    k_BSKH = self._heads(self.key(x_BSD), "activation_kv_heads")
    v_BSKH = self._heads(self.value(x_BSD), "activation_kv_heads")
    return self.position.rotate(k_BSKH, pos_BS), v_BSKH

  def attend(self, x_BTD, k_BSKH, v_BSKH, mask: Mask, bias, key: jax.Array | None) -> jax.Array:
    """[B, T, D]: attention from `x` to the given keys and values."""
    q_BTNH = self.position.rotate(self._heads(self.query(x_BTD), "activation_heads"), mask.q_pos)
    own_bias = self.position.bias(mask.q_pos, mask.k_pos)
    if own_bias is not None:
      bias = own_bias if bias is None else bias + own_bias
    o_BTNH = self.core(
      q_BTNH, k_BSKH, v_BSKH, mask, bias, scale=self.scale, dropout_rate=self.dropout_rate, key=subkey(key, 0)
    )
    return self.out(o_BTNH.reshape(*o_BTNH.shape[:2], -1))

  def _heads(self, x: jax.Array, axis: str) -> jax.Array:
    return constrain(x.reshape(*x.shape[:-1], -1, self.head_dim), "batch", "length", axis, None)


class SelfAttention(Attention):
  """Attention among the tokens of one stack, through a cache where one is given."""

  def __call__(self, x_BTD: jax.Array, context: Context, cache: dict | None, key: jax.Array | None):
    """Returns ([B, T, D], {}, cache). A cache is {"k", "v"}: [B, S, K, H], new entries go to `context.slot` onwards."""
    mask = context.mask
    k_BSKH, v_BSKH = self.project_kv(x_BTD, mask.q_pos)
    if cache is not None:
      at = (0, context.slot, 0, 0)
      k_BSKH = jax.lax.dynamic_update_slice(cache["k"], k_BSKH.astype(cache["k"].dtype), at)
      v_BSKH = jax.lax.dynamic_update_slice(cache["v"], v_BSKH.astype(cache["v"].dtype), at)
      cache = {"k": k_BSKH, "v": v_BSKH}
    return self.attend(x_BTD, k_BSKH, v_BSKH, mask, context.bias, key), {}, cache


class CrossAttention(Attention):
  """Attention from a decoder to the encoder's output; its cache holds the projected memory, written once."""

  def project_memory(self, memory_BSD: jax.Array, mask: Mask) -> dict[str, jax.Array]:
    """The cache of this layer: keys and values of the whole memory."""
    k_BSKH, v_BSKH = self.project_kv(memory_BSD, mask.k_pos)
    return {"k": k_BSKH, "v": v_BSKH}

  def __call__(self, x_BTD: jax.Array, context: Context, cache: dict | None, key: jax.Array | None):
    kv = cache if cache is not None else self.project_memory(context.memory, context.memory_mask)
    return self.attend(x_BTD, kv["k"], kv["v"], context.memory_mask, None, key), {}, cache
