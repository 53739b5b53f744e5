"""What every sublayer of a block is: the one signature, and what a layer remembers while decoding."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn.mask import Mask


@dataclasses.dataclass(frozen=True)
class Context:
  """What all layers of one call share.

  Attributes:
    mask: who sees whom among the tokens of this stack; its positions also drive the position scheme.
    bias: what the stack's shared position scheme adds to the logits: float32 [B or 1, N, T, S], or the scheme itself
      for cores that compute it piece by piece.
    memory: [B, S, D] output of the encoder, for stacks with cross-attention.
    memory_mask: from this stack's queries to the encoder's keys.
    slot: int32 scalar, where in the cache this call's keys and values are written; None without a cache.
    valid: bool [B, T], the tokens of this stack that are not padding, where `mask` cannot tell (a causal mask needs
      no validity).
  """

  mask: Mask
  bias: jax.Array | nnx.Module | None = None
  memory: jax.Array | None = None
  memory_mask: Mask | None = None
  slot: jax.Array | None = None
  valid: jax.Array | None = None


jax.tree_util.register_dataclass(Context)


@dataclasses.dataclass(frozen=True)
class CacheStart:
  """What a layer needs to know to make its cache: room for `slots` tokens, and the encoder's output if there is one."""

  batch: int
  slots: int
  dtype: jnp.dtype
  memory: jax.Array | None = None
  memory_mask: Mask | None = None


class Layer(nnx.Module):
  """A sublayer of a block, called as `layer(x_BTD, context, cache, key) -> (y_BTD, aux, cache)`.

  `aux` is a dict of scalars, such as the losses of a router; `cache` is a pytree, None in a layer that keeps nothing.
  """

  def start_cache(self, start: CacheStart):
    return None
