"""Learning rates for parts of the model, by patterns of parameter names."""

import fnmatch

from t5x_like.errors import UserError
from t5x_like.tunings import Named, Tuning
from t5x_like.tunings._scaled import scale_updates


def make(*, rates: dict = {}) -> Tuning:
  """Scale the learning rate of parts of the model; a rate of 0 freezes a part.

  Args:
    rates: pattern of parameters' names -> factor of the schedule's rate, such as
      {"backbone/*": 0.1}; the last pattern that matches a name counts, and the factor of others
      is 1.
  """
  for pattern, rate in rates.items():
    if not isinstance(rate, (int, float)) or isinstance(rate, bool) or not rate >= 0:
      raise UserError(
        f"config.tuning.rates: found {rate!r} for {pattern!r}, expected a number of at least 0"
      )

  def rates_by_name(named: Named) -> dict[str, float]:
    for pattern in rates:
      if not fnmatch.filter(named, pattern):
        raise UserError(
          f"config.tuning.rates: no parameter is called {pattern!r}; the first is "
          f"{next(iter(named))}"
        )
    rate_by_name = dict.fromkeys(named, 1.0)
    for pattern, rate in rates.items():
      for name in named:
        if fnmatch.fnmatchcase(name, pattern):
          rate_by_name[name] = rate
    return rate_by_name

  def scale_rates(optimizer, named: Named):
    return scale_updates(optimizer, rates_by_name(named))

  def trained_names(named: Named) -> list[str]:
    return [name for name, rate in rates_by_name(named).items() if rate != 0]

  return Tuning(scale_rates=scale_rates, trained_names=trained_names)
