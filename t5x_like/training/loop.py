"""The training loop."""

import contextlib
from collections.abc import Iterator

import jax

from t5x_like.checkpoints.save_times import SaveTimes
from t5x_like.runtime import process
from t5x_like.training.guard import RolledBack
from t5x_like.training.preemption import StopRequest, saving
from t5x_like.training.run import Run


def train(run: Run, *, profile: range | None = None) -> None:
  """Trains a run to its end: dispatches steps, reads metrics one step late, saves, evaluates, and stops on a signal.

  A step is saved before it is evaluated, so that a failing evaluator costs no training. A signal also ends an
  evaluation, between two batches; one that was missed is made up for at the next start.

  Args:
    run: an open run; the caller closes it.
    profile: the steps to record a profiler trace of.
  Raises:
    Preempted: a signal asked to stop; the state was saved.
    NumericError: the guard, or the state to save, found a value that is not finite, or a spike.
  """
  evaluate_every, due = run.config.eval_every, SaveTimes(run.config.checkpoint, run.step).due
  with saving(run), StopRequest() as stop, _profiler(run) as trace:
    run.between_batches = stop.check
    if run.step and run.step % evaluate_every == 0 and run.step < run.total_steps and not run.evaluated():
      run.evaluate()
    while run.step < run.total_steps and not run.exhausted:
      with contextlib.suppress(RolledBack):  # the guard has taken the run to an earlier step
        trace(run.step, profile)
        run.advance()
        last = run.step == run.total_steps
        if due(run.step) or last:
          run.save()
        stop.check()
        if run.step % evaluate_every == 0 and not last:  # the last step is evaluated by `finish`
          run.evaluate()
          if run.exhausted:
            process.say(
              f"step {run.step}: no better evaluation for as long as config.selection.patience says; stopping"
            )
            run.save()
    run.finish()


@contextlib.contextmanager
def _profiler(run: Run) -> Iterator:
  """Records a trace to `profile/` in the workdir while the step is in the requested window."""
  active = False

  def trace(step: int, window: range | None) -> None:
    nonlocal active
    if window is None or active == (step in window):
      return
    run.drain()
    active = step in window
    if active:
      jax.profiler.start_trace(str(run.workdir / "profile"))
    else:
      jax.profiler.stop_trace()

  try:
    yield trace
  finally:
    if active:
      jax.profiler.stop_trace()
