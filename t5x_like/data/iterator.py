"""Iterators over tf.data pipelines that call back into Python, and are safe to drop.

They may be dropped at any moment and from any thread.

Deleting a tf.data iterator waits, with the GIL held, for the calls it has in flight; a call that
needs the GIL then never ends. So no iterator is deleted here before it has ended: every pipeline
begins with a flag that ends its steps, and a dropped one is drained, that is, its flag is cleared
and the few batches in flight are fetched until there are no more. Only then is its memory released.

The garbage collector may drop an iterator on any thread, even inside one of the pipeline's own
calls, where draining would deadlock. A drop therefore only queues the pipeline for a single
draining thread. Iterators alive when the program ends are drained by an `atexit` function: after
the program's threads have ended, and before the interpreter denies the GIL to TensorFlow's threads.

Autotuning is off for the same reason: deleting an iterator also waits for its tuning thread, which
now and then misses its cancellation and sleeps for up to a minute (TensorFlow 2.21), with the GIL
still held.
"""

from __future__ import annotations

import atexit
import queue
import re
import threading
from collections.abc import Callable, Iterator

import numpy as np

from t5x_like.data.preprocessors import user_defined
from t5x_like.errors import DamageError, TransientError, UserError
from t5x_like.files import store_errors
from t5x_like.quiet_tensorflow import tf


def iterate(
  steps: tf.data.Dataset, build_pipeline: Callable[[tf.data.Dataset], tf.data.Dataset]
) -> Iterator[dict[str, np.ndarray]]:
  """Return the elements of `build_pipeline(steps)` as numpy arrays, which must not be written to.

  Args:
    steps: the start of the pipeline; may be infinite.
    build_pipeline: appends the rest of the pipeline, such as maps and batches. It must end when
      `steps` ends, and it sets its own parallelism: nothing is autotuned.

  Returns:
    A lazy iterator. Close or drop it at any time, on any thread; its memory is released a few
    batches later.

  Raises:
    UserError, DamageError, TransientError: raised by a Python function of the pipeline.
    SystemExit: an element was requested after the program had ended; it ends the thread silently.
    RuntimeError: the iteration began after the program had ended.
  """
  # The module's names may be gone when this is closed.
  pipeline = _Pipeline(steps, build_pipeline)
  dropped = _dropped
  try:
    _register(pipeline)
    yield from pipeline
  finally:
    dropped.put(pipeline)  # a SimpleQueue is safe to use during garbage collection


_ERRORS = {error.__name__: error for error in (UserError, DamageError, TransientError)}


class _Pipeline:
  """A pipeline that can be ended early."""

  def __init__(
    self, steps: tf.data.Dataset, build_pipeline: Callable[[tf.data.Dataset], tf.data.Dataset]
  ):
    options = tf.data.Options()
    options.autotune.enabled = False
    with tf.device("CPU:0"):
      running = tf.Variable(True, trainable=False)
      steps = steps.take_while(lambda _: running.read_value())
      self._elements = steps.apply(build_pipeline).with_options(options).as_numpy_iterator()
    self._running = running
    self._drained = False

  def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
    return self

  def __next__(self) -> dict[str, np.ndarray]:
    try:
      element = next(self._elements, None)
    except tf.errors.OpError as error:
      refusal = re.search(r"\b(UserError|DamageError|TransientError): (.*)", error.message)
      if refusal is None:
        failure = user_defined.failure_message(error.message)
        if failure:
          raise UserError(f"config.task.preprocessors: {failure}") from error
        raise
      name, message = refusal.groups()
      if name == "UserError" and store_errors.mentions_passing_fault(message):
        # TensorFlow drops the cause.
        name = "TransientError"
      raise _ERRORS[name](message) from error
    if self._drained:  # at the program's end; elements before this one may have been lost
      raise SystemExit("the program is ending, and with it the input pipeline")
    if element is None:
      raise StopIteration
    return element

  def drain(self) -> None:
    """End the pipeline and wait until none of its calls is in flight."""
    self._drained = True
    self._running.assign(False)
    while True:
      try:
        for _ in self._elements:
          pass
        return
      # The failed element is discarded like the others; elements after it are still in flight.
      except tf.errors.OpError:
        pass


_lock = threading.Lock()
_open: set[_Pipeline] = set()
_dropped: queue.SimpleQueue[_Pipeline | None] = queue.SimpleQueue()
_drainer: threading.Thread | None = None
_exiting = False


def _register(pipeline: _Pipeline) -> None:
  """Note an open pipeline, and start the draining thread with the first."""
  global _drainer
  with _lock:
    if _exiting:
      raise RuntimeError("the program is ending: no input pipeline can be opened")
    if _drainer is None:
      _drainer = threading.Thread(target=_drain_dropped, name="dataset_iterator", daemon=True)
      _drainer.start()
    _open.add(pipeline)


def _drain_dropped() -> None:
  """Drain dropped pipelines until the program ends."""
  while True:
    pipeline = _dropped.get()
    if pipeline is None:
      return
    pipeline.drain()
    _open.discard(pipeline)
    del pipeline  # do not keep it alive while waiting for the next


@atexit.register
def _drain_open() -> None:
  """Drain all pipelines at the end of the program."""
  global _exiting
  ended = False
  while not ended:
    try:
      with _lock:
        _exiting = True
      for pipeline in list(_open):
        _dropped.put(pipeline)
      _dropped.put(None)
      if _drainer is not None:
        _drainer.join()
      ended = True
    except KeyboardInterrupt:  # the wait is short, and exiting without it may hang
      pass
