"""Preprocessors of users: functions named `module:function` in `task.preprocessors`.

They are applied to the task's features, in order. The name of a function's first parameter selects
its input: `example`, the features of one example, or `batch`, the features of several, each with a
leading batch axis. The function returns all features with unchanged names, shapes and
dtypes. A parameter `seed` receives a seed for `tf.random.stateless_…` that depends on the run's
seed, the epoch and the example: int32 [2], or [B, 2] with a batch. Other parameters are arguments:
`{"name": "module:function", "rate": 0.1}`. The function runs inside `tf.data`, so it uses
TensorFlow operations; `tf.numpy_function` wraps Python code.

    def lowercase(example):  # The id of a byte is the byte plus 3.
      ids = example["encoder_input_tokens"]
      return {**example, "encoder_input_tokens": tf.where((ids >= 68) & (ids <= 93), ids + 32, ids)}

    config.task.preprocessors = ("my_module:lowercase",)

The task's fingerprint includes the name, the arguments, and the function's attribute `version` or,
without it, the SHA-256 of its file. A run therefore does not resume with a changed file, unless the
function's `version` is unchanged, which declares that the examples are the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5x_like import slots, trust
from t5x_like.data import random
from t5x_like.data.features import BatchFunction, Feature, Features
from t5x_like.data.preprocessors import SCOPE_PREFIX
from t5x_like.errors import UserError, one_line
from t5x_like.quiet_tensorflow import tf


def failed_preprocessor(message: str) -> str | None:
  """Return the preprocessor that TensorFlow's message blames; None for any other operation."""
  match = re.search(rf"{SCOPE_PREFIX}([\w.]+)\.(\w+)/", message)
  return f"{match[1]}:{match[2]}" if match else None


def failure_message(message: str) -> str | None:
  """Return the failed preprocessor with the cause, from TensorFlow's message.

  None if an operation failed outside of all preprocessors.
  """
  name = failed_preprocessor(message)
  return f"{name} failed: {failure_cause(message)}" if name else None


def failure_cause(message: str) -> str:
  """Return the line before the failed node in TensorFlow's message, which stack traces precede."""
  text_before_node = re.sub(r"\{\{.*?\}\}", "", message.partition("[[{{")[0])
  lines = [line for line in text_before_node.splitlines() if line.strip()]
  cause = lines[-1] if lines else "no reason was given"
  return " ".join(cause.split())[:300]


def append_to_task(task: Any, where: str, values: Any) -> Any:
  """Return a task followed by preprocessors; arguments and errors as for `apply`."""
  batch, contents = apply(where, values, task.batch, task.features, task.num_examples)
  eval_batch = task.eval_batch
  if eval_batch:
    eval_batch, _ = apply(where, values, eval_batch, task.features, task.num_examples)
  content = json.dumps([task.fingerprint, contents], sort_keys=True)
  return dataclasses.replace(
    task,
    batch=batch,
    eval_batch=eval_batch,
    fingerprint=hashlib.sha256(content.encode()).hexdigest(),
    numbering=task.numbering or task.fingerprint,  # examples change, their order does not
  )


def apply(
  where: str, values: Any, batch: BatchFunction, features: Features, num_examples: int
) -> tuple[BatchFunction, list[Any]]:
  """Apply preprocessors after a task's `batch`.

  Args:
    where: the key of the preprocessors, for messages.
    values: for each preprocessor its name, or its name and arguments.
    batch, features, num_examples: the task's attributes.

  Returns:
    (the task's new `batch`, the preprocessors' contribution to its fingerprint)

  Raises:
    UserError: a preprocessor cannot be imported, takes neither an example nor a batch, lacks an
      argument, raises, or changes names, shapes or dtypes; or its result for the first two examples
      varies between calls or depends on the other rows. The message names the preprocessor.
  """
  if isinstance(values, str) or hasattr(values, "keys"):
    values = [values]
  if not isinstance(values, Sequence):
    raise UserError(f"{where}: found {values!r}, expected a list of names, module:function")
  contents = []
  for number, value in enumerate(values):
    preprocessor = _Preprocessor(where, number, value, features)
    contents.append(preprocessor.content)
    batch = preprocessor.apply(batch)
    _check(preprocessor, batch, min(2, num_examples))
  return batch, contents


class _Preprocessor:
  """One preprocessor; `content` is its contribution to a fingerprint."""

  def __init__(self, where: str, number: int, value: Any, features: Features):
    self._number = number
    self._features = features
    name, arguments = slots.name_and_arguments(f"{where}[{number}]", value)
    if not name or ":" not in name:
      raise UserError(f"{where}[{number}]: found {name!r}, expected a function, module:function")
    self.label = f"{where}: {name}"
    self._function = trust.import_function(f"{where}[{number}]", name)
    parameters = list(inspect.signature(self._function).parameters)
    if not parameters or parameters[0] not in ("example", "batch"):
      first_parameter = f"{parameters[0]!r}" if parameters else "none"
      raise UserError(
        f"{self.label}: found {first_parameter} as its first parameter, "
        "expected `example` or `batch`"
      )
    self._takes_batch = parameters[0] == "batch"
    self._takes_seed = "seed" in parameters
    self._arguments = slots.fill(
      f"{where}[{number}]", arguments, self._function, supplied=(parameters[0], "seed")
    )
    self._scope = f"{SCOPE_PREFIX}{name.replace(':', '.')}"
    version = getattr(self._function, "version", None)
    if version is None:
      file = pathlib.Path(inspect.getsourcefile(inspect.unwrap(self._function)))
      version = hashlib.sha256(file.read_bytes()).hexdigest()
    self.content = [name, self._arguments, version]

  def apply(self, batch: BatchFunction) -> BatchFunction:
    """Return a function like `batch` that also applies the preprocessor to its features."""

    def preprocessed_batch(
      example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int
    ) -> dict[str, tf.Tensor]:
      features = {}
      for name, value in batch(example_index_B, epoch_B, seed).items():
        features[name] = tf.ensure_shape(value, [None, *self._features[name].shape])
      key_B = random.row_keys(seed, epoch_B, example_index_B, tf.constant(self._number, tf.int64))
      seed_B2 = tf.bitcast(key_B, tf.int32)
      with tf.name_scope(self._scope):
        if self._takes_batch:
          return self._call(features, seed_B2, (None,))
        return self._map_examples(features, seed_B2)

    return preprocessed_batch

  def _map_examples(
    self, features: dict[str, tf.Tensor], seed_B2: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    """Apply the function to each example of a batch."""
    specs = {}
    for name, feature in self._features.items():
      specs[name] = tf.TensorSpec(feature.shape, feature.dtype)
    return tf.map_fn(
      lambda example_and_seed: self._call(*example_and_seed, ()),
      (features, seed_B2),
      fn_output_signature=specs,
    )

  def _call(
    self, features: dict[str, tf.Tensor], seed: tf.Tensor, batch_axis: tuple
  ) -> dict[str, tf.Tensor]:
    """Apply the function to features and check its output.

    Args:
      features: the features of a batch or of an example.
      seed: int32 [B, 2] for a batch, [2] for an example.
      batch_axis: (None,) for a batch, () for one example.
    """
    arguments = dict(self._arguments)
    if self._takes_seed:
      arguments["seed"] = seed
    try:
      output = self._function(dict(features), **arguments)
    except UserError:
      raise
    except Exception as error:
      raise UserError(f"{self.label} raised {type(error).__name__}: {one_line(error)}") from error
    self._check_names(output)
    checked = {}
    for name, feature in self._features.items():
      value = tf.convert_to_tensor(output[name])
      shape = [*batch_axis, *feature.shape]
      self._check_shape(name, value, feature, shape)
      checked[name] = tf.ensure_shape(value, shape)
    return checked

  def _check_names(self, output: Any) -> None:
    if not hasattr(output, "keys"):
      raise UserError(
        f"{self.label}: returned a {type(output).__name__}, expected a dict of features"
      )
    unmatched_names = sorted(set(output) ^ set(self._features))
    if unmatched_names:
      name = unmatched_names[0]
      fault = "without" if name in self._features else "with the unknown feature"
      raise UserError(
        f"{self.label}: returned features {fault} {name!r}, expected {', '.join(self._features)}"
      )

  def _check_shape(
    self, name: str, value: tf.Tensor, feature: Feature, shape: list[int | None]
  ) -> None:
    if value.dtype.name != feature.dtype or not value.shape.is_compatible_with(shape):
      actual = f"{value.dtype.name} {_describe_shape(value.shape)}"
      raise UserError(
        f"{self.label}: returned {name} as {actual}, expected "
        f"{feature.dtype} {_describe_shape(shape)}"
      )


def _describe_shape(shape: Any) -> str:
  """Write a shape as text, with `B` for the batch axis and `?` for an unknown rank."""
  sizes = shape
  if isinstance(shape, tf.TensorShape):
    sizes = ["?"] if shape.rank is None else shape.as_list()
  names = ["B" if size is None else str(size) for size in sizes]
  return f"[{', '.join(names)}]"


def _check(preprocessor: _Preprocessor, batch: BatchFunction, num_examples: int) -> None:
  """Try a preprocessor on the first examples."""

  @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)], autograph=False)
  def call(index_B: tf.Tensor) -> dict[str, tf.Tensor]:
    return batch(index_B, tf.zeros_like(index_B), 0)

  def first_examples(count: int) -> dict[str, np.ndarray]:
    features = call(tf.range(count, dtype=tf.int64))
    return {name: value.numpy() for name, value in features.items()}

  try:
    features = first_examples(num_examples)
    repeated = first_examples(num_examples)
    alone = first_examples(1)
  except tf.errors.OpError as error:
    if failed_preprocessor(error.message) is None:
      raise
    raise UserError(f"{preprocessor.label} failed: {failure_cause(error.message)}") from error
  for name, value in features.items():
    if not np.array_equal(value, repeated[name]):
      raise UserError(
        f"{preprocessor.label}: returned a different {name} for the same examples when it was "
        "called again; draw random numbers with tf.random.stateless_… and the argument `seed`"
      )
    if not np.array_equal(value[:1], alone[name]):
      raise UserError(
        f"{preprocessor.label}: {name} of an example depends on the other rows of the batch"
      )
