"""Train only the head."""

import dataclasses

from t5x_like.errors import UserError
from t5x_like.tunings import BaseTuning

_HEADS = ("head/", "scores/")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning(BaseTuning):
  """Train only the head, on frozen features.

  Attributes:
    also: the beginnings of the names of further parameters to train.
  """

  also: tuple[str, ...] = ()

  def trained_names(self, named):
    names = [name for name in named if name.startswith((*_HEADS, *self.also))]
    if not names:
      raise UserError(
        "config.tuning: the model has no head to train alone; set --config.tuning.name=all"
      )
    return names
