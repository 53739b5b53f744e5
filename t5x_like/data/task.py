"""A task: a corpus, a vocabulary and a preprocessor that together turn an example's index into features.

The module path is the registry: the task named `span_corruption` is the function `task` of
`t5x_like/data/tasks/span_corruption.py`, and its keyword arguments are the task's configuration.
"""

import dataclasses
import importlib
import inspect
import pathlib
import types
import typing
from collections.abc import Callable
from typing import Any

from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.vocabularies import Vocabulary
from t5x_like.errors import UserError, did_you_mean


@dataclasses.dataclass(frozen=True)
class Feature:
  """What one example has under a name: its shape, without the batch axis, and its dtype's name."""

  shape: tuple[int, ...]
  dtype: str


@dataclasses.dataclass(frozen=True)
class Task:
  """Examples as a pure function of their index.

  Attributes:
    name: what metrics call it (`eval/<name>/loss`).
    vocabulary: what the ids belong to.
    fingerprint: SHA-256 over everything an example depends on besides seed, epoch and index: the store's content,
      the preprocessor and its arguments, the lengths.
    num_examples: examples in an epoch.
    features: what every example has.
    batch: (example_index int64 [B] in 0..num_examples-1, epoch int64 [B], seed) -> features with a leading axis B.
      TensorFlow operations only, so it works eagerly and inside `tf.function`. Row b depends on element b of its
      arguments and the seed, on nothing else.
  """

  name: str
  vocabulary: Vocabulary
  fingerprint: str
  num_examples: int
  features: dict[str, Feature]
  batch: Callable[[tf.Tensor, tf.Tensor, int], dict[str, tf.Tensor]]


def names() -> list[str]:
  """The names of all tasks there are."""
  folder = pathlib.Path(__file__).with_name("tasks")
  return sorted(file.stem for file in folder.glob("*.py") if not file.stem.startswith("_"))


def build(name: str, split: str, **kwargs: Any) -> Task:
  """Makes a task by name.

  Args:
    name: a module of `t5x_like/data/tasks`.
    split: the split of its corpus.
    **kwargs: the arguments of the module's `task` function, as a recipe gives them.

  Raises:
    UserError: no such task; an argument it does not have, lacks or has with another type, each named `task.<key>`;
      and whatever the task itself refuses.
  """
  if name not in names():
    raise UserError(f"task.name: found {name!r}, expected one of {', '.join(names())}{did_you_mean(name, names())}")
  function = importlib.import_module(f"t5x_like.data.tasks.{name}").task
  arguments = {"split": split, **kwargs}
  parameters = inspect.signature(function).parameters
  declared = typing.get_type_hints(function)
  for key, value in arguments.items():
    if key not in parameters:
      raise UserError(f"task.{key}: {name} has no such argument{did_you_mean(key, parameters)}; it has "
                      f"{', '.join(parameters)}")
    if not _is(value, declared[key]):
      raise UserError(f"task.{key}: found {value!r} of type {type(value).__name__}, expected {_words(declared[key])}")
  for key, parameter in parameters.items():
    if parameter.default is parameter.empty and key not in arguments:
      raise UserError(f"task.{key}: missing, {name} needs it: set it to a {_words(declared[key])}")
  return function(**arguments)


def _is(value: Any, kind: Any) -> bool:
  """Whether a recipe's value is of a declared type; a whole number is a float too, a truth value is no number."""
  origin = typing.get_origin(kind)
  if origin in (typing.Union, types.UnionType):
    return any(_is(value, member) for member in typing.get_args(kind))
  if origin is typing.Literal:
    return value in typing.get_args(kind)
  if kind in (int, float):
    return isinstance(value, (int, kind)) and not isinstance(value, bool)
  return isinstance(value, origin or kind)


def _words(kind: Any) -> str:
  if typing.get_origin(kind) in (typing.Union, types.UnionType):
    return " or ".join(_words(member) for member in typing.get_args(kind))
  if typing.get_origin(kind) is typing.Literal:
    return " or ".join(map(repr, typing.get_args(kind)))
  return "None" if kind is types.NoneType else getattr(kind, "__name__", str(kind))
