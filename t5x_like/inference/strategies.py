"""Decoding strategies: greedy, sampling and beam search.

A strategy is called as `strategy(model, batch, numbers, max_length=…, eos=…)` and returns int32 tokens
[B, K, max_length] and float32 scores [B, K], best first if they are ranked; a score of -inf marks a missing sequence.
`numbers` uint32 [B, 2] are the numbers of each row's text and sample. `predictions` is the number of predictions per
text, `rows` the number of batch rows it takes.
"""

import dataclasses
from collections.abc import Callable

import jax

from t5x_like.decoding.beam_search import GnmtPenalty, beam_search
from t5x_like.decoding.generate import drawn, generate, likeliest
from t5x_like.decoding.sampling import MinLength, MinP, Temperature, TopK, TopP, Transform
from t5x_like.errors import UserError

FILTERS: dict[str, Callable[[float], Transform]] = {
  "temperature": Temperature,
  "top_k": TopK,
  "top_p": TopP,
  "min_p": MinP,
}  # in the order of application
_STEEPEST = 10  # a larger length penalty overflows float32


@dataclasses.dataclass(frozen=True)
class Greedy:
  """The strategy that takes the likeliest next token."""

  transforms: tuple[Transform, ...] = ()
  predictions = rows = 1  # per text, in the output and in batches

  def __call__(self, model, batch, numbers_B2, *, max_length: int, eos: tuple[int, ...]):
    tokens_BT, log_p_BT = generate(model, batch, likeliest, max_length=max_length, transforms=self.transforms, eos=eos)
    return tokens_BT[:, None], log_p_BT.sum(axis=1, keepdims=True)


@dataclasses.dataclass(frozen=True)
class Sampling:
  """The strategy that draws tokens from the model's distribution, changed by the transforms.

  A sample depends only on the seed, the text's number and the sample's number.
  """

  seed: int
  predictions: int
  transforms: tuple[Transform, ...] = ()

  @property
  def rows(self) -> int:
    return self.predictions

  def __call__(self, model, batch, numbers_B2, *, max_length: int, eos: tuple[int, ...]):
    key = jax.random.key(self.seed)
    keys_B = jax.vmap(lambda n: jax.random.fold_in(jax.random.fold_in(key, n[0]), n[1]))(numbers_B2)
    tokens_BT, log_p_BT = generate(
      model, batch, drawn(keys_B), max_length=max_length, transforms=self.transforms, eos=eos
    )
    return tokens_BT[:, None], log_p_BT.sum(axis=1, keepdims=True)


@dataclasses.dataclass(frozen=True)
class Beams:
  """Beam search for the best `predictions` by `log-probability / ((5 + length) / 6)^length_penalty`."""

  beams: int
  predictions: int
  length_penalty: float
  transforms: tuple[Transform, ...] = ()
  rows = 1

  def __call__(self, model, batch, numbers_B2, *, max_length: int, eos: tuple[int, ...]):
    tokens_BKT, score_BK = beam_search(
      model,
      batch,
      max_length=max_length,
      beams=self.beams,
      length_penalty=GnmtPenalty(self.length_penalty),
      transforms=self.transforms,
      eos=eos,
    )
    return tokens_BKT[:, : self.predictions], score_BK[:, : self.predictions]


Strategy = Greedy | Sampling | Beams


def choose(
  *,
  beams: int = 1,
  samples: int = 1,
  seed: int | None = None,
  length_penalty: float | None = None,
  min_new_tokens: int | None = None,
  **filters: float,
) -> Strategy:
  """Return the strategy selected by the command line's flags.

  Args:
    filters: values by the names of `FILTERS`; any filter selects sampling.
  Raises:
    UserError: a value is out of range, or flags exclude each other.
  """
  for name, value, least in (("beams", beams, 1), ("samples", samples, 1), ("min_new_tokens", min_new_tokens, 0)):
    if value is not None and value < least:
      raise UserError(f"--{name}={value}: expected at least {least}")
  if seed is not None and not 0 <= seed < 2**32:
    raise UserError(f"--seed={seed}: expected 0 to 2^32 - 1")
  transforms = restrictions(filters)
  shortest = (MinLength(min_new_tokens),) if min_new_tokens else ()
  if beams > 1:
    if sampling := [name for name in (*FILTERS, "seed") if name in filters or name == "seed" and seed is not None]:
      raise UserError(f"--beams={beams} --{sampling[0]}: a beam search draws nothing; leave out one of the two")
    if samples > beams:
      raise UserError(f"--samples={samples} --beams={beams}: a search has as many sequences as beams; raise --beams")
    penalty = 0.6 if length_penalty is None else length_penalty
    if not abs(penalty) <= _STEEPEST:
      raise UserError(f"--length_penalty={penalty}: expected -{_STEEPEST} to {_STEEPEST}")
    return Beams(beams, samples, penalty, shortest)
  if length_penalty is not None:
    raise UserError(f"--length_penalty={length_penalty}: ranks the sequences of a beam search; give --beams=4 too")
  if filters or samples > 1:
    return Sampling(seed or 0, samples, (*shortest, *transforms))
  if seed is not None:
    raise UserError(f"--seed={seed}: nothing is drawn; add --temperature, --top_k, --top_p, --min_p or --samples")
  return Greedy(shortest)


def restrictions(filters: dict[str, float]) -> tuple[Transform, ...]:
  """Return the transforms of flags, in their order of application.

  Raises:
    UserError: a value is out of range.
  """
  return tuple(_made(name, filters[name]) for name in FILTERS if name in filters)


def _made(name: str, value: float) -> Transform:
  try:
    return FILTERS[name](value)
  except UserError as error:
    raise UserError(f"--{name}={value}: {str(error).partition(': ')[2]}") from None
