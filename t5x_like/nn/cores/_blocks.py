"""Padding and cutting of sequences, for several cores."""

import jax
import jax.numpy as jnp


def padded(x: jax.Array, length: int, axis: int = 1) -> jax.Array:
  """`x` padded at the end with zeros (False) to `length` along `axis`."""
  missing = length - x.shape[axis]
  if missing == 0:
    return x
  return jnp.pad(x, [(0, missing) if a == axis % x.ndim else (0, 0) for a in range(x.ndim)])


def blocked(x: jax.Array, blocks: int, size: int, axis: int = 1) -> jax.Array:
  """[..., length, ...] -> [..., blocks, size, ...], padded with zeros at the end."""
  axis %= x.ndim
  return padded(x, blocks * size, axis).reshape(*x.shape[:axis], blocks, size, *x.shape[axis + 1 :])
