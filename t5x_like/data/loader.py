"""Batches of a task as a pure function of the step, which is all the state of the pipeline.

Global example i is in epoch i // num_examples, at position i % num_examples of that epoch's
permutation; step s holds the global examples s * batch_size to (s + 1) * batch_size - 1, and each
host makes only its own rows. A run's earlier phases are taken into account (`consumption.py`).
Starting at a step replays nothing, no iterator state is saved, and the batches do not depend on the
number of hosts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from t5x_like.data import consumption, iterator
from t5x_like.data.task import Task
from t5x_like.errors import UserError
from t5x_like.quiet_tensorflow import tf

EVAL_SEED = 0
_PREFETCH = 2  # finished batches that wait in memory, besides the batches in progress
# One call makes several small batches, to share its overhead: at most this many values of features,
# and this many steps.
_MAX_VALUES_PER_CALL = 2**20
_MAX_STEPS_PER_CALL = 64


def train_batches(
  task: Task,
  *,
  batch_size: int,
  seed: int,
  start_step: int = 0,
  rows: Sequence[int] | None = None,
  earlier: Sequence[consumption.Phase] = (),
) -> Iterator[dict[str, np.ndarray]]:
  """Return the endless training batches of this host.

  Args:
    task: the task to train on.
    batch_size: rows of the global batch.
    seed: the seed of the order and of the task's random draws.
    start_step: the run's step of the first batch yielded; any step opens as fast as the first.
    rows: this host's rows of the global batch, ascending; None for all.
    earlier: the run's phases before this one; their steps precede this task's first.

  Returns:
    An iterator over the task's features, each [len(rows), *shape].

  Raises:
    UserError: rows outside the batch, a step before the phase's first, or an earlier phase without
      steps.
  """
  rows = check_rows(batch_size, rows)
  steps, make_batches = training_pipeline(task, batch_size, seed, start_step, rows, earlier)
  return _iterate(steps, make_batches, task, rows)


def training_pipeline(
  task: Task,
  batch_size: int,
  seed: int,
  start_step: int,
  rows: np.ndarray,
  earlier: Sequence[consumption.Phase],
) -> tuple[tf.data.Dataset, Callable[[tf.Tensor], dict[str, tf.Tensor]]]:
  """Return the steps from `start_step` on, and the function that makes their batches.

  The function maps steps, int64 [S], to their concatenated batches.
  """
  first_step = sum(phase.steps for phase in earlier)
  if start_step < first_step:
    raise UserError(f"start_step: found {start_step}, expected at least {first_step}")
  start = consumption.phase_start(task, seed, earlier)

  def make_batches(step_S: tf.Tensor) -> dict[str, tf.Tensor]:
    index_B = _example_indices(step_S - first_step, batch_size, rows)
    return task.set_shapes(start.batch(index_B))

  last_step = np.iinfo(np.int64).max // (2 * batch_size) - 1  # its example indices still fit int64
  return tf.data.Dataset.range(start_step, last_step), make_batches


def eval_batches(
  task: Task,
  *,
  batch_size: int,
  rows: Sequence[int] | None = None,
  max_examples: int | None = None,
  indices: Sequence[int] | None = None,
) -> Iterator[dict[str, np.ndarray]]:
  """Return every example once, in index order; the noise is the same in every evaluation.

  Args:
    task: the task to evaluate on.
    batch_size: rows of the global batch.
    rows: this host's rows of the global batch, ascending; None for all.
    max_examples: the number of examples to use, from the first; None for all.
    indices: the examples to use, in any order; None for all.

  Returns:
    An iterator over ceil(examples / batch_size) batches, the same number on every host. A batch
    holds the task's features, each [len(rows), *shape], and `example_index` int32 [len(rows)]. Rows
    past the last example are 0 in every feature (so their loss weights are 0) and have
    example_index -1.

  Raises:
    UserError: rows outside the batch, or max_examples below 1.
  """
  rows = check_rows(batch_size, rows)
  if max_examples is not None and max_examples < 1:
    raise UserError(f"max_examples: found {max_examples}, expected at least 1, or None for all")
  num_examples = task.num_examples if indices is None else len(indices)
  if max_examples is not None:
    num_examples = min(num_examples, max_examples)
  batch = task.eval_batch or task.batch

  def make_batches(step_S: tf.Tensor) -> dict[str, tf.Tensor]:
    index_B = _example_indices(step_S, batch_size, rows)
    real_B = index_B < num_examples
    if indices is not None:
      index_B = tf.gather(tf.constant(indices, tf.int64), tf.where(real_B, index_B, 0))
    features = batch(tf.where(real_B, index_B, 0), tf.zeros_like(index_B), EVAL_SEED)
    features = _zero_padding(task.set_shapes(features), real_B)
    features["example_index"] = tf.cast(tf.where(real_B, index_B, -1), tf.int32)
    return features

  steps = tf.data.Dataset.range(-(-num_examples // batch_size))
  return _iterate(steps, make_batches, task, rows)


def _zero_padding(features: dict[str, tf.Tensor], real_B: tf.Tensor) -> dict[str, tf.Tensor]:
  """Set all features of the rows past the last example to 0."""
  zeroed = {}
  for name, value in features.items():
    mask = tf.reshape(real_B, [-1] + [1] * (value.shape.rank - 1))
    zeroed[name] = tf.where(mask, value, tf.zeros([], value.dtype))
  return zeroed


def _example_indices(step_S: tf.Tensor, batch_size: int, rows: np.ndarray) -> tf.Tensor:
  """Return the global indices of this host's examples, step after step: int64 [S * rows]."""
  return tf.reshape(step_S[:, None] * batch_size + rows, [-1])


def check_rows(batch_size: int, rows: Sequence[int] | None) -> np.ndarray:
  """Return the rows of this host, int64, all of them for None.

  Raises:
    UserError: rows outside the batch or not ascending, or an empty batch.
  """
  if batch_size < 1:
    raise UserError(f"batch_size: found {batch_size}, expected at least 1")
  if rows is None:
    return np.arange(batch_size)
  row_R = np.asarray(rows, np.int64)
  is_inside = row_R.size > 0 and row_R[0] >= 0 and row_R[-1] < batch_size
  if not is_inside or (np.diff(row_R) < 1).any():
    raise UserError(
      f"rows: found {row_R.tolist()}, expected ascending rows of a global batch of {batch_size}"
    )
  return row_R


def _iterate(
  steps: tf.data.Dataset,
  make_batches: Callable[[tf.Tensor], dict[str, tf.Tensor]],
  task: Task,
  rows: np.ndarray,
) -> Iterator[dict[str, np.ndarray]]:
  """Return the batches of `steps` in order.

  Several are made per call, in parallel and ahead of use.
  """
  _hide_accelerators()
  make_batches = tf.autograph.experimental.do_not_convert(make_batches)
  workers = max(2, min(16, os.cpu_count() or 2))
  options = tf.data.Options()
  # One worker per call, so that operations have no overhead of splitting.
  options.threading.max_intra_op_parallelism = 1
  batch_size = len(rows)
  values_per_step = batch_size * sum(math.prod(feature.shape) for feature in task.features.values())
  steps_per_call = max(1, min(_MAX_VALUES_PER_CALL // values_per_step, _MAX_STEPS_PER_CALL))

  def build_pipeline(steps: tf.data.Dataset) -> tf.data.Dataset:
    calls = steps.batch(steps_per_call)
    batches = calls.map(make_batches, num_parallel_calls=workers, deterministic=True)
    return batches.rebatch(batch_size).prefetch(_PREFETCH).with_options(options)

  return iterator.iterate(steps, build_pipeline)


def _hide_accelerators() -> None:
  """Leave accelerators to JAX.

  TensorFlow would otherwise claim their memory with its first operation.
  """
  for kind in ("GPU", "TPU"):
    try:
      tf.config.set_visible_devices([], kind)
    except (RuntimeError, ValueError):  # TensorFlow has started already, or does not know the kind
      pass
