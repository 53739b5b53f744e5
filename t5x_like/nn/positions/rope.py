"""Rotary positions, which rotate queries and keys."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from t5x_like.errors import UserError
from t5x_like.nn.positions import Position


@dataclasses.dataclass(frozen=True)
class LinearScaling:
  """Scaling of all wavelengths by `factor` (position interpolation, Chen et al. 2023)."""

  factor: float

  def __call__(self, frequency: jax.Array) -> jax.Array:
    return frequency / self.factor


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
  """Scaling of long wavelengths by `factor`; short ones are kept, and those between are interpolated (Llama 3.1).

  Attributes:
    original_length: sequence length before the extension.
    low, high: wavelengths above `original_length / low` are scaled, those below `original_length / high` are not.
  """

  factor: float = 8.0
  low: float = 1.0
  high: float = 4.0
  original_length: int = 8192

  def __call__(self, frequency: jax.Array) -> jax.Array:
    turns = self.original_length * frequency / (2 * math.pi)  # full turns within the original length
    kept = jnp.clip((turns - self.low) / (self.high - self.low), 0.0, 1.0)
    return frequency * (kept + (1 - kept) / self.factor)


class Rope(Position):
  """Rotary positions (Su et al. 2021, section 3.2.2): pairs of channels rotate with the position.

  Channel i of the first half is paired with channel i of the second (GPT-NeoX, Llama) or, if `interleaved`, with its
  neighbour (the paper, PaLM). Only the first `fraction` of the channels rotate. `linear` or `llama3` stretches the
  wavelengths for sequences longer than in pretraining.
  """

  def __init__(
    self,
    *,
    theta: float = 10_000.0,
    fraction: float = 1.0,
    interleaved: bool = False,
    linear: LinearScaling | None = None,
    llama3: Llama3Scaling | None = None,
  ):
    if linear and llama3:
      raise UserError("config.model.design.position: found both 'linear' and 'llama3', expected one of them")
    self.theta = theta
    self.fraction = fraction
    self.interleaved = interleaved
    self.scaling = linear or llama3

  def rotate(self, x_BTNH: jax.Array, pos_BT: jax.Array) -> jax.Array:
    R = int(x_BTNH.shape[-1] * self.fraction)
    frequency = 1.0 / self.theta ** (jnp.arange(0, R, 2, dtype=jnp.float32) / R)
    if self.scaling is not None:
      frequency = self.scaling(frequency)
    angle_BT1R = pos_BT[..., None, None].astype(jnp.float32) * frequency
    sin, cos = jnp.sin(angle_BT1R), jnp.cos(angle_BT1R)
    turned, kept = x_BTNH[..., :R].astype(jnp.float32), x_BTNH[..., R:]
    if self.interleaved:
      a, b = turned[..., 0::2], turned[..., 1::2]
      turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(turned.shape)
    else:
      a, b = jnp.split(turned, 2, axis=-1)
      turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    return jnp.concatenate([turned.astype(x_BTNH.dtype), kept], -1)


make = Rope
