"""Several tasks in one, each drawn at its rate.

    config.task = {
      "name": "mixture",
      "shared": {"inputs_length": 512},
      "parts": {
        "news": {"name": "span_corruption", "store": "data/news"},
        "books": {"name": "span_corruption", "store": "data/books", "mean_noise_span_length": 8.0},
      },
      "rates": {"news": 1, "books": 2},  # or "equal", "proportional", "temperature", "unimax"
    }

`data/mixture.py` defines the schedule and the rates. An evaluation sees one period, in which every
part occurs at its rate; evaluate a part on its own to see each of its examples once.

A part may be a mixture: it divides its rate among its parts by its own rates, and counts as many
examples as its parts do together. Worked example: news has rate 1, and a mixture of books (3) and
papers (1) has rate 2. Six draws then contain news twice, books three times and papers once.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from t5x_like import config, slots
from t5x_like.data import mixture, task_features
from t5x_like.data.features import Feature, Features
from t5x_like.data.task import Task, TaskArguments, build_at, unfingerprinted
from t5x_like.errors import UserError, did_you_mean
from t5x_like.slots import PositiveInt
from t5x_like.vocabularies import Vocabulary

_DRAWS = "the fingerprint covers the parts and their draws in a period"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(TaskArguments):
  """The arguments of a mixture.

  Attributes:
    parts: each part's task by label: `name` and arguments.
    rates: the parts' rates by label, in any unit (missing ones are 1), or the rule that computes
      them.
    maximum: for proportional and temperature rates, the largest number of examples that counts for
      a part.
    temperature: the temperature of `rates="temperature"`.
    draws, epochs: for `rates="unimax"`, the number of examples that the run reads, `batch_size *
      total_steps`, and how often it may read each of them.
    weights: for rates that depend on numbers of examples, the factor of each part's number, by
      label; missing ones are 1.
    period: the number of slots in a period of the schedule, at most 16,777,216; every period has
      the same number of slots of each part, its share rounded to whole slots.
    shared: default arguments of all parts.
    label: the name in metrics; by default `mixture`.
  """

  parts: dict = unfingerprinted(_DRAWS)
  rates: dict | Literal["equal", "proportional", "temperature", "unimax"] = unfingerprinted(
    _DRAWS, default="equal"
  )
  maximum: int | None = unfingerprinted(_DRAWS, default=None)
  temperature: float = unfingerprinted(_DRAWS, default=1.0)
  draws: PositiveInt | None = unfingerprinted(_DRAWS, default=None)
  epochs: PositiveInt = unfingerprinted(_DRAWS, default=1)
  weights: dict = unfingerprinted(_DRAWS, default_factory=dict)
  period: int = unfingerprinted(_DRAWS, default=10_000)
  shared: dict = unfingerprinted(_DRAWS, default_factory=dict)
  label: str | None = unfingerprinted("it only names the task", default=None)

  def features(self, vocabulary: Vocabulary) -> Features:
    """Return the features of the mixture, each with its greatest size in any part."""
    common: Features = {}
    for part in self.parts.values():
      for name, feature in task_features.declare({**self.shared, **part}).items():
        sizes = zip(feature.shape, common.get(name, feature).shape)
        common[name] = Feature(tuple(max(pair) for pair in sizes), feature.dtype)
    return common

  def build(self) -> mixture.Mixture:
    """Build the parts and return their mixture.

    Raises:
      UserError: there are no parts, a task is unknown or refuses its arguments, a rate is not a
        number or belongs to no part, or the parts cannot be mixed. The message names part and key.
    """
    return self.build_at("task")

  def build_at(self, slot: str) -> mixture.Mixture:
    """Build the mixture whose arguments are at `config.<slot>`."""
    explicit_rates = dict(self.rates) if hasattr(self.rates, "keys") else {}
    self._check(f"config.{slot}", explicit_rates)
    tasks = {}
    for name, part in sorted(self.parts.items()):
      tasks[name] = _build_part(f"{slot}.parts.{name}", self.split, part, self.shared)
    if self.rates in ("proportional", "temperature", "unimax"):
      shares = self._computed_rates(tasks)
    else:
      shares = [explicit_rates.get(name, 1.0) for name in tasks]
    return mixture.mix(
      tasks,
      dict(zip(tasks, shares, strict=True)),
      period=self.period,
      name=self.label or "mixture",
    )

  def _check(self, where: str, explicit_rates: Mapping[str, Any]) -> None:
    """Raise UserError for parts, rates, weights or draws that do not belong together."""
    if not self.parts:
      raise UserError(f"{where}.parts: found none, expected at least one task by label")
    for name in self.parts:
      slots.check_name(f"{where}.parts", name)
    _check_factors(f"{where}.rates", explicit_rates, self.parts)
    _check_factors(f"{where}.weights", self.weights, self.parts)
    if (self.rates == "unimax") != (self.draws is not None):
      raise UserError(
        f"{where}.draws: found {self.draws}, expected the run's number of examples with "
        "rates=unimax, and None with other rates"
      )

  def _computed_rates(self, tasks: Mapping[str, Task]) -> list[float]:
    """Return the rates of the parts by a rule on their numbers of examples."""
    sizes = []
    for name, part in tasks.items():
      sizes.append(mixture.count_corpus_examples(part) * self.weights.get(name, 1.0))
    if self.draws:
      return mixture.unimax_draws(sizes, self.draws, self.epochs)
    temperature = self.temperature if self.rates == "temperature" else 1.0
    return mixture.temperature_rates(sizes, temperature, self.maximum)


def _check_factors(key: str, factors: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
  """Raise UserError for a factor that belongs to no part or is not a positive number."""
  for name, factor in factors.items():
    if name not in parts:
      raise UserError(
        f"{key}.{name}: no such part{did_you_mean(name, parts)}; there are {', '.join(parts)}"
      )
    if not slots.fits(factor, float):
      raise UserError(f"{key}.{name}: found {factor!r}, expected a positive number")


def _build_part(slot: str, split: str, values: Any, shared: dict) -> Task:
  """Build a part, a task or another mixture, from its own arguments and the shared ones."""
  if not hasattr(values, "get"):
    raise UserError(
      f"config.{slot}: found {values!r}, expected the name and the arguments of a task"
    )
  if values.get("name") != "mixture":
    arguments = config.change_task(shared, values)
    return build_at(slot, arguments.pop("name", None), split, arguments)
  arguments = {key: value for key, value in values.items() if key != "name"}
  arguments = slots.fill(f"config.{slot}", arguments, Arguments, supplied=("split",))
  arguments["shared"] = config.change_task(shared, arguments["shared"])
  return Arguments(split=split, **arguments).build_at(slot)
