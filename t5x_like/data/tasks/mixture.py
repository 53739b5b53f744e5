"""Several tasks in one, each drawn at its rate.

    config.task = {
      "name": "mixture",
      "rates": "temperature", "temperature": 2.0,
      "shared": {"inputs_length": 512},
      "parts": {
        "news": {"name": "span_corruption", "store": "data/news"},
        "books": {"name": "span_corruption", "store": "data/books", "mean_noise_span_length": 8.0},
      },
    }

The schedule and the rates are those of `data/mixture.py`. An evaluation sees one period, in which every part stands as
often as its rate says; evaluate a part on its own to see each of its examples once.
"""

from typing import Literal

from t5x_like import config as config_lib
from t5x_like.data import mixture
from t5x_like.data.task import Task, build_at
from t5x_like.errors import UserError


def task(*, split: str, parts: dict, rates: Literal["explicit", "proportional", "temperature", "equal"] = "explicit",
         maximum: int | None = None, temperature: float = 1.0, period: int = 10_000, shared: dict = {},  # noqa: B006
         label: str | None = None) -> Task:
  """Makes the task.

  Args:
    split: of every part.
    parts: for each label the part's task, `name` and arguments, and where rates are explicit its `rate` (1 if silent).
    rates: how the rates come about.
    maximum: examples of a part that count for proportional and temperature rates, at most.
    temperature: of `rates="temperature"`.
    period: the schedule's; rates are exact in every period, up to rounding to a whole number of examples.
    shared: arguments of all parts that do not say otherwise.
    label: the name in metrics; by default `mixture`.

  Raises:
    UserError: naming the part and key: no parts, an unknown task, arguments it refuses, a rate where rates follow from
      the examples, or parts that do not go together.
  """
  if not parts:
    raise UserError("config.task.parts: found none, expected at least one task by label")
  if "mixture" in (part.get("name") for part in parts.values() if hasattr(part, "get")):
    raise UserError("config.task.parts: found a mixture in the mixture, expected its parts here, with their rates")
  explicit, made = {}, {}
  for name, part in sorted(parts.items()):
    slot = f"task.parts.{name}"
    if not hasattr(part, "get"):
      raise UserError(f"config.{slot}: found {part!r}, expected the name and the arguments of a task")
    arguments = dict(shared) | dict(part)
    explicit[name] = arguments.pop("rate", 1.0)
    if rates != "explicit" and "rate" in part:
      raise UserError(f"config.{slot}.rate: found {part['rate']!r}, but rates are {rates}: set rates=explicit or "
                      "leave the rate out")
    if not config_lib.fits(explicit[name], float):
      raise UserError(f"config.{slot}.rate: found {explicit[name]!r}, expected a positive number")
    made[name] = build_at(slot, arguments.pop("name", None), split, arguments)
  sizes = [part.num_examples for part in made.values()]
  if rates == "explicit":
    shares = list(explicit.values())
  elif rates == "equal":
    shares = mixture.equal(sizes)
  else:
    shares = mixture.temperature(sizes, temperature if rates == "temperature" else 1.0, maximum)
  return mixture.mix(made, dict(zip(made, shares, strict=True)), period=period, name=label or "mixture")
