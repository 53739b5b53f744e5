"""A run that keeps emergency copies of its state (`config.checkpoint.emergency`); see
`checkpoints/emergency.py`."""

import time

from t5x_like.store.reader import check_unchanged
from t5x_like.training.run import TrainingRun
from t5x_like.training.state import to_tree


class EmergencyRun(TrainingRun):
  """A `TrainingRun` whose state is kept near each host, every few steps, before the next one is
  dispatched."""

  def __init__(self, assembly, session, restored):
    super().__init__(assembly, session, restored)
    self._kept = restored.step

  def advance(self) -> bool:
    due = self.step % self.config.checkpoint.emergency.every == 0 and self.step != self._kept
    return (not due or self._keep()) and super().advance()

  def _keep(self) -> bool:
    """Start a copy of this step; return False after a rollback."""
    if not self.drain():
      return False
    self.session.beat(f"keeping step {self.step}")
    since = time.perf_counter()
    check_unchanged()
    metadata = self.session.identity | {"rollbacks": self._rollbacks}
    self.session.checkpoints.save_copy(self.step, to_tree(self.state), metadata, self.session.flush)
    self._stage.meter.exclude_time(since)
    self._kept = self.step
    return True
