"""The interface of every sublayer: its signature and its cache."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn.mask import Mask


@dataclasses.dataclass(frozen=True)
class Context:
  """The inputs that all layers share in one call.

  Attributes:
    mask: the self-attention mask; its positions also drive the position scheme.
    bias: the position bias that the stack's layers share: float32 [B or 1, N, T, S], or the scheme
      itself for cores that compute it piece by piece.
    memory: [B, S, D] output of the encoder, for stacks with cross-attention.
    memory_mask: the cross-attention mask, from this stack's queries to the encoder's keys.
    slot: int32 scalar, the cache slot where this call's keys and values start; None without a
      cache.
    valid: bool [B, T], False for padding, if `mask` lacks it (a causal mask needs no
      validity).
    position_vectors, memory_position_vectors: [B, T, D] and [B, S, D], added to queries and keys by
      `contrib.detection.positioned_attention`.
    depth: float32 [layers of a block], their depth in the model from 0 to 1; None unless drop-path
      rates grow with it.
  """

  mask: Mask
  bias: jax.Array | nnx.Module | None = None
  memory: jax.Array | None = None
  memory_mask: Mask | None = None
  slot: jax.Array | None = None
  valid: jax.Array | None = None
  position_vectors: jax.Array | None = None
  memory_position_vectors: jax.Array | None = None
  depth: jax.Array | None = None


jax.tree_util.register_dataclass(Context)


@dataclasses.dataclass(frozen=True)
class CacheStart:
  """Inputs for building a layer's cache: its sizes, and the encoder's output if there is one."""

  batch: int
  slots: int
  dtype: jnp.dtype
  memory: jax.Array | None = None
  memory_mask: Mask | None = None


class Statistics:
  """Sums over the tokens of a layer, as a pytree; `scalars` reduces them in the end."""

  def scalars(self) -> dict[str, jax.Array]:
    raise TypeError(f"{type(self).__name__} must define `scalars`")


class Layer(nnx.Module):
  """A sublayer of a block, called as `layer(x_BTD, context, cache, key) -> (y_BTD, aux, cache)`.

  `aux` is a dict of scalars and `Statistics`, such as a router's; `cache` is a pytree, None in
  layers without state.
  """

  def start_cache(self, start: CacheStart):
    return None
