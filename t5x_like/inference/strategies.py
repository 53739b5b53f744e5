"""Decoding strategies: greedy, sampling and beam search.

A strategy is called as `strategy(model, batch, numbers, max_length=…, eos=…, stop=None)` and
returns int32 tokens [B, K, max_length] and float32 scores [B, K], best first if they are ranked; a
score of -inf marks a missing sequence. `numbers` uint32 [B, 2] are the numbers of each row's text
and sample. `predictions` is the number of predictions per text, `rows` the number of rows in a
batch per text.
"""

import dataclasses
from typing import Literal

import jax

from t5x_like.decoding.beam_search import (
  AttainableScore,
  GnmtPenalty,
  Penalty,
  PowerPenalty,
  TransformersRule,
  beam_search,
)
from t5x_like.decoding.generate import choose_by_keys, choose_likeliest, generate
from t5x_like.decoding.sampling import Transform
from t5x_like.decoding.transforms import FILTERS, build_transforms
from t5x_like.errors import UserError

_MAX_LENGTH_PENALTY = 10  # a larger one overflows float32


@dataclasses.dataclass(frozen=True)
class Greedy:
  """The strategy that takes the likeliest next token."""

  transforms: tuple[Transform, ...] = ()
  predictions = 1
  rows = 1

  def __call__(self, model, batch, numbers_B2, **ends):
    tokens_BT, log_p_BT = generate(
      model, batch, choose_likeliest, transforms=self.transforms, **ends
    )
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

  def __call__(self, model, batch, numbers_B2, **ends):
    key = jax.random.key(self.seed)
    keys_B = jax.vmap(lambda n: jax.random.fold_in(jax.random.fold_in(key, n[0]), n[1]))(numbers_B2)
    tokens_BT, log_p_BT = generate(
      model, batch, choose_by_keys(keys_B), transforms=self.transforms, **ends
    )
    return tokens_BT[:, None], log_p_BT.sum(axis=1, keepdims=True)


@dataclasses.dataclass(frozen=True)
class Beams:
  """Beam search for the best `predictions` by `log-probability / length_penalty(length)`."""

  beams: int
  predictions: int
  length_penalty: Penalty
  transforms: tuple[Transform, ...] = ()
  rule: AttainableScore = AttainableScore()
  rows = 1

  def __call__(self, model, batch, numbers_B2, **ends):
    rules = {
      "length_penalty": self.length_penalty,
      "rule": self.rule,
      "transforms": self.transforms,
    }
    tokens_BKT, score_BK = beam_search(model, batch, beams=self.beams, **rules, **ends)
    return tokens_BKT[:, : self.predictions], score_BK[:, : self.predictions]


Strategy = Greedy | Sampling | Beams


def choose_strategy(
  *,
  beams: int = 1,
  samples: int = 1,
  seed: int | None = None,
  length_penalty: float | None = None,
  length_power: float | None = None,
  early_stopping: bool | Literal["never"] | None = None,
  **values: float,
) -> Strategy:
  """Return the strategy selected by the command line's flags.

  Args:
    early_stopping: the setting of a published model, whose beams stop as in `transformers`; None
      stops them as in T5X.
    values: values by the names of `decoding.transforms`; any filter selects sampling.
  Raises:
    UserError: a value is out of range, or flags exclude each other.
  """
  for name, value in (("beams", beams), ("samples", samples)):
    if value < 1:
      raise UserError(f"--{name}={value}: expected at least 1")
  if seed is not None and not 0 <= seed < 2**32:
    raise UserError(f"--seed={seed}: expected 0 to 2^32 - 1")
  transforms = build_transforms(values)
  filters = [name for name in FILTERS if name in values]
  ranking_flags = {"length_penalty": length_penalty, "length_power": length_power}
  ranking_flags = {name: value for name, value in ranking_flags.items() if value is not None}
  if beams > 1:
    sampling_flags = list(filters)
    if seed is not None:
      sampling_flags.append("seed")
    if sampling_flags:
      raise UserError(
        f"--beams={beams} --{sampling_flags[0]}: a beam search draws nothing; leave out one of "
        "the two"
      )
    if samples > beams:
      raise UserError(
        f"--samples={samples} --beams={beams}: a search has as many sequences as "
        "beams; raise --beams"
      )
    for name, value in ranking_flags.items():
      if not abs(value) <= _MAX_LENGTH_PENALTY:
        raise UserError(
          f"--{name}={value}: expected -{_MAX_LENGTH_PENALTY} to {_MAX_LENGTH_PENALTY}"
        )
    if len(ranking_flags) > 1:
      raise UserError(
        f"--length_penalty={length_penalty} --length_power={length_power}: leave out one of the two"
      )
    if length_power is None:
      penalty: Penalty = GnmtPenalty(ranking_flags.get("length_penalty", 0.6))
    else:
      penalty = PowerPenalty(length_power)
    rule = AttainableScore() if early_stopping is None else TransformersRule(early_stopping)
    return Beams(beams, samples, penalty, transforms, rule)
  for name, value in ranking_flags.items():
    raise UserError(f"--{name}={value}: ranks the sequences of a beam search; give --beams=4 too")
  if filters or samples > 1:
    return Sampling(seed or 0, samples, transforms)
  if seed is not None:
    names = ", ".join(f"--{name}" for name in FILTERS)
    raise UserError(f"--seed={seed}: nothing is drawn; add {names} or --samples")
  return Greedy(transforms)
