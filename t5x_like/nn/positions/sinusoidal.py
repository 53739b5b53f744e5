"""Sines and cosines, added to the token vectors."""

import jax
import jax.numpy as jnp

from t5x_like.nn.positions import Position
from t5x_like.slots import NonNegativeInt, PositiveFloat


class SinusoidalPosition(Position):
  """Sines and cosines with geometric wavelengths (Vaswani et al. 2017, section 3.5).

  The wavelengths grow from 2 pi to 20,000 pi.

  Args:
    interleaved: alternate sines and cosines as in the paper; otherwise the first half of the
      channels are sines.
    offset: position of the first token (fairseq reserves two).
    last_frequency: frequency of the last pair of channels, 1e-4 in fairseq and Tensor2Tensor; None
      means the paper's, which is higher by a factor of 10,000^(2/D).
  """

  owner = "inputs"  # added once, to the inputs of the stack

  def __init__(
    self,
    *,
    interleaved: bool = True,
    offset: NonNegativeInt = 0,
    last_frequency: PositiveFloat | None = None,
  ):
    self.interleaved = interleaved
    self.offset = offset
    self.last_frequency = last_frequency

  def embed(self, x_BTD: jax.Array, pos_BT: jax.Array) -> jax.Array:
    D = x_BTD.shape[-1]
    frequency = 10_000.0 ** (-jnp.arange(0, D, 2, dtype=jnp.float32) / D)
    if self.last_frequency is not None:
      exponent = jnp.arange(D // 2, dtype=jnp.float32) / max(D // 2 - 1, 1)
      frequency = self.last_frequency**exponent
    pos32_BT1 = (pos_BT[..., None] + self.offset).astype(jnp.float32)
    angle = pos32_BT1 * frequency
    sin = jnp.sin(angle)
    cos = jnp.cos(angle)
    if self.interleaved:
      vectors = jnp.stack([sin, cos], -1).reshape(*pos_BT.shape, D)
    else:
      vectors = jnp.concatenate([sin, cos], -1)
    return x_BTD + vectors.astype(x_BTD.dtype)


make = SinusoidalPosition
