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
  """Sizes of one stack of blocks.

  `kv_heads` below `heads` is grouped-query attention, 1 is multi-query.
  """

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
  """Zero entries with probability `rate` and rescale the others; does nothing without a key.

  All entries along the `shared` axes, which are negative, share one mask.
  """

  rate: float | jax.Array = 0.0
  shared: tuple[int, ...] = ()

  def __call__(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
    if key is None or (not isinstance(self.rate, jax.Array) and self.rate == 0.0):
      return x
    mask_shape = list(x.shape)
    for axis in self.shared:
      if -axis <= x.ndim:
        mask_shape[axis] = 1
    keep, rate = dropout_mask(key, self.rate, tuple(mask_shape))
    rescaled = x * (1.0 / (1.0 - rate))
    return jnp.where(keep, rescaled, jnp.zeros_like(x)).astype(x.dtype)


NO_DROPOUT = Dropout()


def dropout_mask(
  key: jax.Array, rate: float | jax.Array, shape: tuple[int, ...]
) -> tuple[jax.Array, float | jax.Array]:
  """Draw a mask of dropout.

  Returns:
    (bool array, False where dropout zeroes an entry; the exact rate, a multiple of 2^-16)
  """
  if isinstance(rate, jax.Array):
    threshold = jnp.round(rate * 2**16).astype(jnp.int32)
  else:
    threshold = round(rate * 2**16)
  row_shape = (shape[0], *[1] * (len(shape) - 1))
  row = jax.lax.broadcasted_iota(jnp.int32, row_shape, 0)
  seeds = jax.random.bits(key, (2,)).astype(jnp.int32)
  bits = hash_bits(seeds, [row], (1, *shape[1:]))
  return bits & 0xFFFF >= threshold, threshold / 2**16


def hash_bits(seeds, ids: list, shape: tuple[int, ...], part=0) -> jax.Array:
  """Return 32 random bits for each entry of an array: a hash of seeds, ids and index, all int32.

  XLA fuses its ten operations into the reader. JAX's generator takes a hundred, and its result goes
  through memory.

  Args:
    seeds: two numbers.
    ids: numbers, or arrays that broadcast with `shape`.
    shape, part: the shape of the `part`-th of several equal arrays, which differ in their bits.
  """
  index = jnp.int32(part)
  for axis, size in enumerate(shape):
    index = index * size + jax.lax.broadcasted_iota(jnp.int32, shape, axis)
  for number in ids:
    first = _mix(_mix(seeds[0], number), seeds[1])
    second = _mix(seeds[1], number)
    seeds = (first, second)
  return _mix(index ^ seeds[0], seeds[1])


def _mix(x: jax.Array, key) -> jax.Array:
  """Apply the finalizer of MurmurHash3, with a key between its products."""
  shift = jax.lax.shift_right_logical
  x = ((x ^ shift(x, 16)) * jnp.int32(-2048144789)) ^ key
  x = (x ^ shift(x, 13)) * jnp.int32(-1028477387)
  return x ^ shift(x, 16)


def subkey(key: jax.Array | None, index: int) -> jax.Array | None:
  """Derive the `index`-th key from `key`; None stays None (no dropout)."""
  return None if key is None else jax.random.fold_in(key, index)
