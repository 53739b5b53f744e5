"""Train all parameters, at the schedule's rate."""

import dataclasses

from t5x_like.tunings import BaseTuning


@dataclasses.dataclass(frozen=True)
class Tuning(BaseTuning):
  """The tuning without changes."""
