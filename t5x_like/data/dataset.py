"""The training batches of a task as an ordinary `tf.data.Dataset`, for programs without JAX."""

from __future__ import annotations

from collections.abc import Sequence

from t5x_like.data import loader
from t5x_like.data.task import Task
from t5x_like.quiet_tensorflow import tf


def dataset(
  task: Task,
  seed: int = 0,
  start: int = 0,
  *,
  batch_size: int = 128,
  rows: Sequence[int] | None = None,
) -> tf.data.Dataset:
  """Return the endless batches of a run with this seed and batch size, from a step on.

  The run has no earlier phases.

  Args:
    task: the task.
    seed: the seed of the order and of the task's random draws.
    start: the step of the first batch; any step opens as fast as the first.
    batch_size: rows of the global batch.
    rows: the rows to return, ascending; None for all.

  Returns:
    A dataset of the task's features with a leading axis of rows. It makes each batch on request and
    calls Python functions. Dropping an iterator over a later `prefetch` or parallel `map` early can
    deadlock TensorFlow; for batches prefetched in parallel use `loader.train_batches`.

  Raises:
    UserError: rows outside the batch, or a negative start.
  """
  chosen_rows = loader.check_rows(batch_size, rows)
  steps, make_batches = loader.training_pipeline(task, batch_size, seed, start, chosen_rows, ())

  def batch(step: tf.Tensor) -> dict[str, tf.Tensor]:
    features = make_batches(step[None])
    return {
      name: tf.ensure_shape(value, [len(chosen_rows), *value.shape[1:]])
      for name, value in features.items()
    }

  options = tf.data.Options()
  options.autotune.enabled = False  # autotuning would prefetch batches
  return steps.map(tf.autograph.experimental.do_not_convert(batch)).with_options(options)
