"""The sizes of a Transformer, and the letters that stand for them in shapes.

  B batch          T query length    S key length     D embed (model) width
  N query heads    K key/value heads H head width     F feed-forward width
  V vocabulary     L layers          E experts

A name such as `x_BTD` is an array of shape [B, T, D]; the same letters appear in einsums.
"""

import dataclasses

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Dims:
  """Sizes of one stack of blocks. `kv_heads` below `heads` is grouped-query attention, 1 is multi-query."""

  embed: int
  heads: int
  kv_heads: int
  head_dim: int
  mlp: int
  layers: int

  def __post_init__(self):
    if self.heads % self.kv_heads:
      raise ValueError(f"heads={self.heads} must be a multiple of kv_heads={self.kv_heads}")


def dropout(
  x: jax.Array, rate: float | jax.Array, key: jax.Array | None, *, broadcast_axes: tuple[int, ...] = (-2,)
) -> jax.Array:
  """Zero entries of `x` with probability `rate` and rescale the rest; do nothing if `key` is None.

  One mask is shared along `broadcast_axes`. T5's code shares it along the length axis (axis -2), which makes random
  bits a negligible part of the step.
  """
  if key is None or (not isinstance(rate, jax.Array) and rate == 0.0):
    return x
  shape = list(x.shape)
  for axis in broadcast_axes:
    shape[axis] = 1
  keep = jax.random.bernoulli(key, 1.0 - rate, tuple(shape))
  return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x)).astype(x.dtype)


def subkey(key: jax.Array | None, index: int) -> jax.Array | None:
  """Derive the `index`-th key from `key`; None stays None (no dropout)."""
  return None if key is None else jax.random.fold_in(key, index)
