"""When to save: every so many steps, and after so many minutes."""

import math
import time
from collections.abc import Callable

from t5x_like.parallel import distributed


class SaveTimes:
  """Says at which steps to save.

  The clock is that of process 0. It is asked again when half of the time that is left, or a twentieth of all, should
  have passed, judged by the steps since the last save, and so at few steps: the processes need not meet at each.

  Args:
    options: `config.checkpoint`, of which `every` counts steps and `minutes` may be None.
    step: that the run starts from.
    clock: seconds from any point.
  """

  def __init__(self, options, step: int, clock: Callable[[], float] = time.monotonic):
    self._every, self._minutes, self._clock = options.every, options.minutes, clock
    self._start(step)

  def due(self, step: int) -> bool:
    """Whether to save this step, now; all processes must ask after every step, and get the same answer."""
    due = step % self._every == 0
    if not due and step >= self._look:
      ahead = distributed.from_first(lambda: self._ahead(step))
      due, self._look = ahead == 0, step + ahead
    if due:
      self._start(step)
    return due

  def _start(self, step: int) -> None:
    self._step, self._since = step, self._clock()
    self._look = math.inf if self._minutes is None else step + 1

  def _ahead(self, step: int) -> int:
    """In how many steps to look at the clock again; 0 if the time is over."""
    spent = self._clock() - self._since
    left, taken = 60 * self._minutes - spent, max(1, step - self._step)
    if left <= 0:
      return 0
    steps = min(left / 2, 3 * self._minutes) * taken / max(spent, 1e-3)
    return max(1, min(taken, int(steps)))  # no more than were timed: the first has only been dispatched
