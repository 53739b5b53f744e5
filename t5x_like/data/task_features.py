"""The features of a task from its arguments in a recipe, without building the task."""

from collections.abc import Mapping
from typing import Any

from t5x_like import slots
from t5x_like.data import tasks
from t5x_like.data.features import Features, load_vocabulary
from t5x_like.data.preprocessors import as_decoder
from t5x_like.errors import UserError


def is_known(name: str | None) -> bool:
  """Return whether a task's features are known without building it."""
  return name in slots.names(tasks)


def is_conversation(name: str | None) -> bool:
  """Return whether a decoder trained on a task answers messages; false for tasks outside."""
  return is_known(name) and slots.find("config.task.name", name, tasks, "Arguments").IS_CONVERSATION


def declare(arguments: Mapping[str, Any]) -> Features:
  """Return the features of a task.

  Args:
    arguments: its name and arguments, as in a recipe; missing arguments have their defaults.

  Raises:
    UserError: `is_known` is false for the task.
  """
  values = dict(arguments)
  name = values.pop("name", None)
  if not is_known(name):
    raise UserError(
      f"config.task.name: the features of {name!r} are known only once the task is built from its "
      "data"
    )
  arguments_class = slots.find("config.task.name", name, tasks, "Arguments")
  fields = slots.argument_names(arguments_class)
  # No feature depends on the required arguments that are missing, such as the source.
  task_arguments = dict.fromkeys(fields) | slots.defaults(arguments_class)
  task_arguments |= {key: value for key, value in values.items() if key in fields}
  vocabulary = load_vocabulary(values.get("store", "builtin"))
  features = arguments_class(**task_arguments).features(vocabulary)
  form = values.get("as_decoder")
  if form:
    features = as_decoder.describe(form, features)
  return features
