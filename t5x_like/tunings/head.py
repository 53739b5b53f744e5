"""The head alone."""

from t5x_like.errors import UserError
from t5x_like.tunings import Tuning

_HEADS = ("head/", "scores/")


def make(*, also: tuple[str, ...] = ()) -> Tuning:
  """Train the head alone, on frozen features, and the parameters whose names begin with one of
  `also`."""

  def trained_names(named):
    names = [name for name in named if name.startswith((*_HEADS, *also))]
    if not names:
      raise UserError(
        "config.tuning: the model has no head to train alone; set --config.tuning.name=all"
      )
    return names

  return Tuning(trained_names=trained_names)
