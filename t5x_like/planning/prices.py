"""Read the prices of chips from a file, and price a number of steps.

The file is TOML:

  currency = "USD"

  [per_chip_hour]
  v5e = 1.20
  v6e = 2.70
"""

import dataclasses
import tomllib
from typing import Annotated

from t5x_like import slots
from t5x_like.errors import UserError, did_you_mean, one_line
from t5x_like.files.paths import as_path

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


@dataclasses.dataclass(frozen=True)
class Bill:
  """The time and the price of a number of steps.

  Attributes:
    steps: the number of steps.
    hours: hours of all chips at once.
    chip_hours: hours times chips.
    price: in the currency of the prices.
  """

  steps: int
  hours: float
  chip_hours: float
  price: float


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


def bill(prices: Prices, kind: str, chips: int, steps: int, seconds_per_step: float) -> Bill:
  """Return the time and the price of steps on some chips.

  Args:
    kind: of the chips, a key of the prices.

  Raises:
    UserError: as `Prices.price_of`.
  """
  hours = steps * seconds_per_step / _SECONDS_PER_HOUR
  chip_hours = hours * chips
  return Bill(steps, hours, chip_hours, prices.price_of(kind, chip_hours))
