"""Read the prices of chips from a file, and price the steps of a plan.

The file is TOML:

  currency = "USD"

  [per_chip_hour]
  v5e = 1.20
  v6e = 2.70
"""

import dataclasses
import math
import tomllib
from typing import Annotated, Any

from t5x_like import slots
from t5x_like.errors import UserError, did_you_mean, one_line
from t5x_like.files.paths import as_path
from t5x_like.planning.hardware import Topology

_SECONDS_PER_HOUR = 3600.0
_Name = Annotated[str, slots.Condition("a name such as USD", lambda text: text.isalnum())]


@dataclasses.dataclass(frozen=True)
class Prices:
  """The prices of chips.

  Attributes:
    currency: the name of the currency, such as USD.
    per_chip_hour: the price of one chip for one hour, by the kind of chip. The kinds of TPUs are
      the keys of `hardware.CHIPS`, such as v5e; other accelerators may have any name.
  """

  currency: _Name
  per_chip_hour: dict[str, float]

  def price_of(self, kind: str, chip_hours: float) -> float:
    """Return the price of chip hours.

    Raises:
      UserError: the file has no price of this kind of chip.
    """
    if kind not in self.per_chip_hour:
      raise UserError(
        f"per_chip_hour.{kind}: missing{did_you_mean(kind, self.per_chip_hour)}; the file has "
        f"prices of {', '.join(self.per_chip_hour)}; add one of {kind}"
      )
    return chip_hours * self.per_chip_hour[kind]


def read_prices(path: str) -> Prices:
  """Read a file of prices.

  Raises:
    UserError: it cannot be read, or a key or a value in it is wrong; the message is one line.
  """
  try:
    table = tomllib.loads(as_path(path).read_bytes().decode())
  except (OSError, ValueError, RecursionError) as error:
    raise UserError(f"{path}: prices cannot be read: {one_line(error)}") from None
  prices = Prices(**slots.fill(path, table, Prices))
  if not prices.per_chip_hour:
    raise UserError(f"{path}.per_chip_hour: empty; expected prices by chip, such as v5e = 1.20")
  per_chip_hour = {}
  for kind, price in prices.per_chip_hour.items():
    per_chip_hour[kind] = float(
      slots.coerce(f"{path}.per_chip_hour.{kind}", price, slots.NonNegativeFloat)
    )
  return dataclasses.replace(prices, per_chip_hour=per_chip_hour)


@dataclasses.dataclass(frozen=True)
class Quantity:
  """The number of steps to price; by default the recipe's.

  Attributes:
    steps: a number of steps, or None.
    tokens: a number of tokens, or images of a model of images; None for none.
    prices: the prices of chips; None to count hours only.
  """

  steps: int | None
  tokens: float | None
  prices: Prices | None

  def steps_of(self, plan: dict[str, Any]) -> int:
    """Return the number of steps of a plan's batches, the last one perhaps in part.

    Raises:
      UserError: neither this nor the recipe has a number.
    """
    if self.tokens is not None:
      return math.ceil(self.tokens / plan["tokens"])
    steps = self.steps if self.steps is not None else plan["total_steps"]
    if steps is None:
      raise UserError(
        "config.total_steps: found None, a number of epochs, which a plan does not count; give "
        "--steps or --tokens"
      )
    return steps


def plan_bill(plan: dict[str, Any], topology: Topology, quantity: Quantity) -> dict[str, Any]:
  """Return a plan's `bill`: the hours and the price of a quantity of its steps.

  All steps are assumed to take as long as a step of the planned phase.

  Raises:
    UserError: as `Quantity.steps_of` and `Prices.price_of`.
  """
  steps = quantity.steps_of(plan)
  hours = steps * plan["seconds"]["step"] / _SECONDS_PER_HOUR
  chips = plan["devices"]
  if topology.chip:
    chips //= topology.chip.devices
  row = {"steps": steps, "chips": chips, "hours": hours, "chip_hours": hours * chips}
  if quantity.prices:
    row["price"] = quantity.prices.price_of(topology.kind, hours * chips)
    row["currency"] = quantity.prices.currency
  return row
