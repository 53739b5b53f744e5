"""How positions enter a Transformer: one protocol, each scheme filling in the hooks it needs.

Positions are explicit integers, so packed sequences and decoding from a cache need no special case. Schemes with
learned relative tables are in `relative_position`.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.nn import params


class Position(nnx.Module):
  """No positions: every hook is the identity.

  Attributes:
    biased: whether `bias` gives something.
    query_dependent: whether `logits` and `values` do; only the dense core can honour these.
  """

  biased = False
  query_dependent = False

  def embed(self, x_BTD: jax.Array, pos_BT: jax.Array) -> jax.Array:
    """Adds an absolute encoding to the token embeddings."""
    return x_BTD

  def rotate(self, x_BTNH: jax.Array, pos_BT: jax.Array) -> jax.Array:
    """Turns queries or keys by their position."""
    return x_BTNH

  def bias(self, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array | None:
    """float32 [B or 1, N, T, S], added to the attention logits; depends on positions alone."""
    return None


class SinusoidalPosition(Position):
  """Sines and cosines of geometric wavelengths from 2 pi to 20,000 pi (Vaswani et al. 2017, section 3.5).

  `interleaved` alternates sines and cosines as in the paper; otherwise the first half of the channels are sines.
  """

  def __init__(self, *, interleaved: bool = True):
    self.interleaved = interleaved

  def embed(self, x_BTD: jax.Array, pos_BT: jax.Array) -> jax.Array:
    D = x_BTD.shape[-1]
    frequency = 10_000.0 ** (-jnp.arange(0, D, 2, dtype=jnp.float32) / D)
    angle = pos_BT[..., None].astype(jnp.float32) * frequency
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    table = jnp.stack([sin, cos], -1).reshape(*pos_BT.shape, D) if self.interleaved else jnp.concatenate([sin, cos], -1)
    return x_BTD + table.astype(x_BTD.dtype)


class LearnedPosition(Position):
  """A vector for each of `length` positions; row `offset` is that of position 0 (BART and RoBERTa keep two rows)."""

  def __init__(self, length: int, dim: int, rngs: nnx.Rngs, *, init, offset: int = 0):
    self.table = params.param(rngs, init, (length + offset, dim), (None, "embed"))
    self.length = length
    self.offset = offset

  def embed(self, x_BTD: jax.Array, pos_BT: jax.Array) -> jax.Array:
    if x_BTD.shape[1] > self.length:
      raise UserError(
        f"the model has positions for {self.length} tokens, found a length of {x_BTD.shape[1]}; shorten "
        "the sequences or make a model with more positions"
      )
    return x_BTD + jnp.take(self.table[...], pos_BT + self.offset, axis=0, mode="clip").astype(x_BTD.dtype)


@dataclasses.dataclass(frozen=True)
class LinearScaling:
  """All wavelengths longer by `factor` (position interpolation, Chen et al. 2023)."""

  factor: float

  def __call__(self, frequency: jax.Array) -> jax.Array:
    return frequency / self.factor


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
  """Long wavelengths longer by `factor`, short ones as they were, and a ramp between (Llama 3.1).

  Attributes:
    original_length: of the sequences before the extension.
    low, high: wavelengths above `original_length / low` are scaled, those below `original_length / high` are not.
  """

  factor: float = 8.0
  low: float = 1.0
  high: float = 4.0
  original_length: int = 8192

  def __call__(self, frequency: jax.Array) -> jax.Array:
    turns = self.original_length * frequency / (2 * math.pi)  # that fit in the original length
    kept = jnp.clip((turns - self.low) / (self.high - self.low), 0.0, 1.0)
    return frequency * (kept + (1 - kept) / self.factor)


class Rope(Position):
  """Rotary positions (Su et al. 2021, section 3.2.2): pairs of channels turn with the position.

  Channel i of the first half is paired with channel i of the second (GPT-NeoX, Llama), or, `interleaved`, with its
  neighbour (the paper, PaLM). The first `fraction` of the channels turn, the others stay.
  """

  def __init__(self, *, theta: float = 10_000.0, fraction: float = 1.0, interleaved: bool = False, scaling=None):
    self.theta = theta
    self.fraction = fraction
    self.interleaved = interleaved
    self.scaling = scaling

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


class Alibi(Position):
  """A penalty on the logits that grows with the distance, steeper in some heads than in others (Press et al. 2022).

  For a number of heads that is no power of two, the slopes are those of the next lower one followed by every second of
  the next higher one (the paper's code, BLOOM); `mpt` takes all of the next higher one, every second first (MPT).
  """

  biased = True

  def __init__(self, heads: int, *, mpt: bool = False):
    self.slopes = alibi_slopes(heads, mpt=mpt)

  def bias(self, q_pos_BT: jax.Array, k_pos_BS: jax.Array) -> jax.Array:
    distance_B1TS = jnp.abs(k_pos_BS[:, None, :] - q_pos_BT[:, :, None])[:, None].astype(jnp.float32)
    return -jnp.asarray(self.slopes, jnp.float32)[:, None, None] * distance_B1TS


def alibi_slopes(heads: int, *, mpt: bool = False) -> tuple[float, ...]:
  """Geometric slopes, `2^(-8 i / heads)` for a power of two (Press et al. 2022, section 3)."""
  low = 2 ** math.floor(math.log2(heads))
  powers = [2.0 ** (-8 * (i + 1) / low) for i in range(low)]
  if low == heads:
    return tuple(powers)
  double = [2.0 ** (-8 * (i + 1) / (2 * low)) for i in range(2 * low)]
  return tuple((double[1::2] + double[0::2])[:heads] if mpt else (powers + double[0::2])[:heads])
