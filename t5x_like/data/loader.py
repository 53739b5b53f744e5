"""Batches of a task: a pure function of the step, so the state of the input pipeline is the step
number.

Global example i is in epoch i // num_examples, at place i % num_examples of that epoch's
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
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.task import Task
from t5x_like.errors import UserError

EVAL_SEED = 0
_PREFETCH = 2  # finished batches held, besides the batches in progress
# One call makes several small batches, to share its overhead: up to this many numbers and steps.
_TOGETHER = 2**20
_MOST_STEPS = 64


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
  return _iterate(*training_pipeline(task, batch_size, seed, start_step, rows, earlier), task, rows)


def training_pipeline(
  task: Task,
  batch_size: int,
  seed: int,
  start_step: int,
  rows: np.ndarray,
  earlier: Sequence[consumption.Phase],
) -> tuple[tf.data.Dataset, Callable[[tf.Tensor], dict[str, tf.Tensor]]]:
  """Return the steps from `start_step` on and a function from steps, int64 [S], to their
  concatenated batches."""
  first_step = sum(phase.steps for phase in earlier)
  if start_step < first_step:
    raise UserError(f"start_step: found {start_step}, expected at least {first_step}")
  start = consumption.phase_start(task, seed, earlier)

  def made(step_S: tf.Tensor) -> dict[str, tf.Tensor]:
    return task.set_shapes(start.batch(_rows_of(step_S - first_step, batch_size, rows)))

  last_step = np.iinfo(np.int64).max // (2 * batch_size) - 1  # its example indices still fit int64
  return tf.data.Dataset.range(start_step, last_step), made


def eval_batches(
  task: Task,
  *,
  batch_size: int,
  rows: Sequence[int] | None = None,
  max_examples: int | None = None,
  only=None,
) -> Iterator[dict[str, np.ndarray]]:
  """Return every example once, in index order; the noise is the same in every evaluation.

  Args:
    task: the task to evaluate on.
    batch_size: rows of the global batch.
    rows: this host's rows of the global batch, ascending; None for all.
    max_examples: use only the first so many examples; None for all.
    only: the indices of the examples to use, int64 in any order; None for all.

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
  num_examples = min(task.num_examples if only is None else len(only), max_examples or math.inf)
  batch = task.eval_batch or task.batch

  def made(step_S: tf.Tensor) -> dict[str, tf.Tensor]:
    index_B = _rows_of(step_S, batch_size, rows)
    real_B = index_B < num_examples
    index_B = (
      index_B
      if only is None
      else tf.gather(tf.constant(only, tf.int64), tf.where(real_B, index_B, 0))
    )
    features = task.set_shapes(
      batch(tf.where(real_B, index_B, 0), tf.zeros_like(index_B), EVAL_SEED)
    )
    features = {
      name: tf.where(
        tf.reshape(real_B, [-1] + [1] * (value.shape.rank - 1)), value, tf.zeros([], value.dtype)
      )
      for name, value in features.items()
    }
    return features | {"example_index": tf.cast(tf.where(real_B, index_B, -1), tf.int32)}

  return _iterate(tf.data.Dataset.range(-(-num_examples // batch_size)), made, task, rows)


def _rows_of(step_S: tf.Tensor, batch_size: int, rows: np.ndarray) -> tf.Tensor:
  """Return the global indices of this host's rows, step after step: int64 [S] -> int64 [S *
  rows]."""
  return tf.reshape(step_S[:, None] * batch_size + rows, [-1])


def check_rows(batch_size: int, rows: Sequence[int] | None) -> np.ndarray:
  if batch_size < 1:
    raise UserError(f"batch_size: found {batch_size}, expected at least 1")
  found = np.arange(batch_size) if rows is None else np.asarray(rows, np.int64)
  if not found.size or found[0] < 0 or found[-1] >= batch_size or (np.diff(found) < 1).any():
    raise UserError(
      f"rows: found {found.tolist()}, expected ascending rows of a global batch of {batch_size}"
    )
  return found


def _iterate(
  steps: tf.data.Dataset,
  made: Callable[[tf.Tensor], dict[str, tf.Tensor]],
  task: Task,
  rows: np.ndarray,
) -> Iterator[dict[str, np.ndarray]]:
  """Return the batches of `steps` in order; they are made several per call, in parallel and ahead
  of use."""
  _hide_accelerators()
  made = tf.autograph.experimental.do_not_convert(made)
  workers = max(2, min(16, os.cpu_count() or 2))
  options = tf.data.Options()
  # one worker per call: no overhead of splitting operations
  options.threading.max_intra_op_parallelism = 1
  batch = len(rows)
  numbers = batch * sum(math.prod(feature.shape) for feature in task.features.values())
  together = max(1, min(_TOGETHER // numbers, _MOST_STEPS))
  return iterator.iterate(
    steps,
    lambda steps: (
      steps.batch(together)
      .map(made, num_parallel_calls=workers, deterministic=True)
      .rebatch(batch)
      .prefetch(_PREFETCH)
      .with_options(options)
    ),
  )


def _hide_accelerators() -> None:
  """Leave accelerators to JAX; TensorFlow would otherwise claim their memory with its first
  operation."""
  for kind in ("GPU", "TPU"):
    try:
      tf.config.set_visible_devices([], kind)
    except (RuntimeError, ValueError):  # TensorFlow has started already, or does not know the kind
      pass
