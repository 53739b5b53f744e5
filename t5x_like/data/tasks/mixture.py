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
examples as its parts do together. Worked example: news at 1 and a mixture of books (3) and papers
(1) at 2 are drawn 2, 3 and 1 times in six.
"""

from collections.abc import Mapping
from typing import Any, Literal

from t5x_like import config, slots
from t5x_like.data import mixture, task_features
from t5x_like.data.features import Feature, Features
from t5x_like.data.task import Task, build_at
from t5x_like.errors import UserError, did_you_mean
from t5x_like.slots import PositiveInt


def features(
  vocabulary, /, *, parts: Mapping[str, Any], shared: Mapping[str, Any], **_
) -> Features:
  """Return the features of the mixture, each with its greatest size in any part."""
  common: Features = {}
  for part in parts.values():
    for name, feature in task_features.declare({**shared, **part}).items():
      sizes = zip(feature.shape, common.get(name, feature).shape)
      common[name] = Feature(tuple(max(pair) for pair in sizes), feature.dtype)
  return common


def task(
  *,
  split: str,
  parts: dict,
  rates: dict | Literal["equal", "proportional", "temperature", "unimax"] = "equal",
  maximum: int | None = None,
  temperature: float = 1.0,
  draws: PositiveInt | None = None,
  epochs: PositiveInt = 1,
  weights: dict = {},
  period: int = 10_000,
  shared: dict = {},
  label: str | None = None,
) -> Task:
  """Make the task.

  Args:
    split: the split of every part.
    parts: each part's task by label: `name` and arguments.
    rates: the parts' rates by label, in any unit; missing ones are 1. Or the rule that computes
      them.
    maximum: the most examples of a part that count for proportional and temperature rates.
    temperature: the temperature of `rates="temperature"`.
    draws, epochs: for `rates="unimax"`: the run's examples, `batch_size * total_steps`, and how
      often it may see one.
    weights: for rates by examples, the factor by which a part's examples count, by label; 1 if
      missing.
    period: places in a period of the schedule; rates are exact in it, up to rounding to whole
      examples.
    shared: default arguments of all parts.
    label: the name in metrics; by default `mixture`.

  Raises:
    UserError: naming the part and key: no parts, an unknown task, arguments it refuses, a rate that
      is not a number or belongs to no part, or parts that cannot be mixed.
  """
  rule = {
    "rates": rates,
    "maximum": maximum,
    "temperature": temperature,
    "draws": draws,
    "epochs": epochs,
  }
  return _build("task", split, parts, period, shared, label, weights, **rule)


def _build(
  slot: str,
  split: str,
  parts: dict,
  period: int,
  shared: dict,
  label: str | None,
  weights: dict,
  **rule: Any,
) -> mixture.Mixture:
  """Build the mixture whose arguments are at `config.<slot>`.

  The arguments in `rule` give the rates of the parts.
  """
  rates = rule["rates"]
  draws = rule["draws"]
  if not parts:
    raise UserError(f"config.{slot}.parts: found none, expected at least one task by label")
  for name in parts:
    slots.check_name(f"config.{slot}.parts", name)
  explicit_rates = dict(rates) if hasattr(rates, "keys") else {}
  _check_factors(f"config.{slot}.rates", explicit_rates, parts)
  _check_factors(f"config.{slot}.weights", weights, parts)
  if (rates == "unimax") != (draws is not None):
    raise UserError(
      f"config.{slot}.draws: found {draws}, expected the examples of the run for rates=unimax alone"
    )
  tasks = {}
  for name, part in sorted(parts.items()):
    tasks[name] = _part(f"{slot}.parts.{name}", split, part, shared)
  if rates in ("proportional", "temperature", "unimax"):
    shares = _computed_rates(tasks, weights, rule)
  else:
    shares = [explicit_rates.get(name, 1.0) for name in tasks]
  return mixture.mix(
    tasks, dict(zip(tasks, shares, strict=True)), period=period, name=label or "mixture"
  )


def _check_factors(key: str, factors: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
  """Raise UserError for a factor that belongs to no part or is no number."""
  for name, factor in factors.items():
    if name not in parts:
      raise UserError(
        f"{key}.{name}: no such part{did_you_mean(name, parts)}; there are {', '.join(parts)}"
      )
    if not slots.fits(factor, float):
      raise UserError(f"{key}.{name}: found {factor!r}, expected a positive number")


def _computed_rates(
  tasks: Mapping[str, Task], weights: Mapping[str, float], rule: Mapping[str, Any]
) -> list[float]:
  """Return the rates of the parts by a rule on their numbers of examples."""
  sizes = [
    mixture.count_corpus_examples(part) * weights.get(name, 1.0) for name, part in tasks.items()
  ]
  if rule["draws"]:
    return mixture.unimax_draws(sizes, rule["draws"], rule["epochs"])
  temperature = rule["temperature"] if rule["rates"] == "temperature" else 1.0
  return mixture.temperature_rates(sizes, temperature, rule["maximum"])


def _part(slot: str, split: str, values: Any, shared: dict) -> Task:
  if not hasattr(values, "get"):
    raise UserError(
      f"config.{slot}: found {values!r}, expected the name and the arguments of a task"
    )
  if values.get("name") != "mixture":
    arguments = config.change_task(shared, values)
    return build_at(slot, arguments.pop("name", None), split, arguments)
  arguments = {key: value for key, value in values.items() if key != "name"}
  arguments = slots.fill(f"config.{slot}", arguments, task, supplied=("split",))
  return _build(
    slot, split, **arguments | {"shared": config.change_task(shared, arguments["shared"])}
  )
