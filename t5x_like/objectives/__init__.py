"""Objectives, one per file: the module path is the registry (`config.objective = {"name": "mlm", …}`).

An objective is a frozen dataclass `Objective`, its fields the arguments of the slot, called as

  (loss sum, sums) = objective(model, batch, key)

It returns sums over the batch, never means; the caller divides the sums of a global batch once. The loss is divided by
the sum named `weights`, the others by what `denominator` says. The model's outputs are those of `model.outputs`: logits
over a vocabulary are not computed yet, and `_losses.token_losses` computes them in chunks. Shared arithmetic is in
`_losses.py`; objectives do not import each other.
"""

from collections.abc import Collection
from typing import ClassVar

METRICS = {"correct": "accuracy"}  # sums whose mean has another name


def denominator(name: str, sums: Collection[str]) -> str:
  """The sum by which the sum `name` is divided to give a mean.

  That is `<group>_weights` for `<group>` and `<group>_…`, if there is such a sum, and `weights` for all others: means
  over tokens and means over examples stay what they are when the sums of many batches are added up.
  """
  words = name.split("_")
  groups = ("_".join(words[:n]) + "_weights" for n in range(len(words), 0, -1))
  return next((group for group in groups if group in sums), "weights")


class Base:
  """What an objective declares about itself, checked before anything is compiled.

  Attributes:
    beside: the model input to whose positions its outputs correspond.
    targets: the feature that is predicted.
    weights: the feature that weights each target.
    also: other features it needs.
    outputs: the outputs it needs from the model, by name, with their number of axes.
    gives: the sums it returns where data and model provide for them, besides sums of weights and the scalars of the
      model, such as a router's losses.
    advice: what to set when the data lacks a feature.
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
    """The features it needs that `features` lacks."""
    return [name for name in (cls.targets, cls.weights, *cls.also) if name not in features]
