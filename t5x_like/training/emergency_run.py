"""A run that writes emergency copies of its state, see `checkpoints/emergency.py`."""

import time

from t5x_like.store.reader import check_unchanged
from t5x_like.training.run import TrainingRun
from t5x_like.training.state import to_tree


class EmergencyRun(TrainingRun):
  """A `TrainingRun` that copies its state near each host before some steps are dispatched."""

  def __init__(self, assembly, session, restored):
    super().__init__(assembly, session, restored)
    self._copied_step = restored.step

  def advance(self) -> bool:
    is_due = self.step % self.config.checkpoint.emergency.every == 0
    if is_due and self.step != self._copied_step and not self._save_copy():
      return False
    return super().advance()

  def _save_copy(self) -> bool:
    """Start a copy of this step; return False after a rollback."""
    if not self.drain():
      return False
    self.session.beat(f"keeping step {self.step}")
    since = time.perf_counter()
    check_unchanged()
    metadata = self.session.identity | {"rollbacks": self._rollbacks}
    self.session.checkpoints.save_copy(self.step, to_tree(self.state), metadata, self.session.flush)
    self._compiled_phase.meter.exclude_time(since)
    self._copied_step = self.step
    return True
