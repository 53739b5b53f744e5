"""Transforms of the next token's scores, applied in the order given before a token is chosen.

`Temperature(0.7), TopK(40), TopP(0.9)` are for sampling; `ForcedBos(5), MinLength(10)` also suit
greedy and beam search, as do the transforms in `penalties`, which read the tokens so far. A
transform is any function `(scores_BV, step) -> scores_BV`; tokens that it rules out get -inf.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from t5x_like.errors import UserError


@dataclasses.dataclass(frozen=True)
class DecodingStep:
  """The progress of a generation.

  Attributes:
    index: int32 scalar, the number of tokens generated so far.
    max_length: maximal number of generated tokens.
    eos: the ids that end a row.
    prompt_BP: int32, as in `generate.PrefilledModel`.
    tokens: int32 [B, max_length], or [B, K, max_length] for beams; positions from `index` on are
      not generated yet.
  """

  index: jax.Array
  max_length: int
  eos: tuple[int, ...]
  prompt_BP: jax.Array | None = None
  tokens: jax.Array | None = None

  def history(self) -> jax.Array:
    """Return the prompts and the tokens so far: int32 [rows, P + max_length].

    Padding before the prompt and positions after the tokens are -1. The last token is at position
    P + index - 1 of every row. The program of a step has a history only if a transform calls this.
    """
    tokens_BT = self.tokens.reshape(-1, self.max_length)
    beams = len(tokens_BT) // len(self.prompt_BP)
    prompt_BP = jnp.repeat(self.prompt_BP, beams, axis=0)
    is_generated_T = jnp.arange(self.max_length) < self.index
    generated_BT = jnp.where(is_generated_T, tokens_BT, -1)
    return jnp.concatenate([prompt_BP, generated_BT], axis=1)

  def last_tokens(self, count: int) -> jax.Array:
    """Return int32 [rows, count], the last tokens of the history; -1 where it is shorter."""
    history_BH = jnp.pad(self.history(), ((0, 0), (count, 0)), constant_values=-1)
    end = self.prompt_BP.shape[1] + self.index
    return jax.lax.dynamic_slice_in_dim(history_BH, end, count, axis=1)


# With lower or higher temperatures, logits divided by them would leave the range of float32.
_COLDEST = 1e-6
_HOTTEST = 1e6

Transform = Callable[[jax.Array, DecodingStep], jax.Array]


def apply_transforms(
  transforms: Sequence[Transform], scores_BV: jax.Array, step: DecodingStep
) -> jax.Array:
  """Apply all transforms, in order.

  Scores are float32: logits when sampling, log-probabilities in a beam search.
  """
  for transform in transforms:
    scores_BV = transform(scores_BV, step)
  return scores_BV


@dataclasses.dataclass(frozen=True)
class Temperature:
  """Division of the logits by `value`: below 1 sharpens the distribution, above 1 flattens it."""

  value: float

  def __post_init__(self):
    if not _COLDEST <= self.value <= _HOTTEST:
      raise UserError(
        f"Temperature: found {self.value}, expected a number above 0, from {_COLDEST:g} to "
        f"{_HOTTEST:g}; use greedy for the likeliest token"
      )

  def __call__(self, scores_BV: jax.Array, step: DecodingStep) -> jax.Array:
    return scores_BV / self.value


@dataclasses.dataclass(frozen=True)
class TopK:
  """Restriction to the `k` likeliest tokens, including ties with the last (Fan et al. 2018)."""

  k: int

  def __post_init__(self):
    if self.k < 1:
      raise UserError(f"TopK: found {self.k}, expected at least 1; leave it out to keep all tokens")

  def __call__(self, scores_BV: jax.Array, step: DecodingStep) -> jax.Array:
    # A sort can be split over devices by rows, a `jax.lax.top_k` cannot.
    k = min(self.k, scores_BV.shape[-1])
    negated_BV = jnp.sort(-scores_BV, axis=-1)
    least_B1 = -negated_BV[:, k - 1 : k]
    return jnp.where(scores_BV >= least_B1, scores_BV, -jnp.inf)


@dataclasses.dataclass(frozen=True)
class TopP:
  """Restriction to the fewest likeliest tokens whose probabilities reach `p`, including ties.

  It follows Holtzman et al. 2020.
  """

  p: float

  def __post_init__(self):
    _check_probability("TopP", self.p)

  def __call__(self, scores_BV: jax.Array, step: DecodingStep) -> jax.Array:
    sorted_BV = -jnp.sort(-scores_BV, axis=-1)
    probs_BV = jax.nn.softmax(sorted_BV, axis=-1)
    # A token is kept if the tokens before it do not reach p.
    earlier_BV = jnp.cumsum(probs_BV, axis=-1) - probs_BV
    is_kept_BV = earlier_BV < self.p
    is_kept_BV |= jnp.arange(probs_BV.shape[-1]) == 0  # p may be less than float32 can express
    kept_BV = jnp.where(is_kept_BV, sorted_BV, jnp.inf)
    least_B1 = jnp.min(kept_BV, axis=-1, keepdims=True)
    return jnp.where(scores_BV >= least_B1, scores_BV, -jnp.inf)


@dataclasses.dataclass(frozen=True)
class MinP:
  """Restriction to tokens at least `p` times as likely as the likeliest (Nguyen et al. 2024)."""

  p: float

  def __post_init__(self):
    _check_probability("MinP", self.p)

  def __call__(self, scores_BV: jax.Array, step: DecodingStep) -> jax.Array:
    least_B1 = jnp.max(scores_BV, axis=-1, keepdims=True) + math.log(self.p)
    return jnp.where(scores_BV >= least_B1, scores_BV, -jnp.inf)


@dataclasses.dataclass(frozen=True)
class Typical:
  """Restriction to the tokens whose surprise is nearest the entropy: locally typical sampling.

  They are the fewest whose probabilities reach `mass` (Meister et al. 2023, equation 10), and ties
  with the last.
  """

  mass: float

  def __post_init__(self):
    _check_probability("Typical", self.mass)

  def __call__(self, scores_BV: jax.Array, step: DecodingStep) -> jax.Array:
    log_p_BV = jax.nn.log_softmax(scores_BV, axis=-1)
    p_BV = jnp.exp(log_p_BV)
    terms_BV = jnp.where(p_BV > 0, p_BV * log_p_BV, 0.0)
    entropy_B1 = -jnp.sum(terms_BV, axis=-1, keepdims=True)
    distance_BV = jnp.abs(-log_p_BV - entropy_B1)
    nearest_BV, p_BV = jax.lax.sort((distance_BV, p_BV), num_keys=1)
    is_below_mass_BV = jnp.cumsum(p_BV, axis=-1) < self.mass
    count_B1 = jnp.sum(is_below_mass_BV, axis=-1, keepdims=True)
    last_B1 = jnp.minimum(count_B1, p_BV.shape[-1] - 1)
    largest_distance_B1 = jnp.take_along_axis(nearest_BV, last_B1, axis=-1)
    return jnp.where(distance_BV <= largest_distance_B1, scores_BV, -jnp.inf)


@dataclasses.dataclass(frozen=True)
class ForcedBos:
  """A forced first token, `token` (mBART's target language); it does not change a beam's score."""

  token: int

  def __call__(self, scores_BV: jax.Array, step: DecodingStep) -> jax.Array:
    forced_BV = _allow_only(scores_BV, self.token)
    return jnp.where(step.index == 0, forced_BV, scores_BV)


@dataclasses.dataclass(frozen=True)
class ForcedEos:
  """A forced end, `token`, for rows that reach the last step (BART).

  It does not change a beam's score.
  """

  token: int

  def __call__(self, scores_BV: jax.Array, step: DecodingStep) -> jax.Array:
    is_last = step.index == step.max_length - 1
    forced_BV = _allow_only(scores_BV, self.token)
    return jnp.where(is_last, forced_BV, scores_BV)


@dataclasses.dataclass(frozen=True)
class MinLength:
  """A minimum of `length` new tokens per row, not counting the end token."""

  length: int

  def __post_init__(self):
    if self.length < 0:
      raise UserError(f"MinLength: found {self.length}, expected at least 0")

  def __call__(self, scores_BV: jax.Array, step: DecodingStep) -> jax.Array:
    is_early = step.index < self.length
    is_end_V = is_in(jnp.arange(scores_BV.shape[-1]), step.eos)
    return jnp.where(is_early & is_end_V, -jnp.inf, scores_BV)


def is_in(ids: jax.Array, members: tuple[int, ...]) -> jax.Array:
  """Return bool, in the shape of `ids`: True for ids among `members`."""
  is_equal = ids[..., None] == jnp.asarray(members, ids.dtype)
  return jnp.any(is_equal, axis=-1)


def row_maximum(scores_BV: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return each row's greatest score and its first index (int32), [B] each.

  It takes two plain reductions: on CPU, a third of the work of XLA's `argmax`.
  """
  V = scores_BV.shape[1]
  value_B = jnp.max(scores_BV, axis=1)
  index_BV = jnp.where(scores_BV == value_B[:, None], jnp.arange(V), V)
  first_index_B = jnp.min(index_BV, axis=1)
  return value_B, jnp.minimum(first_index_B, V - 1)


def _allow_only(scores_BV: jax.Array, token: int) -> jax.Array:
  """Return scores of 0 for one token and -inf for all others."""
  is_allowed_V = is_in(jnp.arange(scores_BV.shape[-1]), (token,))
  row_V = jnp.where(is_allowed_V, 0.0, -jnp.inf)
  return jnp.broadcast_to(row_V.astype(scores_BV.dtype), scores_BV.shape)


def _check_probability(name: str, p: float) -> None:
  """Raise UserError if a transform's probability is out of range."""
  if not 0 < p <= 1:
    raise UserError(f"{name}: found {p}, expected a number above 0 and at most 1")
