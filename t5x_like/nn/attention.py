"""Multi-head self-attention and cross-attention."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.cores import Core
from t5x_like.nn.cores.dense import Dense
from t5x_like.nn.dims import NO_DROPOUT, Dims, Dropout, subkey
from t5x_like.nn.layer import CacheStart, Context, Layer
from t5x_like.nn.linear import Linear, apply_jointly
from t5x_like.nn.mask import Mask
from t5x_like.nn.norm import Identity
from t5x_like.nn.positions import Position
from t5x_like.nn.remat import name_activation
from t5x_like.parallel.constrain import constrain, platform

CAUSAL_SCOPE = "causal_attention"  # named scope in profiles; the FLOP count halves its operations


class Attention(Layer):
  """Query, key, value and output projections around an attention core.

  Kernels are two-dimensional ([D, N*H] and [N*H, D]), so that Adafactor factors them as T5 does.

  Args:
    scale: factor of the logits, usually 1/sqrt(H).
    init: initializer of the key kernel, and the default of `query_init` and `value_init`.
    width: input width; the output width `dims.embed` if None.
    biases: which projections have a bias: "qkv" or "qv" (queries and values), and "out".
    q_norm, k_norm: norms over the head width, before positions (Henry et al. 2020, Dehghani et al.
      2023).
    position: the layer's position scheme, in addition to the one that the stack's layers share.
    core: computes logits, softmax and weighted sum.
    softcap: logits become `softcap * tanh(logits / softcap)` (Gemma 2).
    window: see `Mask`.

  Attributes:
    log_name: the name under which logs and records list the core in use.
  """

  log_name = "attention_core"

  def __init__(
    self,
    dims: Dims,
    rngs: nnx.Rngs,
    *,
    scale: float,
    init: Callable | None = None,
    query_init: Callable | None = None,
    value_init: Callable | None = None,
    out_init: Callable | None = None,
    width: int | None = None,
    biases: tuple[str, ...] = (),
    q_norm: nnx.Module | None = None,
    k_norm: nnx.Module | None = None,
    position: Position | None = None,
    core: Core | None = None,
    softcap: float | None = None,
    window: int | None = None,
    dropout: Dropout = NO_DROPOUT,
  ):
    N = dims.heads
    K = dims.kv_heads
    H = dims.head_dim
    D = width or dims.embed
    init = init or params.fan_in_normal(D)
    out_init = out_init or params.fan_in_normal(N * H)
    key_bias = "qkv" in biases
    qv_bias = key_bias or "qv" in biases
    out_bias = "out" in biases
    q_axes = ("embed", "heads")
    kv_axes = ("embed", "kv_heads")
    out_axes = ("heads", "embed")
    self.query = Linear((D, N * H), q_axes, query_init or init, rngs, unit=(1, H), bias=qv_bias)
    self.key = Linear((D, K * H), kv_axes, init, rngs, unit=(1, H), bias=key_bias)
    self.value = Linear((D, K * H), kv_axes, value_init or init, rngs, unit=(1, H), bias=qv_bias)
    self.out = Linear((N * H, dims.embed), out_axes, out_init, rngs, unit=(H, 1), bias=out_bias)
    self.q_norm = q_norm or Identity()
    self.k_norm = k_norm or Identity()
    self.position = position or Position()
    self.core = core or Dense()
    self.scale = scale
    self.softcap = softcap
    self.window = window
    self.head_dim = H
    self.kv_heads = K
    self.dropout = dropout

  def keys_and_values(
    self, k_BSX: jax.Array, v_BSX: jax.Array, pos_BS: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Return keys and values, each [B, S, K, H], from projections [B, S, K * H]."""
    k_BSKH = self.k_norm(self._heads(k_BSX, "activation_kv_heads"))
    v_BSKH = self._heads(v_BSX, "activation_kv_heads")
    k_BSKH = self.position.rotate(k_BSKH, pos_BS)
    k_BSKH = name_activation(k_BSKH, "key")
    v_BSKH = name_activation(v_BSKH, "value")
    return k_BSKH, v_BSKH

  def attend(
    self, core: Core, q_BTX, k_BSKH, v_BSKH, mask: Mask, bias, key: jax.Array | None
  ) -> jax.Array:
    """Attend from query projections [B, T, N * H] to keys and values; return [B, T, D]."""
    q_BTNH = self.q_norm(self._heads(q_BTX, "activation_heads"))
    q_BTNH = self.position.rotate(q_BTNH, mask.q_pos)
    scaled_BTX = q_BTNH.reshape(q_BTX.shape) * self.scale
    scaled_BTX = name_activation(scaled_BTX, "query")
    q_BTNH = scaled_BTX.reshape(q_BTNH.shape)
    if self.window is not None:
      mask = dataclasses.replace(mask, window=self.window)
    with attention_scope(mask):
      o_BTNH = core(
        q_BTNH,
        k_BSKH,
        v_BSKH,
        mask,
        bias,
        self.position,
        log_name=self.log_name,
        scale=1.0,
        softcap=self.softcap,
        dropout=self.dropout,
        key=subkey(key, 0),
      )
    o_BTNH = name_activation(o_BTNH.astype(q_BTX.dtype), "context")
    o_BTX = o_BTNH.reshape(*o_BTNH.shape[:2], -1)
    return name_activation(self.out(o_BTX), "attention_out")

  def _heads(self, x_BTX: jax.Array, axis: str) -> jax.Array:
    """Split [B, T, heads * H] into [B, T, heads, H]; `axis` is the heads' logical axis."""
    x_BTNH = x_BTX.reshape(*x_BTX.shape[:-1], -1, self.head_dim)
    return constrain(x_BTNH, "batch", "length", axis, None)


def attention_scope(mask: Mask):
  """Return the named scope of the core's operations; it states causality for the FLOP count."""
  is_causal = mask.causal and mask.k_prefix is None
  return jax.named_scope(CAUSAL_SCOPE if is_causal else "attention")


class SelfAttention(Attention):
  """Attention among the tokens of one stack, optionally through a cache."""

  # Layers with the same input, which `decoding.cpu` fuses.
  SHARED_INPUT = ("query", "key", "value")

  def __call__(self, x_BTD: jax.Array, context: Context, cache: dict | None, key: jax.Array | None):
    """Return ([B, T, D], {}, cache).

    A cache is {"k", "v"}: [B, K, S, H]; new entries start at `context.slot`.
    """
    mask = context.mask
    core = self.core
    q_BTX, k_BTX, v_BTX = apply_jointly((self.query, self.key, self.value), x_BTD)
    k_BSKH, v_BSKH = self.keys_and_values(k_BTX, v_BTX, mask.q_pos)
    if cache is not None:
      core = core.for_decoding()
      cache = {
        "k": _write_cache(cache["k"], k_BSKH, context.slot),
        "v": _write_cache(cache["v"], v_BSKH, context.slot),
      }
      k_BSKH = cache["k"].swapaxes(1, 2)
      v_BSKH = cache["v"].swapaxes(1, 2)
    y_BTD = self.attend(core, q_BTX, k_BSKH, v_BSKH, mask, context.bias, key)
    return y_BTD, {}, cache

  def start_cache(self, start: CacheStart) -> dict[str, jax.Array]:
    # With heads before slots, the products of a decoding step need no transposition.
    shape = (start.batch, self.kv_heads, start.slots, self.head_dim)
    zeros = jnp.zeros(shape, cache_dtype(start.dtype))
    zeros = constrain(zeros, "batch", "activation_kv_heads", None, None)
    return {"k": zeros, "v": zeros}


def _write_cache(cache_BKSH: jax.Array, x_BTKH: jax.Array, slot: jax.Array) -> jax.Array:
  """Write the keys or values of new tokens into a cache, starting at `slot`."""
  new_BKTH = x_BTKH.swapaxes(1, 2).astype(cache_BKSH.dtype)
  return jax.lax.dynamic_update_slice(cache_BKSH, new_BKTH, (0, 0, slot, 0))


class CrossAttention(Attention):
  """Attention from a decoder to the encoder's output.

  Its cache holds the keys and values of the encoder's output, which are computed once.
  """

  log_name = "cross_attention_core"

  def __call__(self, x_BTD: jax.Array, context: Context, cache: dict | None, key: jax.Array | None):
    mask = context.memory_mask
    if cache is None:
      k_BSKH, v_BSKH = self._project_memory(context.memory, mask)
    else:
      # Without the barrier, XLA hoists the swap out of the loop over steps, and on CPU transposes
      # back at every step.
      k_BKSH, v_BKSH = jax.lax.optimization_barrier((cache["k"], cache["v"]))
      k_BSKH = k_BKSH.swapaxes(1, 2)
      v_BSKH = v_BKSH.swapaxes(1, 2)
    q_BTX = self.query(x_BTD)
    y_BTD = self.attend(self.core, q_BTX, k_BSKH, v_BSKH, mask, None, key)
    return y_BTD, {}, cache

  def _project_memory(self, memory_BSD: jax.Array, mask: Mask) -> tuple[jax.Array, jax.Array]:
    """Return the keys and values of the encoder's output, each [B, S, K, H]."""
    k_BSX, v_BSX = apply_jointly((self.key, self.value), memory_BSD)
    return self.keys_and_values(k_BSX, v_BSX, mask.k_pos)

  def start_cache(self, start: CacheStart) -> dict[str, jax.Array]:
    k_BSKH, v_BSKH = self._project_memory(start.memory, start.memory_mask)
    dtype = cache_dtype(start.dtype)
    k_BKSH = k_BSKH.swapaxes(1, 2).astype(dtype)
    v_BKSH = v_BSKH.swapaxes(1, 2).astype(dtype)
    return {"k": k_BKSH, "v": v_BKSH}


def cache_dtype(dtype: jnp.dtype) -> jnp.dtype:
  """Return the dtype of cached keys and values: float32 on CPU, else `dtype`.

  On CPU, XLA computes batched products of bfloat16 in float32, so a bfloat16 cache would be cast as
  a whole at every step.
  """
  return jnp.dtype(jnp.float32) if platform() == "cpu" else dtype
