"""Several tasks in one, each drawn at its rate.

    config.task = {
      "name": "mixture",
      "shared": {"inputs_length": 512},
      "parts": {
        "news": {"name": "span_corruption", "store": "data/news"},
        "books": {"name": "span_corruption", "store": "data/books", "mean_noise_span_length": 8.0},
      },
      "rates": {"news": 1, "books": 2},  # or "equal", "proportional", "temperature"
    }

The schedule and the rates are those of `data/mixture.py`. An evaluation sees one period, in which every part stands as
often as its rate says; evaluate a part on its own to see each of its examples once.
"""

from typing import Literal

from t5x_like import slots
from t5x_like.data import mixture
from t5x_like.data.task import Task, build_at
from t5x_like.errors import UserError, did_you_mean


def task(
  *,
  split: str,
  parts: dict,
  rates: dict | Literal["equal", "proportional", "temperature"] = "equal",
  maximum: int | None = None,
  temperature: float = 1.0,
  period: int = 10_000,
  shared: dict = {},  # noqa: B006
  label: str | None = None,
) -> Task:
  """Makes the task.

  Args:
    split: of every part.
    parts: for each label the part's task, `name` and arguments.
    rates: of the parts, by label, in any unit and 1 for those it leaves out; or how rates come about.
    maximum: examples of a part that count for proportional and temperature rates, at most.
    temperature: of `rates="temperature"`.
    period: the schedule's; rates are exact in every period, up to rounding to a whole number of examples.
    shared: arguments of all parts that do not say otherwise.
    label: the name in metrics; by default `mixture`.

  Raises:
    UserError: naming the part and key: no parts, an unknown task, arguments it refuses, a rate that is not a number or
      belongs to no part, or parts that cannot be mixed.
  """
  if not parts:
    raise UserError("config.task.parts: found none, expected at least one task by label")
  if "mixture" in (part.get("name") for part in parts.values() if hasattr(part, "get")):
    raise UserError("config.task.parts: found a mixture in the mixture, expected its parts here, with their rates")
  explicit = dict(rates) if hasattr(rates, "keys") else {}
  for name, rate in explicit.items():
    if name not in parts:
      raise UserError(
        f"config.task.rates.{name}: no such part{did_you_mean(name, parts)}; there are {', '.join(parts)}"
      )
    if not slots.fits(rate, float):
      raise UserError(f"config.task.rates.{name}: found {rate!r}, expected a positive number")
  made = {}
  for name, part in sorted(parts.items()):
    slot = f"task.parts.{name}"
    if not hasattr(part, "get"):
      raise UserError(f"config.{slot}: found {part!r}, expected the name and the arguments of a task")
    arguments = dict(shared) | dict(part)
    made[name] = build_at(slot, arguments.pop("name", None), split, arguments)
  shares = [explicit.get(name, 1.0) for name in made]
  if rates in ("proportional", "temperature"):
    sizes = [part.num_examples for part in made.values()]
    shares = mixture.temperature(sizes, temperature if rates == "temperature" else 1.0, maximum)
  return mixture.mix(made, dict(zip(made, shares, strict=True)), period=period, name=label or "mixture")
