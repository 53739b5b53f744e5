"""Sines and cosines, added to the token vectors."""

import jax
import jax.numpy as jnp

from t5x_like.nn.positions import Position


class SinusoidalPosition(Position):
  """Sines and cosines with geometric wavelengths from 2 pi to 20,000 pi (Vaswani et al. 2017, section 3.5).

  `interleaved` alternates sines and cosines as in the paper; otherwise the first half of the channels are sines.
  """

  place = "inputs"

  def __init__(self, *, interleaved: bool = True):
    self.interleaved = interleaved

  def embed(self, x_BTD: jax.Array, pos_BT: jax.Array) -> jax.Array:
    D = x_BTD.shape[-1]
    frequency = 10_000.0 ** (-jnp.arange(0, D, 2, dtype=jnp.float32) / D)
    angle = pos_BT[..., None].astype(jnp.float32) * frequency
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    table = jnp.stack([sin, cos], -1).reshape(*pos_BT.shape, D) if self.interleaved else jnp.concatenate([sin, cos], -1)
    return x_BTD + table.astype(x_BTD.dtype)


make = SinusoidalPosition
