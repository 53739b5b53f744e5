"""The number of a model's classes: counted in the data where a recipe leaves it open, and checked against them.

Found by name. A recipe leaves the number open if its head or its detector has no `labels`, or `labels="auto"`. Plans,
which open no data, take the default of the head.
"""

from typing import Any

from ml_collections import ConfigDict

import t5x_like.models
import t5x_like.objectives
from t5x_like import slots
from t5x_like.architectures import heads
from t5x_like.architectures.build import variant_of
from t5x_like.errors import UserError
from t5x_like.runtime import process

_KEYS = {"label": "head.labels", "box_labels": "labels"}  # a target -> the model's key of its classes
_OPEN = (None, "auto")


def counted(config: ConfigDict, classes: tuple[str, ...]) -> ConfigDict:
  """Return the config with the number of the data's classes, where it leaves the number of the model's open.

  A teacher has as many classes as the student.

  Raises:
    UserError: `labels` is "auto", and the data have no classes.
  """
  key, models = _key(config), [values for values in (config.model, config.teacher.get("model")) if values]
  still, own = [values for values in models if _labels(values, key) in _OPEN], _labels(config.model, key)
  number = own if isinstance(own, int) and own else len(classes)
  if not still or not number:
    if any(_labels(values, key) == "auto" for values in still):
      raise UserError(f"config.model.{key}: found 'auto', but task {config.task.name} has no classes; give the number")
    return config
  made = ConfigDict(config.to_dict())
  for values in [made.model, *([made.teacher.model] if made.teacher.get("model") else [])]:
    if _labels(values, key) in _OPEN:
      _set(values, key, number)
  return made


def uncounted(config: ConfigDict) -> ConfigDict:
  """Return the config with the defaults of the model in place of `labels="auto"`, for plans."""
  made = ConfigDict(config.to_dict())
  for values in (made.model, made.model.get("head")):
    if isinstance(values, ConfigDict) and values.get("labels") == "auto":
      del values["labels"]
  return made


def of_run(config: ConfigDict, model: dict[str, Any]) -> ConfigDict:
  """Return a recipe's config with the number of classes of a run, whose `config.model` is given, where it is open."""
  key, theirs = _key(config), ConfigDict(model)
  if theirs.get("name") == config.model.get("name") and _labels(config.model, key) in _OPEN:
    if isinstance(number := _labels(theirs, key), int):
      config = ConfigDict(config.to_dict())
      _set(config.model, key, number)
  return config


def check(config: ConfigDict, objective, outputs: dict[str, Any], task) -> None:
  """Refuse a model of fewer classes than the data have, and tell of one of more; raise UserError.

  Args:
    outputs: the model's, abstract.
  """
  classes = getattr(task, "classes", ())
  if not classes or objective.targets not in _KEYS:
    return
  labels, key = outputs["logits"].shape[-1] - objective.spare_classes, _KEYS[objective.targets]
  if labels != len(classes):
    told = f"config.model.{key}: found {labels}, but task {config.task.name} has {len(classes)} classes"
    told += f" ({', '.join(classes[:8])}{', …' * (len(classes) > 8)}); set --config.model.{key}={len(classes)}"
    if labels < len(classes):
      raise UserError(told)
    if key == "labels" or "labels" in (config.model.get("head") or {}):  # other logits are a decoder's, of its tokens
      process.say(told)


def _key(config: ConfigDict) -> str | None:
  objective = slots.find("config.objective.name", config.objective.name, t5x_like.objectives, "Objective")
  return _KEYS.get(objective.targets)


def _labels(model: ConfigDict, key: str | None) -> Any:
  """Return the number of classes in a `config.model`; None or "auto" if it is open, 0 if the model has no such key."""
  if key == "labels":
    return model.get("labels")
  name, arguments = slots.name_and_arguments("config.model.head", _head(model) if key else "none")
  taken = slots.takes(slots.find("config.model.head", name, heads, "make"))
  return arguments.get("labels") if "labels" in taken else 0


def _head(model: ConfigDict) -> str | dict[str, Any]:
  """Return the head in a `config.model`, or the variant's; "none" for a model without heads."""
  if model.get("head"):
    return model.head
  model_class = slots.find("config.model.name", model.get("name"), t5x_like.models, "Model")
  return getattr(variant_of(model_class, model), "head", "none") if "head" in slots.takes(model_class) else "none"


def _set(model: ConfigDict, key: str, labels: int) -> None:
  with model.unlocked(), model.ignore_type():
    if key == "labels":
      model.labels = labels
    else:
      name, arguments = slots.name_and_arguments("config.model.head", _head(model))
      model.head = ConfigDict({"name": name} | arguments | {"labels": labels})
