"""Graceful stopping: after a signal, all processes stop at the same step and the state is saved.

In one process, SIGTERM or SIGINT sets a flag that the loop reads between steps, and an evaluation
between batches. In several, the signal reaches jax's notifier, which informs the coordination
service. The service picks a step (or batch) that no process has passed yet.
"""

import os
import signal
import threading

import jax
from jax.experimental import multihost_utils

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
  """A context manager around the loop; `requested()` becomes true after SIGTERM or SIGINT.

  A second SIGINT ends the process at once (committed checkpoints are safe). Outside the main
  thread, where Python cannot handle signals, it only follows the other processes. The previous
  handlers are restored on exit.
  """

  def __init__(self):
    self._flag = threading.Event()
    self._previous = {}
    self._calls = 0
    self._agreed = False

  def __enter__(self) -> "StopRequest":
    # In several processes SIGTERM belongs to jax's notifier, a C++ handler installed by
    # jax.distributed.initialize; a Python handler would replace it, and the other processes would
    # never learn of the signal.
    self._distributed = jax.distributed.is_initialized() and jax.process_count() > 1
    if threading.current_thread() is threading.main_thread():
      for number in (signal.SIGINT,) if self._distributed else _SIGNALS:
        self._previous[number] = signal.signal(number, self._on_signal)
    return self

  def __exit__(self, *_) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler if handler is not None else signal.SIG_DFL)
    self._previous = {}

  def requested(self) -> bool:
    """Return whether to save and stop now.

    It becomes true after the same step in all processes, and stays true.

    All processes must call it equally often: after every step and before every batch of an
    evaluation.
    """
    self._calls += 1
    if self._distributed and not self._agreed:
      # Counted from one at every start: the service answers a signal before the first call with
      # count 1, which a resumed run would already have passed if it gave its step.
      self._agreed = multihost_utils.reached_preemption_sync_point(self._calls)
    return self._agreed if self._distributed else self._flag.is_set()

  def _on_signal(self, number: int, _frame) -> None:
    if number == signal.SIGINT:
      signal.signal(signal.SIGINT, signal.SIG_DFL)  # the next one ends the process
    self._flag.set()
    if self._distributed:
      os.kill(os.getpid(), signal.SIGTERM)
