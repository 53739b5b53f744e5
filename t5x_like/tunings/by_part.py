"""Learning rates for parts of the model, by patterns of parameter names."""

import dataclasses
import fnmatch

from t5x_like.errors import UserError
from t5x_like.tunings import BaseTuning, Named
from t5x_like.tunings._scaled import scale_updates


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning(BaseTuning):
  """Scale the learning rate of parts of the model; a rate of 0 freezes a part.

  Attributes:
    rates: pattern of parameters' names -> factor of the schedule's rate, such as
      {"backbone/*": 0.1}; the last pattern that matches a name counts, and the factor of others
      is 1.
  """

  rates: dict = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    for pattern, rate in self.rates.items():
      if not isinstance(rate, (int, float)) or isinstance(rate, bool) or not rate >= 0:
        raise UserError(
          f"config.tuning.rates: found {rate!r} for {pattern!r}, expected a number of at least 0"
        )

  def scale_rates(self, optimizer, named):
    return scale_updates(optimizer, self._rates_by_name(named))

  def trained_names(self, named):
    return [name for name, rate in self._rates_by_name(named).items() if rate != 0]

  def _rates_by_name(self, named: Named) -> dict[str, float]:
    for pattern in self.rates:
      if not fnmatch.filter(named, pattern):
        raise UserError(
          f"config.tuning.rates: no parameter is called {pattern!r}; the first is "
          f"{next(iter(named))}"
        )
    rates = dict.fromkeys(named, 1.0)
    for pattern, rate in self.rates.items():
      for name in named:
        if fnmatch.fnmatchcase(name, pattern):
          rates[name] = rate
    return rates
