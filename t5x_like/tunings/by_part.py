"""Rates of their own for parts."""

import fnmatch

from t5x_like.errors import UserError
from t5x_like.tunings import Tuning
from t5x_like.tunings._scaled import scale_updates


def make(*, rates: dict = {}) -> Tuning:
  """Train parts at rates of their own, as shares of the schedule's; a rate of 0 freezes a part.

  Args:
    rates: pattern of parameters' names -> share, such as {"backbone/*": 0.1}; the last that fits
      counts.
  """
  for pattern, rate in rates.items():
    if not isinstance(rate, (int, float)) or isinstance(rate, bool) or not rate >= 0:
      raise UserError(
        f"config.tuning.rates: found {rate!r} for {pattern!r}, expected a number of at least 0"
      )

  def rates_of(named):
    for pattern in rates:
      if not fnmatch.filter(named, pattern):
        raise UserError(
          f"config.tuning.rates: no parameter is called {pattern!r}; the first is "
          f"{next(iter(named))}"
        )
    rates_by_name = {
      name: [rate for pattern, rate in rates.items() if fnmatch.fnmatchcase(name, pattern)]
      for name in named
    }
    return {
      name: part_rates[-1] if part_rates else 1.0 for name, part_rates in rates_by_name.items()
    }

  return Tuning(
    scale_rates=lambda optimizer, named: scale_updates(optimizer, rates_of(named)),
    trained_names=lambda named: [name for name, rate in rates_of(named).items() if rate],
  )
