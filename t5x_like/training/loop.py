"""The training loop."""

import contextlib
from collections.abc import Iterator

import jax

from t5x_like.checkpoints.manager import SaveSchedule
from t5x_like.errors import Preempted
from t5x_like.runtime import process
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
  every = run.config.eval_every
  total = run.config.total_steps
  due = SaveSchedule(run.config.checkpoint, run.step).due
  with StopRequest() as stop, _profiler(run, profile) as trace:
    stop_requested = False
    if 0 < run.step < total and run.step % every == 0 and not run.has_evaluation():
      stop_requested = not run.evaluate(stop.requested)
    while run.step < total and not run.is_out_of_patience and not stop_requested:
      if not (trace(run.step + 1) and run.advance() and trace(run.step + 1, begins=False)):
        continue  # the guard took the run back to an earlier step
      is_saved = due(run.step) or run.step == total
      is_evaluated = run.step % every == 0 and run.step < total
      if (is_saved or is_evaluated) and not run.drain():
        continue
      if is_saved:
        run.save()
      stop_requested = stop.requested() or (is_evaluated and not run.evaluate(stop.requested))
      if (stop_requested or run.is_out_of_patience) and run.drain():
        run.save()
    if run.step < total and run.is_out_of_patience:
      process.log(
        f"step {run.step}: no better evaluation for as long as "
        "config.selection.patience says; stopping"
      )
    # the last step is evaluated here
    if stop_requested or not (run.has_evaluation() or run.evaluate(stop.requested)):
      run.session.wait_for_save()
      raise Preempted(
        f"saved step {run.session.saved} of {total} in {run.session.address}; the same command "
        "continues it"
      )
    run.finish()


@contextlib.contextmanager
def _profiler(run: TrainingRun, window: range | None) -> Iterator:
  """Record a trace to `profile/` in the workdir while the step is in the window.

  Yields:
    A function to call before and after each step, with the next one; it returns False if the guard
    took the run back.
  """
  active = False

  def trace(step: int, begins: bool = True) -> bool:
    nonlocal active
    should_record = step in (window or ()) and step <= run.config.total_steps and (begins or active)
    if should_record == active:
      return True
    if not run.drain():
      return False
    active = should_record
    if active:
      jax.profiler.start_trace(str(run.session.workdir / "profile"))
    else:
      jax.profiler.stop_trace()
    return True

  try:
    yield trace
  finally:
    if active:
      jax.profiler.stop_trace()
