"""Transforms of the next token's scores, applied in the order given before a token is chosen.

`Temperature(0.7), TopK(40), TopP(0.9)` are for sampling; `ForcedBos(5), MinLength(10)` suit greedy and beam search as
well. A transform is any function `(scores_BV, step) -> scores_BV`; tokens it rules out get -inf.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from t5x_like.errors import UserError


@dataclasses.dataclass(frozen=True)
class Step:
  """The progress of a generation.

  Attributes:
    index: int32 scalar, the number of tokens generated so far.
    max_length: the most that will be generated.
    eos: the ids that end a row.
  """

  index: jax.Array
  max_length: int
  eos: tuple[int, ...]


_COLDEST, _HOTTEST = 1e-6, 1e6  # beyond these, quotients of logits leave float32

Transform = Callable[[jax.Array, Step], jax.Array]


def apply(transforms: Sequence[Transform], scores_BV: jax.Array, step: Step) -> jax.Array:
  """All transforms, in order. Scores are float32: logits when sampling, log-probabilities in a beam search."""
  for transform in transforms:
    scores_BV = transform(scores_BV, step)
  return scores_BV


@dataclasses.dataclass(frozen=True)
class Temperature:
  """Logits divided by `value`: below 1 sharpens the distribution, above 1 flattens it."""

  value: float

  def __post_init__(self):
    if not _COLDEST <= self.value <= _HOTTEST:
      raise UserError(
        f"Temperature: found {self.value}, expected a number above 0, from {_COLDEST:g} to {_HOTTEST:g}; use greedy for"
        " the likeliest token"
      )

  def __call__(self, scores_BV: jax.Array, step: Step) -> jax.Array:
    return scores_BV / self.value


@dataclasses.dataclass(frozen=True)
class TopK:
  """Keeps the `k` likeliest tokens (Fan et al. 2018), and ties with the last of them."""

  k: int

  def __post_init__(self):
    if self.k < 1:
      raise UserError(f"TopK: found {self.k}, expected at least 1; leave it out to keep all tokens")

  def __call__(self, scores_BV: jax.Array, step: Step) -> jax.Array:
    k = min(self.k, scores_BV.shape[-1])  # a sort splits over devices by rows, a `jax.lax.top_k` does not
    return jnp.where(scores_BV >= -jnp.sort(-scores_BV, axis=-1)[:, k - 1 : k], scores_BV, -jnp.inf)


@dataclasses.dataclass(frozen=True)
class TopP:
  """Keeps the smallest set of likeliest tokens whose probabilities reach `p` (Holtzman et al. 2020), and ties."""

  p: float

  def __post_init__(self):
    _check_probability("TopP", self.p)

  def __call__(self, scores_BV: jax.Array, step: Step) -> jax.Array:
    sorted_BV = -jnp.sort(-scores_BV, axis=-1)
    probs_BV = jax.nn.softmax(sorted_BV, axis=-1)
    kept_BV = jnp.cumsum(probs_BV, axis=-1) - probs_BV < self.p  # the tokens before it do not reach p
    kept_BV |= jnp.arange(probs_BV.shape[-1]) == 0  # p may be less than float32 can express
    least_B1 = jnp.min(jnp.where(kept_BV, sorted_BV, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(scores_BV >= least_B1, scores_BV, -jnp.inf)


@dataclasses.dataclass(frozen=True)
class MinP:
  """Keeps tokens at least `p` times as likely as the likeliest (Nguyen et al. 2024)."""

  p: float

  def __post_init__(self):
    _check_probability("MinP", self.p)

  def __call__(self, scores_BV: jax.Array, step: Step) -> jax.Array:
    least_B1 = jnp.max(scores_BV, axis=-1, keepdims=True) + math.log(self.p)
    return jnp.where(scores_BV >= least_B1, scores_BV, -jnp.inf)


@dataclasses.dataclass(frozen=True)
class ForcedBos:
  """The first new token is `token` (the target language of mBART); it costs a beam nothing."""

  token: int

  def __call__(self, scores_BV: jax.Array, step: Step) -> jax.Array:
    return jnp.where(step.index == 0, _only(scores_BV, (self.token,)), scores_BV)


@dataclasses.dataclass(frozen=True)
class ForcedEos:
  """A row that reaches the last step ends there, with `token` (BART); it costs a beam nothing."""

  token: int

  def __call__(self, scores_BV: jax.Array, step: Step) -> jax.Array:
    return jnp.where(step.index == step.max_length - 1, _only(scores_BV, (self.token,)), scores_BV)


@dataclasses.dataclass(frozen=True)
class MinLength:
  """No row ends before it has `length` new tokens, not counting the end token."""

  length: int

  def __call__(self, scores_BV: jax.Array, step: Step) -> jax.Array:
    return jnp.where((step.index < self.length) & is_in(jnp.arange(scores_BV.shape[-1]), step.eos), -jnp.inf, scores_BV)


def is_in(ids: jax.Array, some: tuple[int, ...]) -> jax.Array:
  """bool, of the shape of `ids`: which are among `some`."""
  return jnp.any(ids[..., None] == jnp.asarray(some, ids.dtype), axis=-1)


def greatest(scores_BV: jax.Array) -> tuple[jax.Array, jax.Array]:
  """[B] each: the greatest score of a row, and int32, the first place that has it. Two plain reductions, for XLA on CPU
  a third of the work of an `argmax`."""
  V, value_B = scores_BV.shape[1], jnp.max(scores_BV, axis=1)
  places_BV = jnp.where(scores_BV == value_B[:, None], jnp.arange(V), V)
  return value_B, jnp.minimum(jnp.min(places_BV, axis=1), V - 1)


def _only(scores_BV: jax.Array, tokens: tuple[int, ...]) -> jax.Array:
  row_V = jnp.where(is_in(jnp.arange(scores_BV.shape[-1]), tokens), 0.0, -jnp.inf)
  return jnp.broadcast_to(row_V.astype(scores_BV.dtype), scores_BV.shape)


def _check_probability(name: str, p: float) -> None:
  if not 0 < p <= 1:
    raise UserError(f"{name}: found {p}, expected a number above 0 and at most 1")
