"""Objectives, one per file: the module path is the registry (`config.objective = {"name": "mlm", …}`).

An objective is a frozen dataclass `Objective`, its fields the arguments of the slot, called as

  (loss sum, sums) = objective(model, batch, key)

It returns sums over the batch and never means: whoever has the sums of a global batch divides once, by the sum named
`weights`. Shared arithmetic is in `_losses.py`; objectives do not import each other.
"""

from collections.abc import Collection
from typing import ClassVar

METRICS = {"correct": "accuracy"}  # sums whose mean has another name


class Base:
  """What an objective states about itself, checked before anything is compiled.

  Attributes:
    beside: the model's input whose positions its outputs belong to.
    targets: the feature that is predicted.
    weights: the feature that says how much each target counts.
    also: other features it needs.
    outputs: what the model must return, by name, and how many axes each has.
    gives: the sums it returns where data and model have what they are of, besides `weights` and the scalars of the
      model, such as a router's losses.
    advice: what to set where the data lacks something.
  """

  beside: ClassVar[str]
  targets: ClassVar[str]
  weights: ClassVar[str]
  also: ClassVar[tuple[str, ...]] = ()
  outputs: ClassVar[dict[str, int]] = {"logits": 3}
  gives: ClassVar[tuple[str, ...]] = ("loss", "z_loss", "correct")
  advice: ClassVar[str] = ""

  @classmethod
  def missing(cls, features: Collection[str]) -> list[str]:
    """The features it needs that are not among these."""
    return [name for name in (cls.targets, cls.weights, *cls.also) if name not in features]
