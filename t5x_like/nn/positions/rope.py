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
    return frequency_P * self.factors(frequency_P)

  def factors(self, frequency_P: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
    """Return by how much each frequency is multiplied: [P], of the frequencies' type."""
    # full turns within the original length
    turns_P = self.original_length * frequency_P / (2 * math.pi)
    unscaled_P = ((turns_P - self.low) / (self.high - self.low)).clip(0.0, 1.0)
    return unscaled_P + (1 - unscaled_P) / self.factor


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
    channel_P = jnp.arange(pairs, dtype=jnp.float32)
    width = high - low or 1e-3
    stretched_P = jnp.clip((channel_P - low) / width, 0.0, 1.0)
    factor_P = 1 - stretched_P + stretched_P / self.factor
    return frequency_P * factor_P

  def _channel(self, turns: float, theta: float, pairs: int) -> float:
    """Return the channel that makes this number of turns within the original length."""
    wavelength = self.original_length / (2 * math.pi * turns)
    return pairs * math.log(wavelength) / math.log(theta)


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
    exponent_P = -jnp.arange(pairs, dtype=jnp.float32) / max(pairs - 1, 1)
    return frequency_P * growth_B111**exponent_P


@dataclasses.dataclass(frozen=True)
class LongScaling:
  """A factor of each wavelength, one for short rows and one for long: LongRoPE.

  It follows Ding et al. 2024 (arXiv:2402.13753).

  Attributes:
    short, long: the factors of all pairs of channels, for rows up to `original_length` and for
      longer ones.
    original_length: sequence length before the extension.
    factor: the extension.
    attention: the amplitude; None is sqrt(1 + ln(factor) / ln(original_length)).
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
    factor_B11P = jnp.where(length_B111 > self.original_length, long_P, short_P)
    return frequency_P / factor_B11P


class Rope(Position):
  """Rotary positions (Su et al. 2021, section 3.2.2): pairs of channels rotate with the position.

  Channel i of the first half is paired with channel i of the second (GPT-NeoX, Llama) or, if
  `interleaved`, with its neighbour (the paper, PaLM). Only the first `fraction` of the channels
  rotate. `linear`, `llama3`, `yarn`, `dynamic` or `longrope` stretches the wavelengths for
  sequences longer than in pretraining; the last two by the length of each row, which is its largest
  position plus one.
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
    exponent_P = jnp.arange(0, R, 2, dtype=jnp.float32) / R
    frequency = 1.0 / self.theta**exponent_P
    if self.scaling is not None:
      last_pos_B1 = jnp.max(pos_BT, axis=-1, keepdims=True)
      length_B111 = last_pos_B1[..., None, None] + 1
      frequency = self.scaling(frequency, self.theta, length_B111)
    angle_BT1P = pos_BT[..., None, None].astype(jnp.float32) * frequency
    sin_BT1P = self.amplitude * jnp.sin(angle_BT1P)
    cos_BT1P = self.amplitude * jnp.cos(angle_BT1P)
    rotated_BTNR = _rotate(self.interleaved, x_BTNH[..., :R], cos_BT1P, sin_BT1P)
    if R == x_BTNH.shape[-1]:
      return rotated_BTNR
    return jnp.concatenate([rotated_BTNR, x_BTNH[..., R:]], -1)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rotate(
  interleaved: bool, x_BTNR: jax.Array, cos_BT1P: jax.Array, sin_BT1P: jax.Array
) -> jax.Array:
  """Rotate P = R / 2 pairs of channels, each by its angle, in float32.

  Each channel is added to the other of its pair without splitting channels in two arrays, for which
  a TPU would write and read twice the memory, and the gradient is the reverse rotation.
  """
  half = x_BTNR.shape[-1] // 2
  if interleaved:
    spread = partial(jnp.repeat, repeats=2, axis=-1)
    sign = np.tile([-1.0, 1.0], half)
  else:
    spread = partial(jnp.tile, reps=2)
    sign = np.repeat([-1.0, 1.0], half)
  sin_BT1R = spread(sin_BT1P) * sign.astype(np.float32)
  partners_BTNR = _swap_pairs(interleaved, x_BTNR).astype(jnp.float32)
  sin_part_BTNR = partners_BTNR * sin_BT1R
  cos_part_BTNR = x_BTNR.astype(jnp.float32) * spread(cos_BT1P)
  rotated_BTNR = cos_part_BTNR + sin_part_BTNR
  return rotated_BTNR.astype(x_BTNR.dtype)


def _swap_pairs(interleaved: bool, x_BTNR: jax.Array) -> jax.Array:
  """Swap the two channels of each pair."""
  half = x_BTNR.shape[-1] // 2
  if platform() == "tpu":  # a product that moves lanes, exactly
    channels = np.arange(2 * half)
    order = channels ^ 1 if interleaved else np.roll(channels, half)
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
  d_x_BTNR = _rotate(interleaved, g_BTNR, cos_BT1P, -sin_BT1P)
  return d_x_BTNR, None, None


_rotate.defvjp(_rotate_forward, _rotate_backward)


make = Rope
