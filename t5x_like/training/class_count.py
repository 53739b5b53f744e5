"""The number of a model's classes: counted in the data where a recipe leaves it open, and checked
against them.

Found by name. A recipe leaves the number open if its head or its detector has no `labels`, or
`labels="auto"`. Plans, which open no data, take the default of the head.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

import t5x_like.models
import t5x_like.objectives
from t5x_like import slots
from t5x_like.architectures import heads
from t5x_like.errors import UserError
from t5x_like.runtime import process

# a target -> the model's key of its classes
_KEYS = {"label": "head.labels", "box_labels": "labels"}
_OPEN = (None, "auto")


def fill_class_count(config: ConfigDict, classes: int) -> ConfigDict:
  """Return the config with the number of the data's classes, where it leaves the number of the
  model's open.

  A teacher has as many classes as the student.

  Raises:
    UserError: `labels` is "auto", and the data have no classes.
  """
  objective = slots.find(
    "config.objective.name", config.objective.name, t5x_like.objectives, "Objective"
  )
  key = _KEYS.get(objective.targets)
  filled = ConfigDict(config.to_dict())
  for model in filter(None, (filled.model, filled.teacher.get("model"))):
    head: dict[str, Any] = {}
    if key != "labels":
      head_spec = model.get("head") or "none"
      model_class = slots.find("config.model.name", model.get("name"), t5x_like.models, "Model")
      if head_spec == "none" and "head" in slots.argument_names(model_class):
        head_spec = getattr(slots.resolve_variant(model_class, model), "head", "none")
      name, arguments = slots.name_and_arguments("config.model.head", head_spec)
      if key is None or "labels" not in slots.argument_names(
        slots.find("config.model.head", name, heads, "make")
      ):
        continue  # the model has no classes
      head = {"name": name} | arguments
    labels = model.get("labels") if key == "labels" else head.get("labels")
    if labels == "auto" and not classes:
      raise UserError(
        f"config.model.{key}: found 'auto', but task {config.task.name} has no "
        "classes; give the number"
      )
    if labels in _OPEN and classes:
      with model.unlocked(), model.ignore_type():
        model.update(
          {"labels": classes} if key == "labels" else {"head": head | {"labels": classes}}
        )
    elif model is filled.model:
      classes = labels or classes
  return filled


def drop_automatic_labels(config: ConfigDict) -> ConfigDict:
  """Return the config with the defaults of the model in place of `labels="auto"`, for plans."""
  config_copy = ConfigDict(config.to_dict())
  for values in (config_copy.model, config_copy.model.get("head")):
    if isinstance(values, ConfigDict) and values.get("labels") == "auto":
      del values["labels"]
  return config_copy


def adopt_class_count(config: ConfigDict, model: dict[str, Any]) -> ConfigDict:
  """Return a recipe's config with the number of classes of a run, whose `config.model` is given,
  where it is open."""
  head = model.get("head")
  number = model.get("labels") or (head.get("labels") if isinstance(head, Mapping) else None)
  return (
    fill_class_count(config, number)
    if model.get("name") == config.model.get("name") and number
    else config
  )


def check_class_count(config: ConfigDict, objective, outputs: dict[str, Any], task) -> None:
  """Refuse a model of fewer classes than the data have, and data of one; tell of classes that
  cannot be learned.

  Args:
    outputs: the model's, abstract.
  Raises:
    UserError: too few classes, of the model or of the data.
  """
  classes = getattr(task, "classes", ())
  if not classes or objective.targets not in _KEYS:
    return
  if objective.targets == "label" and len(classes) < 2:
    raise UserError(
      f"config.task: found one class, {classes[0]!r}, in task {config.task.name}, from which "
      "nothing can be learned; expected two or more, such as a folder for each"
    )
  of_N = getattr(task, "labels", None)
  if of_N is not None and (
    absent := [classes[n] for n in np.setdiff1d(np.arange(len(classes)), of_N)]
  ):
    message = (
      f"{len(absent)} of the {len(classes)} classes: "
      f"{', '.join(absent[:8])}{', …' * (len(absent) > 8)}"
    )
    process.log(f"task {task.name}: no example for training has {message}")
  labels = outputs["logits"].shape[-1] - objective.spare_classes
  key = _KEYS[objective.targets]
  if labels != len(classes):
    message = (
      f"config.model.{key}: found {labels}, but task {config.task.name} has {len(classes)} classes"
    )
    message += (
      f" ({', '.join(classes[:8])}{', …' * (len(classes) > 8)}); set "
      f"--config.model.{key}={len(classes)}"
    )
    if labels < len(classes):
      raise UserError(message)
    # other logits are a decoder's, of its tokens
    if key == "labels" or "labels" in (config.model.get("head") or {}):
      process.log(message)
