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


@dataclasses.dataclass(frozen=True)
class Dropout:
  """Zero entries with probability `rate` and rescale the rest; one mask along the `shared` axes; none without a key."""

  rate: float | jax.Array = 0.0
  shared: tuple[int, ...] = ()

  def __call__(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
    if key is None or (not isinstance(self.rate, jax.Array) and self.rate == 0.0):
      return x
    keep, rate = kept(key, self.rate, tuple(1 if i - x.ndim in self.shared else n for i, n in enumerate(x.shape)))
    return jnp.where(keep, x * (1.0 / (1.0 - rate)), jnp.zeros_like(x)).astype(x.dtype)


NO_DROPOUT = Dropout()


def kept(key: jax.Array, rate: float | jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, float | jax.Array]:
  """Return (bool array, False where dropout zeroes an entry; the exact rate: two entries share 32 random bits)."""
  threshold = jnp.round(rate * 2**16).astype(jnp.uint32) if isinstance(rate, jax.Array) else round(rate * 2**16)
  # Entries that share bits are half an axis apart: a TPU would pad pairs of neighbours to 64 times their size.
  axis = len(shape) - (2 if len(shape) > 1 and shape[-2] % 2 == 0 else 1)
  bits = jax.random.bits(key, (*shape[:axis], -(-shape[axis] // 2), *shape[axis + 1 :]))
  keep = jnp.concatenate([bits & 0xFFFF >= threshold, bits >> 16 >= threshold], axis)
  return jax.lax.slice_in_dim(keep, 0, shape[axis], axis=axis), threshold / 2**16


def subkey(key: jax.Array | None, index: int) -> jax.Array | None:
  """Derive the `index`-th key from `key`; None stays None (no dropout)."""
  return None if key is None else jax.random.fold_in(key, index)
