"""Rebuild batches of a run from its config and its data, and compare them with the chain."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from t5x_like import slots, training
from t5x_like.abstract_model import build_model
from t5x_like.certificate.digests import digest_batch
from t5x_like.certificate.history import CODE, DATA, Break
from t5x_like.certificate.verification.certified_run import CertifiedRun
from t5x_like.runtime import process
from t5x_like.training import phases
from t5x_like.training.build import build_phases
from t5x_like.training.workdir import build_identity

_MAX_SKIPPED = 64  # to skip more batches, the pipeline is opened again at a later one
Batch = dict[str, np.ndarray]


def check_batches(
  run: CertifiedRun, steps: Sequence[int], report_progress: Callable[[int], None]
) -> str:
  """Check that the batches of steps follow from config, data and seed.

  Args:
    steps: the steps to check, in any order.
    report_progress: called with the number of steps checked so far.
  Returns:
    A line about the batches. It names the steps whose batch differs and whose update was left out:
    the run's memory was faulty, and the batch changed no parameter.
  Raises:
    Break: the data differ from the run's, or the batch of a step, the first of which is named.
  """
  history = run.history
  config = run.config()
  run_phases = build_phases(config, process.build_task)
  _check_fingerprints(run, run_phases)
  source = BatchSource(run_phases, config)
  refused_steps = []
  by_index = {history.steps[step].batch_index: step for step in steps}
  for count, index in enumerate(sorted(by_index), start=1):
    step = by_index[index]
    digest = digest_batch(source.batch(index))
    is_same = digest == history.steps[step].batch
    if not is_same and history.steps[step].refused:
      refused_steps.append(step)
    elif not is_same:
      raise Break(
        step,
        DATA,
        f"config, data and seed give the batch {digest[:12]}, and the run was given "
        f"{history.steps[step].batch[:12]}",
      )
    report_progress(count)
  num_equal = len(by_index) - len(refused_steps)
  summary = f"{num_equal:,} of {len(history.steps):,} batches made again from the data"
  if not refused_steps:
    return summary
  numbers = ", ".join(map(str, sorted(refused_steps)))
  return f"{summary}; other batches in steps whose update was left out: {numbers}"


def _check_fingerprints(run: CertifiedRun, run_phases: list[phases.Phase]) -> None:
  """Check that the data and the vocabulary are the run's."""
  *early, main = run_phases
  early_tasks = {phase.name: phase.task for phase in early}
  fingerprints = build_identity(run.config(), main.task, early_tasks)["fingerprints"]
  recorded = run.history.starts[-1].fingerprints
  first_step = run.history.begins + 1
  for name in sorted({*fingerprints, *recorded}):
    expected = recorded.get(name)
    actual = fingerprints.get(name)
    if expected == actual:
      continue
    if name == "data_edition":
      raise Break(
        first_step,
        CODE,
        f"the run's batches are of edition {expected}, and this version of t5x_like makes edition "
        f"{actual}; certify with the version that made the run",
      )
    raise Break(
      first_step,
      DATA,
      f"the data that the config names are not the run's: fingerprints.{name} is {actual!s:.12}, "
      f"and the run's {expected!s:.12}",
    )


class BatchSource:
  """A source of whole batches of a run by their index, which is fast for ascending indices.

  Args:
    run_phases: the phases of the run.
    config: the resolved config of the run.
  """

  def __init__(self, run_phases: list[phases.Phase], config):
    self._phases = run_phases
    self._config = config
    self._cuts: dict[str, Callable[[Batch], Batch]] = {}
    self._batches: Iterator[Batch] | None = None
    self._phase: phases.Phase | None = None
    self._next_index = 0

  def batch(self, index: int) -> Batch:
    """Return the batch of an index, with the rows of all hosts, as the step received it."""
    phase = phases.phase_at(self._phases, index)
    num_skipped = index - self._next_index
    is_near = self._phase is phase and 0 <= num_skipped <= _MAX_SKIPPED
    if not is_near:
      self._phase = phase
      self._batches = phases.iterate_batches(self._phases, index)
      num_skipped = 0
    for _ in range(num_skipped):
      next(self._batches)
    batch = next(self._batches)
    self._next_index = index + 1
    return self._cutting_function(phase)(batch)

  def _cutting_function(self, phase: phases.Phase) -> Callable[[Batch], Batch]:
    """Return the function that cuts batches to the buckets of a phase."""
    if phase.task.buckets == 1:
      return lambda batch: batch
    if phase.name not in self._cuts:
      module = slots.module(phase.task.bucket_module, training)
      buckets = module.build_buckets(build_model(self._config), phase.task)
      self._cuts[phase.name] = buckets.cut
    return self._cuts[phase.name]
