"""Train all parameters, at the schedule's rate."""

from t5x_like.tunings import Tuning


def make() -> Tuning:
  return Tuning()
