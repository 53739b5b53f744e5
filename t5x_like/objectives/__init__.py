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
    beside: the model inputs, one of which the model's outputs are for.
    targets: the feature that is predicted.
    weights: the feature that weights each target.
    also: other features it needs.
    outputs: the outputs it needs from the model, by name, with their number of axes.
    gives: the sums it returns where data and model provide for them, besides sums of weights and the scalars of the
      model, such as a router's losses.
    advice: what to set when the data lacks a feature.
    several: whether examples have several rows, features [B, C, …].
    reference: whether the model has another one beside it, `model.reference`, of the weights that the run began with,
      which are not trained.
    teacher: whether that other one is the model of `config.teacher` instead.
    among_rows: whether the loss of a row depends on the other rows of the batch, which then cannot be accumulated.
    spare_classes: how many of the logits are of no class of the task.
  """

  beside: ClassVar[tuple[str, ...]]
  targets: ClassVar[str]
  weights: ClassVar[str]
  also: ClassVar[tuple[str, ...]] = ()
  outputs: ClassVar[dict[str, int]] = {"logits": 3}
  gives: ClassVar[tuple[str, ...]] = ("loss", "z_loss", "correct")
  advice: ClassVar[str] = ""
  several: ClassVar[bool] = False
  reference: ClassVar[bool] = False
  teacher: ClassVar[bool] = False
  among_rows: ClassVar[bool] = False
  spare_classes: ClassVar[int] = 0

  @classmethod
  def missing(cls, features: Collection[str]) -> list[str]:
    """The features it needs that `features` lacks."""
    return [name for name in (cls.targets, cls.weights, *cls.also) if name not in features]

  @classmethod
  def rows(cls, batch: dict) -> dict:
    """What of a batch the model is called with: examples of several rows, [B, C, …], as rows, [B * C, …]."""
    return flat(batch) if cls.several else batch

  @classmethod
  def check(cls, model, features: dict) -> None:
    """Refuses a model whose head is not for a task's features; UserError."""


def flat(batch: dict) -> dict:
  """The encoder's and decoder's features of examples of several rows, one row after another."""
  sides = ("encoder_", "decoder_")
  return {name: x.reshape(-1, *x.shape[2:]) for name, x in batch.items() if name.startswith(sides)}
