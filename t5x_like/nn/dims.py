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
  """Sizes of one stack of blocks. `kv_heads` below `heads` is grouped-query attention, 1 is
  multi-query."""

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
  """Zero entries with probability `rate` and rescale the rest; one mask along the `shared` axes;
  none without a key."""

  rate: float | jax.Array = 0.0
  shared: tuple[int, ...] = ()

  def __call__(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
    if key is None or (not isinstance(self.rate, jax.Array) and self.rate == 0.0):
      return x
    keep, rate = dropout_mask(
      key, self.rate, tuple(1 if i - x.ndim in self.shared else n for i, n in enumerate(x.shape))
    )
    return jnp.where(keep, x * (1.0 / (1.0 - rate)), jnp.zeros_like(x)).astype(x.dtype)


NO_DROPOUT = Dropout()


def dropout_mask(
  key: jax.Array, rate: float | jax.Array, shape: tuple[int, ...]
) -> tuple[jax.Array, float | jax.Array]:
  """Return (bool array, False where dropout zeroes an entry; the exact rate, a multiple of
  2^-16)."""
  threshold = (
    jnp.round(rate * 2**16).astype(jnp.int32)
    if isinstance(rate, jax.Array)
    else round(rate * 2**16)
  )
  first = jax.lax.broadcasted_iota(jnp.int32, (shape[0], *(1 for _ in shape[1:])), 0)
  bits = hash_bits(jax.random.bits(key, (2,)).astype(jnp.int32), [first], (1, *shape[1:]))
  return bits & 0xFFFF >= threshold, threshold / 2**16


def hash_bits(seeds, ids: list, shape: tuple[int, ...], part=0) -> jax.Array:
  """Return 32 random bits for each place of the `part`-th piece of `shape`: a hash of seeds, ids
  and place, all int32.

  XLA fuses its ten operations into the reader. JAX's generator takes a hundred, and its result goes
  through memory.
  """
  place = jnp.int32(part)
  shift = jax.lax.shift_right_logical
  for axis, size in enumerate(shape):
    place = place * size + jax.lax.broadcasted_iota(jnp.int32, shape, axis)

  def mixed(x, key):  # the finalizer of MurmurHash3, with a key between its products
    x = ((x ^ shift(x, 16)) * jnp.int32(-2048144789)) ^ key
    x = (x ^ shift(x, 13)) * jnp.int32(-1028477387)
    return x ^ shift(x, 16)

  for number in ids:
    seeds = mixed(mixed(seeds[0], number), seeds[1]), mixed(seeds[1], number)
  return mixed(place ^ seeds[0], seeds[1])


def subkey(key: jax.Array | None, index: int) -> jax.Array | None:
  """Derive the `index`-th key from `key`; None stays None (no dropout)."""
  return None if key is None else jax.random.fold_in(key, index)
