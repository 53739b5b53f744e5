"""Iterating a tf.data pipeline that calls back into Python, which may be dropped at any moment and from any thread.

Deleting a tf.data iterator waits for the calls it has under way, with the interpreter's lock held; a call that needs
that lock never ends then. So no iterator is deleted here before it has ended: every pipeline begins with a flag that
ends its steps, and a dropped one is drained, that is, its flag is lowered and the few batches under way are fetched
until there are no more. Only then is its memory released.

A drop can be the work of the garbage collector, on any thread, one of the pipeline's own calls included; draining
there could wait for itself. A drop therefore only queues the pipeline for the one thread that drains. Iterators alive
when the program ends are drained by an `atexit` function: after the program's threads have ended, and before the
interpreter refuses its lock to TensorFlow's.

Autotuning is off, for the same reason: deleting an iterator also waits for the thread that tunes it, which now and then
misses its cancellation and sleeps on, up to a minute (TensorFlow 2.21), still with the interpreter's lock held.
"""

import atexit
import queue
import re
import threading
from collections.abc import Callable, Iterator

import numpy as np

from t5x_like.data.quiet_tensorflow import tf
from t5x_like.errors import UserError


def iterate(
  steps: tf.data.Dataset, through: Callable[[tf.data.Dataset], tf.data.Dataset]
) -> Iterator[dict[str, np.ndarray]]:
  """The elements of `through(steps)` as numpy arrays, which are not to be written to.

  Args:
    steps: where the pipeline begins; endless is fine.
    through: what follows, such as maps and batches; it must not wait for more of `steps` than there are when these end.
      Parallelism is as given there: nothing is autotuned.

  Returns:
    An iterator that starts to work when first asked. Close or drop it whenever and wherever; its memory is released a
    few batches later.

  Raises:
    UserError: what a Python function of the pipeline raised as such.
    SystemExit: asked for more after the program has ended; it ends the thread silently.
    RuntimeError: started after the program has ended.
  """
  pipeline, dropped = _Pipeline(steps, through), _dropped  # the module's names may be gone when this is closed
  try:
    _open_one(pipeline)
    yield from pipeline
  finally:
    dropped.put(pipeline)  # a SimpleQueue takes this in a garbage collection too


class _Pipeline:
  """A pipeline over steps that can be ended."""

  def __init__(self, steps: tf.data.Dataset, through: Callable[[tf.data.Dataset], tf.data.Dataset]):
    options = tf.data.Options()
    options.autotune.enabled = False
    with tf.device("CPU:0"):
      running = tf.Variable(True, trainable=False)
      steps = steps.take_while(lambda _: running.read_value())
      self._elements = steps.apply(through).with_options(options).as_numpy_iterator()
    self._running, self._drained = running, False

  def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
    return self

  def __next__(self) -> dict[str, np.ndarray]:
    try:
      element = next(self._elements, None)
    except tf.errors.OpError as error:
      refusal = re.search(r"\bUserError: (.*)", error.message)
      if refusal is None:
        raise
      raise UserError(refusal[1]) from error
    if self._drained:  # by the program's end; elements between the last and this one may be lost
      raise SystemExit("the program is ending, and with it the input pipeline")
    if element is None:
      raise StopIteration
    return element

  def drain(self) -> None:
    """Ends the pipeline and waits until nothing of it is under way."""
    self._drained = True
    self._running.assign(False)
    while True:
      try:
        for _ in self._elements:
          pass
        return
      except tf.errors.OpError:  # an element nobody waits for could not be made; those after it are still under way
        pass


_lock = threading.Lock()
_open: set[_Pipeline] = set()
_dropped: queue.SimpleQueue[_Pipeline | None] = queue.SimpleQueue()
_drainer: threading.Thread | None = None
_exiting = False


def _open_one(pipeline: _Pipeline) -> None:
  global _drainer
  with _lock:
    if _exiting:
      raise RuntimeError("the program is ending: no input pipeline can be opened")
    if _drainer is None:
      _drainer = threading.Thread(target=_drain_dropped, name="dataset_iterator", daemon=True)
      _drainer.start()
    _open.add(pipeline)


def _drain_dropped() -> None:
  while (pipeline := _dropped.get()) is not None:
    pipeline.drain()
    _open.discard(pipeline)
    del pipeline  # not kept while waiting for the next


@atexit.register
def _drain_open() -> None:
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
    except KeyboardInterrupt:  # impatience; but the wait is short, and ending without it may hang
      pass
