"""Padding and cutting of sequences, shared by several cores."""

import jax
import jax.numpy as jnp


def pad_to(x: jax.Array, length: int, axis: int = 1) -> jax.Array:
  """Pad `x` at the end with zeros (False) to `length` along `axis`."""
  missing = length - x.shape[axis]
  if missing == 0:
    return x
  widths = [(0, 0)] * x.ndim
  widths[axis] = (0, missing)
  return jnp.pad(x, widths)


def split_blocks(x: jax.Array, blocks: int, size: int, axis: int = 1) -> jax.Array:
  """Pad with zeros and cut into blocks: [..., length, ...] -> [..., blocks, size, ...]."""
  axis %= x.ndim
  x = pad_to(x, blocks * size, axis)
  return x.reshape(*x.shape[:axis], blocks, size, *x.shape[axis + 1 :])


def expand_to_toeplitz(x_NX: jax.Array, t: int, s: int) -> jax.Array:
  """Expand [N, t + s - 1] to Toeplitz matrices [N, t, s]: [n, i, j] is `x[n, j - i + t - 1]`.

  Rows are read from a periodic repetition of `x`, each shifted by one element. This avoids a
  gather, and a scatter in the gradient.
  """
  N = x_NX.shape[0]
  period = jnp.roll(jnp.pad(x_NX, ((0, 0), (0, 1))), 1 - t, axis=1)
  repeated = jnp.broadcast_to(period[:, None], (N, t, t + s)).reshape(N, t * (t + s))
  return repeated[:, : t * (t + s - 1)].reshape(N, t, t + s - 1)[:, :, :s]
