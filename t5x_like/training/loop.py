"""The training loop."""

import jax

from t5x_like.checkpoints.manager import SaveSchedule
from t5x_like.errors import Preempted
from t5x_like.runtime import process
from t5x_like.training.guard import RolledBack
from t5x_like.training.preemption import StopRequest
from t5x_like.training.run import TrainingRun


def train(run: TrainingRun, *, profile: range | None = None) -> None:
  """Train a run to its end: dispatch steps, read metrics one step late, save, evaluate.

  A step is saved before it is evaluated, so that a failing evaluator costs no training. A signal
  also ends an evaluation, between two batches; the next start repeats it.

  Args:
    run: an open run; the caller closes it.
    profile: the steps to record a profiler trace of.
  Raises:
    Preempted: a signal asked to stop; the state was saved.
    NumericError: the guard, or the state to save, found a value that is not finite, or a spike.
  """
  total = run.config.total_steps
  is_save_due = SaveSchedule(run.config.checkpoint, run.step).due
  is_stopping = False
  with StopRequest() as stop, Profiler(run, profile or range(0)) as profiler:
    if _is_evaluated(run) and not run.has_evaluation():
      is_stopping = not run.evaluate(stop.requested)

    while run.step < total and not run.is_out_of_patience and not is_stopping:
      try:
        profiler.begin_step()
        run.advance()
        profiler.end_step()

        is_saved = is_save_due(run.step) or run.step == total
        is_evaluated = _is_evaluated(run)
        if is_saved or is_evaluated:
          run.drain()
        if is_saved:
          run.save()
        is_stopping = stop.requested()
        if is_evaluated and not is_stopping:
          is_stopping = not run.evaluate(stop.requested)
        if is_stopping or run.is_out_of_patience:
          run.drain()
          run.save()
      except RolledBack:
        continue  # the run is back at an earlier step

    if run.step < total and run.is_out_of_patience:
      process.log(
        f"step {run.step}: no better evaluation for as long as "
        "config.selection.patience says; stopping"
      )
    if not is_stopping and not run.has_evaluation():
      is_stopping = not run.evaluate(stop.requested)
    if is_stopping:
      run.session.wait_for_save()
      raise Preempted(
        f"saved step {run.session.saved} of {total} in {run.session.address}; the same command "
        "continues it"
      )
    run.finish()


def _is_evaluated(run: TrainingRun) -> bool:
  """Return whether the current step is evaluated in the loop, as the last step is afterwards."""
  return 0 < run.step < run.config.total_steps and run.step % run.config.eval_every == 0


class Profiler:
  """A context that records a trace of some steps to `profile/` in the workdir.

  Args:
    run: the run whose steps are recorded.
    window: the steps to record.
  """

  def __init__(self, run: TrainingRun, window: range):
    self._run = run
    self._window = window
    self._is_active = False

  def begin_step(self) -> None:
    """Record the next step if it is in the window. Raises RolledBack as `run.drain`."""
    self._record(self._run.step + 1 in self._window)

  def end_step(self) -> None:
    """End the trace after the window's last step. Raises RolledBack as `run.drain`."""
    is_last = self._run.step == self._run.config.total_steps
    if self._is_active:
      self._record(self._run.step + 1 in self._window and not is_last)

  def _record(self, active: bool) -> None:
    """Start or stop the trace, between two steps."""
    if active == self._is_active:
      return
    self._run.drain()
    self._is_active = active
    if active:
      jax.profiler.start_trace(str(self._run.session.workdir / "profile"))
    else:
      jax.profiler.stop_trace()

  def __enter__(self) -> "Profiler":
    return self

  def __exit__(self, *_) -> None:
    if self._is_active:
      jax.profiler.stop_trace()
