"""Rotary positions, which rotate queries and keys."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.errors import UserError
from t5x_like.nn.positions import Position
from t5x_like.parallel.constrain import platform


@dataclasses.dataclass(frozen=True)
class LinearScaling:
  """Scaling of all wavelengths by `factor` (position interpolation, Chen et al. 2023)."""

  factor: float

  def __call__(self, frequency: jax.Array, theta: float) -> jax.Array:
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

  def __call__(self, frequency: jax.Array, theta: float) -> jax.Array:
    turns = self.original_length * frequency / (2 * math.pi)  # full turns within the original length
    kept = jnp.clip((turns - self.low) / (self.high - self.low), 0.0, 1.0)
    return frequency * (kept + (1 - kept) / self.factor)


@dataclasses.dataclass(frozen=True)
class YarnScaling:
  """NTK-by-parts interpolation with a temperature of the logits, YaRN (Peng et al. 2023, arXiv:2309.00071, section 3).

  Channels that turn more than `fast` times within the original length are kept, those that turn less than `slow` times
  are stretched by `factor`; in between, the share falls linearly with the channel's index. Rotated queries and keys are
  multiplied by `amplitude`, so that logits grow by its square.

  Attributes:
    original_length: sequence length before the extension.
    attention: the amplitude; None for `0.1 ln(factor) + 1` (equation 22).
    whole: whether the two bounds are rounded outwards to whole channels, as in the authors' code.
  """

  factor: float = 8.0
  original_length: int = 8192
  fast: float = 32.0
  slow: float = 1.0
  attention: float | None = None
  whole: bool = True

  @property
  def amplitude(self) -> float:
    return 0.1 * math.log(max(self.factor, 1.0)) + 1.0 if self.attention is None else self.attention

  def __call__(self, frequency: jax.Array, theta: float) -> jax.Array:
    pairs = frequency.shape[0]
    low, high = (
      pairs * math.log(self.original_length / (2 * math.pi * turns)) / math.log(theta)
      for turns in (self.fast, self.slow)
    )
    low, high = (math.floor(low), math.ceil(high)) if self.whole else (low, high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    stretched = jnp.clip((jnp.arange(pairs, dtype=jnp.float32) - low) / (high - low or 1e-3), 0.0, 1.0)
    return frequency * (1 - stretched + stretched / self.factor)


class Rope(Position):
  """Rotary positions (Su et al. 2021, section 3.2.2): pairs of channels rotate with the position.

  Channel i of the first half is paired with channel i of the second (GPT-NeoX, Llama) or, if `interleaved`, with its
  neighbour (the paper, PaLM). Only the first `fraction` of the channels rotate. `linear`, `llama3` or `yarn` stretches
  the wavelengths for sequences longer than in pretraining.
  """

  def __init__(
    self,
    *,
    theta: float = 10_000.0,
    fraction: float = 1.0,
    interleaved: bool = False,
    linear: LinearScaling | None = None,
    llama3: Llama3Scaling | None = None,
    yarn: YarnScaling | None = None,
  ):
    given = [name for name, value in dict(linear=linear, llama3=llama3, yarn=yarn).items() if value]
    if len(given) > 1:
      raise UserError(f"config.model.design.position: found both {given[0]!r} and {given[1]!r}, expected one of them")
    self.theta = theta
    self.fraction = fraction
    self.interleaved = interleaved
    self.scaling = linear or llama3 or yarn
    self.amplitude = yarn.amplitude if yarn else 1.0

  def rotate(self, x_BTNH: jax.Array, pos_BT: jax.Array) -> jax.Array:
    R = int(x_BTNH.shape[-1] * self.fraction)
    frequency = 1.0 / self.theta ** (jnp.arange(0, R, 2, dtype=jnp.float32) / R)
    if self.scaling is not None:
      frequency = self.scaling(frequency, self.theta)
    angle_BT1P = pos_BT[..., None, None].astype(jnp.float32) * frequency
    sin_BT1P, cos_BT1P = self.amplitude * jnp.sin(angle_BT1P), self.amplitude * jnp.cos(angle_BT1P)
    turned = _turned(self.interleaved, x_BTNH[..., :R], cos_BT1P, sin_BT1P)
    return turned if R == x_BTNH.shape[-1] else jnp.concatenate([turned, x_BTNH[..., R:]], -1)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _turned(interleaved: bool, x_BTNR: jax.Array, cos_BT1P: jax.Array, sin_BT1P: jax.Array) -> jax.Array:
  """Turn P = R / 2 pairs of channels, each by its angle, in float32.

  Each channel is added to the other of its pair without splitting channels in two arrays, for which a TPU would write
  and read twice the memory, and the gradient is a turn back.
  """
  half = x_BTNR.shape[-1] // 2
  if interleaved:
    spread, sign = partial(jnp.repeat, repeats=2, axis=-1), np.tile([-1.0, 1.0], half)
  else:
    spread, sign = partial(jnp.tile, reps=2), np.repeat([-1.0, 1.0], half)
  others = _swapped(interleaved, x_BTNR).astype(jnp.float32) * (spread(sin_BT1P) * sign.astype(np.float32))
  return (x_BTNR.astype(jnp.float32) * spread(cos_BT1P) + others).astype(x_BTNR.dtype)


def _swapped(interleaved: bool, x_BTNR: jax.Array) -> jax.Array:
  """Return the other channel of each pair in its place."""
  half = x_BTNR.shape[-1] // 2
  if platform() == "tpu":  # a product that moves lanes, exactly
    order = np.arange(2 * half) ^ 1 if interleaved else np.roll(np.arange(2 * half), half)
    return jnp.matmul(x_BTNR, np.eye(2 * half)[:, order].astype(x_BTNR.dtype), precision=jax.lax.Precision.HIGHEST)
  if interleaved:
    return jnp.flip(x_BTNR.reshape(*x_BTNR.shape[:-1], half, 2), -1).reshape(x_BTNR.shape)
  return jnp.roll(x_BTNR, half, -1)


def _turned_back(interleaved, angles, g_BTNR):
  cos_BT1P, sin_BT1P = angles
  return _turned(interleaved, g_BTNR, cos_BT1P, -sin_BT1P), None, None


_turned.defvjp(lambda interleaved, x, *angles: (_turned(interleaved, x, *angles), angles), _turned_back)


make = Rope
