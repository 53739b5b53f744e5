"""Rotary positions, which rotate queries and keys."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like import slots
from t5x_like.errors import UserError
from t5x_like.nn.positions import Position
from t5x_like.parallel.constrain import platform


@dataclasses.dataclass(frozen=True)
class LinearScaling:
  """Scaling of all wavelengths by `factor` (position interpolation, Chen et al. 2023)."""

  factor: float

  def __call__(self, frequency_P: jax.Array, theta: float, length_B111: jax.Array) -> jax.Array:
    return frequency_P / self.factor


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
  """Scaling of long wavelengths by `factor`, as in Llama 3.1; short ones are kept.

  The wavelengths between are interpolated.

  Attributes:
    original_length: sequence length before the extension.
    low, high: wavelengths above `original_length / low` are scaled, shorter than `original_length /
      high` are not.
  """

  factor: float = 8.0
  low: float = 1.0
  high: float = 4.0
  original_length: int = 8192

  def __call__(self, frequency_P: jax.Array, theta: float, length_B111: jax.Array) -> jax.Array:
    # full turns within the original length
    turns = self.original_length * frequency_P / (2 * math.pi)
    unscaled = jnp.clip((turns - self.low) / (self.high - self.low), 0.0, 1.0)
    return frequency_P * (unscaled + (1 - unscaled) / self.factor)


@slots.rename_keys(whole="truncate")
@dataclasses.dataclass(frozen=True)
class YarnScaling:
  """NTK-by-parts interpolation with a temperature of the logits: YaRN.

  It follows Peng et al. 2023 (arXiv:2309.00071, section 3). Channels that turn more than `fast`
  times within the original length are kept, those that turn less than `slow` times are stretched by
  `factor`; in between, the share falls linearly with the channel's index. Rotated queries and keys
  are multiplied by `amplitude`, so that logits grow by its square.

  Attributes:
    original_length: sequence length before the extension.
    attention: the amplitude; None for `0.1 ln(factor) + 1` (equation 22).
    truncate: whether the two bounds are rounded outwards to whole channels, as in the authors' code
      and by `truncate` in `transformers`.
  """

  factor: float = 8.0
  original_length: int = 8192
  fast: float = 32.0
  slow: float = 1.0
  attention: float | None = None
  truncate: bool = True

  @property
  def amplitude(self) -> float:
    if self.attention is not None:
      return self.attention
    return 0.1 * math.log(max(self.factor, 1.0)) + 1.0

  def __call__(self, frequency_P: jax.Array, theta: float, length_B111: jax.Array) -> jax.Array:
    pairs = frequency_P.shape[0]
    low = self._channel(self.fast, theta, pairs)
    high = self._channel(self.slow, theta, pairs)
    if self.truncate:
      low = math.floor(low)
      high = math.ceil(high)
    low = max(low, 0)
    high = min(high, 2 * pairs - 1)
    channels = jnp.arange(pairs, dtype=jnp.float32)
    stretched = jnp.clip((channels - low) / (high - low or 1e-3), 0.0, 1.0)
    return frequency_P * (1 - stretched + stretched / self.factor)

  def _channel(self, turns: float, theta: float, pairs: int) -> float:
    """Return the channel that turns so many times within the original length."""
    return pairs * math.log(self.original_length / (2 * math.pi * turns)) / math.log(theta)


@dataclasses.dataclass(frozen=True)
class DynamicScaling:
  """A base that grows with the length of rows longer than in pretraining ("dynamic NTK").

  Attributes:
    factor: growth of the base with the length.
    original_length: sequence length up to which nothing changes.
  """

  factor: float = 2.0
  original_length: int = 2048

  def __call__(self, frequency_P: jax.Array, theta: float, length_B111: jax.Array) -> jax.Array:
    pairs = frequency_P.shape[0]
    length_B111 = jnp.maximum(length_B111, self.original_length).astype(jnp.float32)
    growth_B111 = self.factor * length_B111 / self.original_length - (self.factor - 1)
    # Channel i has the frequency theta^(-i / P), and theta grows by growth^(P / (P - 1)).
    return frequency_P * growth_B111 ** (-jnp.arange(pairs, dtype=jnp.float32) / max(pairs - 1, 1))


@dataclasses.dataclass(frozen=True)
class LongScaling:
  """A factor of each wavelength, one for short rows and one for long: LongRoPE.

  It follows Ding et al. 2024 (arXiv:2402.13753).

  Attributes:
    short, long: the factors of all pairs of channels, for rows up to `original_length` and for
      longer ones.
    original_length: sequence length before the extension.
    factor: the extension; it decides the amplitude, sqrt(1 + ln(factor) / ln(original_length)).
    attention: the amplitude, instead.
  """

  short: tuple[float, ...]
  long: tuple[float, ...]
  original_length: int
  factor: float = 1.0
  attention: float | None = None

  @property
  def amplitude(self) -> float:
    if self.attention is not None:
      return self.attention
    return math.sqrt(1 + math.log(max(self.factor, 1.0)) / math.log(self.original_length))

  def __call__(self, frequency_P: jax.Array, theta: float, length_B111: jax.Array) -> jax.Array:
    short_P = jnp.asarray(self.short, jnp.float32)
    long_P = jnp.asarray(self.long, jnp.float32)
    return frequency_P / jnp.where(length_B111 > self.original_length, long_P, short_P)


class Rope(Position):
  """Rotary positions (Su et al. 2021, section 3.2.2): pairs of channels rotate with the position.

  Channel i of the first half is paired with channel i of the second (GPT-NeoX, Llama) or, if
  `interleaved`, with its neighbour (the paper, PaLM). Only the first `fraction` of the channels
  rotate. `linear`, `llama3`, `yarn`, `dynamic` or `longrope` stretches the wavelengths for
  sequences longer than in pretraining; the last two by the length of each row, which its greatest
  position tells.
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
    dynamic: DynamicScaling | None = None,
    longrope: LongScaling | None = None,
  ):
    scalings = dict(linear=linear, llama3=llama3, yarn=yarn, dynamic=dynamic, longrope=longrope)
    names = [name for name, scaling in scalings.items() if scaling]
    if len(names) > 1:
      raise UserError(
        f"config.model.design.position: found both {names[0]!r} and {names[1]!r}, "
        "expected one of them"
      )
    self.theta = theta
    self.fraction = fraction
    self.interleaved = interleaved
    self.scaling = scalings[names[0]] if names else None
    self.amplitude = getattr(self.scaling, "amplitude", 1.0)

  def rotate(self, x_BTNH: jax.Array, pos_BT: jax.Array) -> jax.Array:
    R = int(x_BTNH.shape[-1] * self.fraction)
    frequency = 1.0 / self.theta ** (jnp.arange(0, R, 2, dtype=jnp.float32) / R)
    if self.scaling is not None:
      length_B111 = jnp.max(pos_BT, axis=-1, keepdims=True)[..., None, None] + 1
      frequency = self.scaling(frequency, self.theta, length_B111)
    angle_BT1P = pos_BT[..., None, None].astype(jnp.float32) * frequency
    sin_BT1P = self.amplitude * jnp.sin(angle_BT1P)
    cos_BT1P = self.amplitude * jnp.cos(angle_BT1P)
    rotated = _rotate(self.interleaved, x_BTNH[..., :R], cos_BT1P, sin_BT1P)
    if R == x_BTNH.shape[-1]:
      return rotated
    return jnp.concatenate([rotated, x_BTNH[..., R:]], -1)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rotate(
  interleaved: bool, x_BTNR: jax.Array, cos_BT1P: jax.Array, sin_BT1P: jax.Array
) -> jax.Array:
  """Rotate P = R / 2 pairs of channels, each by its angle, in float32.

  Each channel is added to the other of its pair without splitting channels in two arrays, for which
  a TPU would write and read twice the memory, and the gradient is a turn back.
  """
  half = x_BTNR.shape[-1] // 2
  if interleaved:
    spread = partial(jnp.repeat, repeats=2, axis=-1)
    sign = np.tile([-1.0, 1.0], half)
  else:
    spread = partial(jnp.tile, reps=2)
    sign = np.repeat([-1.0, 1.0], half)
  signed_sin = spread(sin_BT1P) * sign.astype(np.float32)
  partners = _swap_pairs(interleaved, x_BTNR).astype(jnp.float32) * signed_sin
  return (x_BTNR.astype(jnp.float32) * spread(cos_BT1P) + partners).astype(x_BTNR.dtype)


def _swap_pairs(interleaved: bool, x_BTNR: jax.Array) -> jax.Array:
  """Return the other channel of each pair in its place."""
  half = x_BTNR.shape[-1] // 2
  if platform() == "tpu":  # a product that moves lanes, exactly
    order = np.arange(2 * half) ^ 1 if interleaved else np.roll(np.arange(2 * half), half)
    permutation = np.eye(2 * half)[:, order].astype(x_BTNR.dtype)
    return jnp.matmul(x_BTNR, permutation, precision=jax.lax.Precision.HIGHEST)
  if interleaved:
    pairs = x_BTNR.reshape(*x_BTNR.shape[:-1], half, 2)
    return jnp.flip(pairs, -1).reshape(x_BTNR.shape)
  return jnp.roll(x_BTNR, half, -1)


def _rotate_forward(interleaved, x_BTNR, cos_BT1P, sin_BT1P):
  return _rotate(interleaved, x_BTNR, cos_BT1P, sin_BT1P), (cos_BT1P, sin_BT1P)


def _rotate_backward(interleaved, angles, g_BTNR):
  cos_BT1P, sin_BT1P = angles
  return _rotate(interleaved, g_BTNR, cos_BT1P, -sin_BT1P), None, None


_rotate.defvjp(_rotate_forward, _rotate_backward)


make = Rope
