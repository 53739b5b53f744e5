"""User-defined preprocessors: functions named `module:function` in `task.preprocessors`, applied
after the task's.

The name of its first parameter selects a function's input: `example`, the features of one example,
or `batch`, the features of several, each with a leading batch axis. The function returns all
features with unchanged names, shapes and dtypes. A parameter `seed` receives a seed for
`tf.random.stateless_…` that depends on the run's seed, the epoch and the example: int32 [2], or [B,
2] with a batch. Other parameters are arguments: `{"name": "module:function", "rate": 0.1}`. The
function runs inside `tf.data`, so it uses TensorFlow operations; `tf.numpy_function` wraps Python
code.

    def lowercase(example):  # of bytes, whose ids are the byte plus 3
      ids = example["encoder_input_tokens"]
      return {**example, "encoder_input_tokens": tf.where((ids >= 68) & (ids <= 93), ids + 32, ids)}

    config.task.preprocessors = ("my_module:lowercase",)

The task's fingerprint includes the name, the arguments, and the function's attribute `version` or,
without it, the SHA-256 of its file. A run therefore does not resume with a changed file unless an
unchanged `version` declares the examples the same.
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
from t5x_like.data.features import Features
from t5x_like.data.preprocessors import OWN
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.task import Batch
from t5x_like.errors import UserError, one_line


def failed(message: str) -> str | None:
  """Return the preprocessor in which an operation failed, from TensorFlow's message; None if it
  failed elsewhere."""
  found = re.search(rf"{OWN}([\w.]+)\.(\w+)/", message)
  return f"{found[1]}:{found[2]}" if found else None


def told(message: str) -> str | None:
  """Return the failed preprocessor and the cause, from TensorFlow's message; None if an operation
  failed elsewhere."""
  name = failed(message)
  return name and f"{name} failed: {reason(message)}"


def behind(task: Any, where: str, values: Any) -> Any:
  """Return a task followed by preprocessors; arguments and errors as for `apply`."""
  batch, contents = apply(where, values, task.batch, task.features, task.num_examples)
  evaluated = (
    task.evaluated and apply(where, values, task.evaluated, task.features, task.num_examples)[0]
  )
  content = json.dumps([task.fingerprint, contents], sort_keys=True)
  return dataclasses.replace(
    task,
    batch=batch,
    evaluated=evaluated,
    fingerprint=hashlib.sha256(content.encode()).hexdigest(),
    numbering=task.numbering or task.fingerprint,  # examples change, their order does not
  )


def apply(
  where: str, values: Any, batch: Batch, features: Features, num_examples: int
) -> tuple[Batch, list[Any]]:
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
  values = [values] if isinstance(values, str) or hasattr(values, "keys") else values
  if not isinstance(values, Sequence):
    raise UserError(f"{where}: found {values!r}, expected a list of names, module:function")
  contents = []
  for number, value in enumerate(values):
    step = _Step(where, number, value, features)
    contents.append(step.content)
    batch = step.after(batch)
    _check(step, batch, min(2, num_examples))
  return batch, contents


class _Step:
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
      found = f"{parameters[0]!r}" if parameters else "none"
      raise UserError(
        f"{self.label}: found {found} as its first parameter, expected `example` or `batch`"
      )
    self._together = parameters[0] == "batch"
    self._seeded = "seed" in parameters
    self._arguments = slots.fill(
      f"{where}[{number}]", arguments, self._function, given=(parameters[0], "seed")
    )
    self._scope = f"{OWN}{name.replace(':', '.')}"
    version = getattr(self._function, "version", None)
    if version is None:
      file = pathlib.Path(inspect.getsourcefile(inspect.unwrap(self._function)))
      version = hashlib.sha256(file.read_bytes()).hexdigest()
    self.content = [name, self._arguments, version]

  def after(self, batch: Batch) -> Batch:
    def made(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
      before = batch(example_index_B, epoch_B, seed)
      before = {
        name: tf.ensure_shape(value, [None, *self._features[name].shape])
        for name, value in before.items()
      }
      key_B = random.row_keys(seed, epoch_B, example_index_B, tf.constant(self._number, tf.int64))
      seed_B2 = tf.bitcast(key_B, tf.int32)
      with tf.name_scope(self._scope):
        if self._together:
          return self._called(before, seed_B2, (None,))
        specs = {
          name: tf.TensorSpec(feature.shape, feature.dtype)
          for name, feature in self._features.items()
        }
        return tf.map_fn(
          lambda one: self._called(*one, ()), (before, seed_B2), fn_output_signature=specs
        )

    return made

  def _called(
    self, features: dict[str, tf.Tensor], seed: tf.Tensor, axis: tuple
  ) -> dict[str, tf.Tensor]:
    """Apply the function to features and check the result; `axis` is (None,) for a batch, () for
    one example."""
    try:
      made = self._function(
        dict(features), **({"seed": seed} if self._seeded else {}), **self._arguments
      )
    except UserError:
      raise
    except Exception as error:
      raise UserError(f"{self.label} raised {type(error).__name__}: {one_line(error)}") from error
    if not hasattr(made, "keys"):
      raise UserError(
        f"{self.label}: returned a {type(made).__name__}, expected a dict of features"
      )
    if odd := sorted(set(made) ^ set(self._features)):
      how = "without" if odd[0] in self._features else "with the unknown feature"
      raise UserError(
        f"{self.label}: returned features {how} {odd[0]!r}, expected {', '.join(self._features)}"
      )
    out = {}
    for name, feature in self._features.items():
      value = tf.convert_to_tensor(made[name])
      shape = [*axis, *feature.shape]
      if value.dtype.name != feature.dtype or not value.shape.is_compatible_with(shape):
        raise UserError(
          f"{self.label}: returned {name} as {value.dtype.name} {_spelled(value.shape)}, expected "
          f"{feature.dtype} {_spelled(shape)}"
        )
      out[name] = tf.ensure_shape(value, shape)
    return out


def _spelled(shape: Any) -> str:
  sizes = (
    ["?" if shape.rank is None else str(n) for n in shape]
    if isinstance(shape, tf.TensorShape)
    else shape
  )
  return f"[{', '.join('B' if n in (None, 'None') else str(n) for n in sizes)}]"


def _check(step: _Step, batch: Batch, examples: int) -> None:
  """Try a preprocessor on the first examples."""

  @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)], autograph=False)
  def made(index_B: tf.Tensor) -> dict[str, tf.Tensor]:
    return batch(index_B, tf.zeros_like(index_B), 0)

  def of(examples: int) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in made(tf.range(examples, dtype=tf.int64)).items()}

  try:
    both = of(examples)
    again = of(examples)
    alone = of(1)
  except tf.errors.OpError as error:
    if failed(error.message) is None:
      raise
    raise UserError(f"{step.label} failed: {reason(error.message)}") from error
  for name, value in both.items():
    if not np.array_equal(value, again[name]):
      raise UserError(
        f"{step.label}: returned another {name} for the same examples when it was called again; "
        "draw random numbers with tf.random.stateless_… and the argument `seed`"
      )
    if not np.array_equal(value[:1], alone[name]):
      raise UserError(
        f"{step.label}: its {name} of an example depends on the other rows of the batch"
      )


def reason(message: str) -> str:
  """Extract the cause from TensorFlow's message: the line before the node's, after stacks and
  tracebacks."""
  before = message.partition("[[{{")[0]
  lines = [line for line in re.sub(r"\{\{.*?\}\}", "", before).splitlines() if line.strip()]
  return " ".join((lines or ["no reason was given"])[-1].split())[:300]
