"""Objectives, one a file.

The module path is the registry: `config.objective = {"name": "mlm", …}` selects `mlm.py`. An
objective is a frozen dataclass `Objective` whose fields are the arguments of the slot. It is called
as

  (loss sum, sums) = objective(model, batch, key)

where `key` is the key of dropout, None in evaluations. It returns sums over the batch, never means;
the caller divides the sums of a global batch once. The loss is divided by the sum named `weights`,
every other sum by its `denominator`. Objectives call `model.outputs`, which leaves logits over a
vocabulary uncomputed, and `_losses.token_losses` computes them in chunks. Shared arithmetic is in
`_losses.py`; objectives do not import each other.
"""

from collections.abc import Collection
from typing import Any, ClassVar

from t5x_like.errors import UserError
from t5x_like.slots import Slot

# Names of sums whose means are reported under another name.
METRIC_NAMES = {"correct": "accuracy"}
# The declarations of version 0.1 and their names now.
_RENAMED_DECLARATIONS = {
  "beside": "model_inputs",
  "also": "extra_features",
  "gives": "reported_sums",
  "several": "multi_row",
  "reference": "needs_reference",
  "steps": "step_module",
  "among_rows": "uses_batch_negatives",
}


def denominator(name: str, sums: Collection[str]) -> str:
  """Return the name of the sum that divides the sum `name` to give its mean.

  It is `<group>_weights` for `<group>` and `<group>_…`, if there is such a sum, else `weights`. So
  means over tokens and means over examples remain correct when the sums of many batches are added.
  """
  words = name.split("_")
  for length in range(len(words), 0, -1):
    group_weights = "_".join(words[:length]) + "_weights"
    if group_weights in sums:
      return group_weights
  return "weights"


def check_declarations(name: str, objective: Any) -> None:
  """Check that an objective has all declarations that have no default.

  Raises:
    UserError: naming the objective and the declaration.
  """
  arguments = getattr(objective, "__dataclass_fields__", {})
  for old_name, new_name in _RENAMED_DECLARATIONS.items():
    if old_name in vars(type(objective)) and old_name not in arguments:
      raise UserError(
        f"config.objective.name: {name} declares {old_name!r}, which is now {new_name!r}; rename it"
      )
  for attribute in ("model_inputs", "targets", "weights"):
    if not hasattr(objective, attribute):
      raise UserError(
        f"config.objective.name: {name} declares no {attribute!r}; declare it, or derive from "
        "EncoderTargets or DecoderTargets of t5x_like.objectives._losses "
        "(docs/how-to/add-an-objective.md)"
      )


def evaluate(
  objective: "BaseObjective", model: Any, batch: dict, key: Any = None
) -> tuple[Any, dict[str, Any]]:
  """Return (loss sum, sums) of a batch.

  Raises:
    UserError: the objective reads a feature that the batch lacks, or returns something else, or no
      sum `weights`.
  """
  name = type(objective).__module__
  try:
    outcome = objective(model, batch, key)
  except KeyError as error:
    feature = error.args[0] if error.args else ""
    if not isinstance(feature, str) or feature in batch:
      raise
    raise UserError(
      f"config.objective.name: {name} looked for {feature!r}, found the features "
      f"{', '.join(batch)}; declare the features that it "
      "reads in `extra_features`, and return the sum `weights`"
    ) from error
  if not (isinstance(outcome, tuple) and len(outcome) == 2 and isinstance(outcome[1], dict)):
    raise UserError(
      f"config.objective.name: {name} returned {type(outcome).__name__}, expected (loss sum, sums)"
    )
  if "weights" not in outcome[1]:
    raise UserError(
      f"config.objective.name: {name} returned the sums {', '.join(outcome[1]) or 'of nothing'}, "
      "expected `weights` among them: the sum of the targets' weights, which divides the loss"
    )
  return outcome


class BaseObjective:
  """The base of objectives: their declarations, checked before anything is compiled.

  Attributes:
    model_inputs: alternative inputs of the model, the one whose axes its outputs share.
    targets: the feature to predict.
    weights: the feature that weights each target.
    extra_features: further required features.
    outputs: the required model outputs, by name, with their number of axes.
    reported_sums: the sums it returns if data and model allow, besides sums of weights and the
      model's scalars, such as a router's losses.
    advice: the setting to suggest when the data lacks a feature.
    multi_row: whether an example has several rows, so that its features are [B, C, …].
    needs_reference: whether it needs `model.reference`, an untrained copy of the model with the
      run's initial weights.
    teacher: whether `model.reference` is the model of `config.teacher` instead.
    step_module: the module of `training/` that builds the steps for its batches, such as
      `contrib/feedback/training/rollouts.py`; "" for the plain step.
    uses_batch_negatives: whether the loss of a row depends on the other rows of the batch, which
      rules out accumulation.
    spare_classes: the number of logits that belong to no class of the task.
    unit: unit of the metric `loss`, for reports; "" if it has none.
    likelihood: whether the metric `loss` is the negative log-likelihood of the targets, in nats.
      Only then is it reported with their unigram entropy and, for tokens, as a perplexity.
    predict_inputs: the inputs that `predict` takes for its models, for reports: "texts", "images",
      or "images with texts" to choose from; () if it takes none.
  """

  model_inputs: ClassVar[tuple[str, ...]]
  targets: ClassVar[str]
  weights: ClassVar[str]
  extra_features: ClassVar[tuple[str, ...]] = ()
  outputs: ClassVar[dict[str, int]] = {"logits": 3}
  reported_sums: ClassVar[tuple[str, ...]] = ("loss", "z_loss", "correct")
  advice: ClassVar[str] = ""
  multi_row: ClassVar[bool] = False
  needs_reference: ClassVar[bool] = False
  teacher: ClassVar[bool] = False
  step_module: ClassVar[str] = ""
  uses_batch_negatives: ClassVar[bool] = False
  spare_classes: ClassVar[int] = 0
  unit: ClassVar[str] = ""
  likelihood: ClassVar[bool] = False
  predict_inputs: ClassVar[tuple[str, ...]] = ()

  @classmethod
  def missing_features(cls, features: Collection[str]) -> list[str]:
    """Return the required features that `features` lacks."""
    required = (cls.targets, cls.weights, *cls.extra_features)
    return [name for name in required if name not in features]

  @classmethod
  def class_count_key(cls) -> str | None:
    """Return the key in `config.model` of the number of target classes; None without classes."""
    return "head.labels" if cls.targets == "label" else None

  @classmethod
  def model_rows(cls, batch: dict) -> dict:
    """Return the batch of the model's call, with examples of several rows flattened."""
    return flatten_rows(batch) if cls.multi_row else batch

  @classmethod
  def check(cls, model, features: dict) -> None:
    """Raise UserError if the model's head does not fit the task's features."""

  def prepare(self, batch: dict, model) -> dict:
    """Add facts about the global batch, such as its number of real rows, before it is divided."""
    del model
    return batch

  def extend_model(self, model, key):
    """Return the model with the parts that only this objective trains, such as PPO's value head."""
    return model


OBJECTIVES = Slot(
  __name__, "Objective", base=BaseObjective, guide="docs/how-to/add-an-objective.md"
)


def flatten_rows(batch: dict) -> dict:
  """Reshape the `encoder_` and `decoder_` features from [B, C, …] to [B * C, …]."""
  rows = {}
  for name, x in batch.items():
    if name.startswith(("encoder_", "decoder_")):
      rows[name] = x.reshape(-1, *x.shape[2:])
  return rows
