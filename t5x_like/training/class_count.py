"""Count a model's classes in the data where a recipe leaves their number open, and check it.

A recipe leaves the number open if its head, or a model without heads, has no `labels`, or
`labels="auto"`. Plans, which open no data, take the default of the head.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

import t5x_like.models
import t5x_like.objectives
from t5x_like import slots
from t5x_like.architectures import heads
from t5x_like.errors import UserError
from t5x_like.runtime import process

_OPEN_COUNTS = (None, "auto")


def fill_class_count(config: ConfigDict, classes: int) -> ConfigDict:
  """Return the config with the number of the data's classes, where it leaves the number open.

  A teacher has as many classes as the student.

  Args:
    classes: the number of classes of the data; 0 for data without classes.
  Raises:
    UserError: `labels` is "auto", and the data have no classes.
  """
  objective = slots.find(
    "config.objective.name", config.objective.name, t5x_like.objectives, "Objective"
  )
  key = objective.class_count_key()
  config = ConfigDict(config.to_dict())
  models = [config.model]
  if config.teacher.get("model"):
    models.append(config.teacher.model)
  for model in models:
    head: dict[str, Any] = {}
    labels = model.get("labels")
    if key != "labels":
      name, head = _head_arguments(model)
      if key is None or not _takes_labels(name):
        continue  # the model has no classes
      labels = head.get("labels")
    if labels == "auto" and not classes:
      raise UserError(
        f"config.model.{key}: found 'auto', but task {config.task.name} has no "
        "classes; give the number"
      )
    if labels in _OPEN_COUNTS and classes:
      change = {"labels": classes}
      if key != "labels":
        change = {"head": head | change}
      with model.unlocked(), model.ignore_type():
        model.update(change)
    elif model is config.model:
      classes = labels or classes  # the student's number, for the teacher
  return config


def _takes_labels(head_name: str) -> bool:
  head_class = slots.find("config.model.head", head_name, heads, "make")
  return "labels" in slots.argument_names(head_class)


def _head_arguments(model: ConfigDict) -> tuple[str, dict[str, Any]]:
  """Return the name of a model's head (by default its variant's), and its name and arguments."""
  head_spec = model.get("head") or "none"
  model_class = slots.find("config.model.name", model.get("name"), t5x_like.models, "Model")
  if head_spec == "none" and "head" in slots.argument_names(model_class):
    head_spec = getattr(slots.resolve_variant(model_class, model), "head", "none")
  name, arguments = slots.name_and_arguments("config.model.head", head_spec)
  return name, {"name": name} | arguments


def drop_automatic_labels(config: ConfigDict) -> ConfigDict:
  """Return the config with the defaults of the model instead of `labels="auto"`, for plans."""
  config_copy = ConfigDict(config.to_dict())
  for values in (config_copy.model, config_copy.model.get("head")):
    if isinstance(values, ConfigDict) and values.get("labels") == "auto":
      del values["labels"]
  return config_copy


def adopt_class_count(config: ConfigDict, model: dict[str, Any]) -> ConfigDict:
  """Return a recipe's config with the number of classes of a run, where the recipe leaves it open.

  Args:
    model: the run's `config.model`.
  """
  head = model.get("head")
  number = model.get("labels")
  if not number and isinstance(head, Mapping):
    number = head.get("labels")
  if not number or model.get("name") != config.model.get("name"):
    return config
  return fill_class_count(config, number)


def check_class_count(config: ConfigDict, objective, outputs: dict[str, Any], task) -> None:
  """Refuse a model of fewer classes than the data have, and data of one class.

  Print a line about classes without examples, and about outputs of the model without a class.

  Args:
    outputs: the model's abstract outputs.
  Raises:
    UserError: too few classes, of the model or of the data.
  """
  classes = getattr(task, "classes", ())
  key = objective.class_count_key()
  if not classes or key is None:
    return
  if objective.targets == "label" and len(classes) < 2:
    raise UserError(
      f"config.task: found one class, {classes[0]!r}, in task {config.task.name}, from which "
      "nothing can be learned; expected two or more, such as a folder for each"
    )
  labels_N = getattr(task, "labels", None)
  if labels_N is not None:
    absent = [classes[label] for label in np.setdiff1d(np.arange(len(classes)), labels_N)]
    if absent:
      process.log(
        f"task {task.name}: no example for training has {len(absent)} of the {len(classes)} "
        f"classes: {_first_classes(absent)}"
      )
  labels = outputs["logits"].shape[-1] - objective.spare_classes
  if labels == len(classes):
    return
  message = (
    f"config.model.{key}: found {labels}, but task {config.task.name} has {len(classes)} classes "
    f"({_first_classes(classes)}); set --config.model.{key}={len(classes)}"
  )
  if labels < len(classes):
    raise UserError(message)
  # Without `labels`, the logits are a decoder's, over its tokens.
  if key == "labels" or "labels" in (config.model.get("head") or {}):
    process.log(message)


def _first_classes(names: Sequence[str]) -> str:
  listed = ", ".join(names[:8])
  return f"{listed}, …" if len(names) > 8 else listed
