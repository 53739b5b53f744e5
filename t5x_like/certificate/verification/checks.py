"""Run all checks of a certificate."""

import dataclasses
import random
from collections.abc import Callable

from t5x_like.certificate.history import Break
from t5x_like.certificate.verification.batches import check_batches
from t5x_like.certificate.verification.certified_run import CertifiedRun
from t5x_like.certificate.verification.kept_checkpoints import check_checkpoints
from t5x_like.certificate.verification.replay import ReplayResult, choose_steps, replay
from t5x_like.certificate.verification.small_files import check_config, check_metrics


@dataclasses.dataclass(frozen=True)
class Check:
  """The outcome of one check.

  Attributes:
    name: the part of the run that was compared with the chain, such as "metrics".
    summary: a line about the outcome.
    failure: the first difference; None if there is none.
  """

  name: str
  summary: str
  failure: Break | None = None


def check_all(
  run: CertifiedRun,
  num_batches: int,
  num_replayed: int,
  report_progress: Callable[[str, int], None],
) -> list[Check]:
  """Compare a run with its chain, and return the outcomes.

  Args:
    num_batches: the largest number of batches to rebuild, the first and the last among them.
    num_replayed: the largest number of steps to compute again.
    report_progress: called with the name of a check, and a count.
  Raises:
    UserError, DamageError: a file of the run, or its data, cannot be read.
  """
  kept_steps: list[int] = []

  def check_kept_checkpoints() -> str:
    kept_steps.extend(check_checkpoints(run))
    return _describe_checkpoints(run, kept_steps)

  def check_sampled_batches() -> str:
    steps = _sample_steps(run, num_batches)
    return check_batches(run, steps, lambda count: report_progress("data", count))

  def check_replay() -> str:
    steps_by_base = choose_steps(run, kept_steps, num_replayed)
    result = replay(run, steps_by_base, lambda count: report_progress("replay", count))
    return _describe_replay(result, run.bound)

  checks = [
    _run_check("config", lambda: check_config(run)),
    _run_check("metrics", lambda: check_metrics(run)),
    _run_check("state", check_kept_checkpoints),
  ]
  if num_batches:
    checks.append(_run_check("data", check_sampled_batches))
  has_failed = any(check.failure for check in checks)
  if num_replayed and not has_failed:  # a replay needs the checkpoints, the config and the data
    checks.append(_run_check("replay", check_replay))
  return checks


def _run_check(name: str, check: Callable[[], str]) -> Check:
  try:
    return Check(name, check())
  except Break as failure:
    return Check(name, str(failure), failure)


def _sample_steps(run: CertifiedRun, count: int) -> list[int]:
  """Return at most `count` steps: the first, the last, and random ones between them."""
  numbers = list(run.history.steps)
  if count >= len(numbers):
    return numbers
  inner_count = max(0, count - 2)
  inner = random.SystemRandom().sample(numbers[1:-1], inner_count)
  return [*{numbers[0], numbers[-1]}, *inner][: max(count, 1)]


def _describe_checkpoints(run: CertifiedRun, kept_steps: list[int]) -> str:
  if not kept_steps:
    return "no checkpoint is there"
  steps = ", ".join(map(str, kept_steps[-6:]))
  earlier = "…, " if len(kept_steps) > 6 else ""
  unsaved = run.history.last_step - kept_steps[-1]
  tail = f"; {unsaved} later steps are not saved" if unsaved else ""
  return f"every tensor of the checkpoints {earlier}{steps}{tail}"


def _describe_replay(result: ReplayResult, bound: float) -> str:
  if not result.num_steps:
    return "no step can be computed again: no kept checkpoint has later steps"
  bases = ", ".join(map(str, result.bases[:6]))
  ellipsis = ", …" if len(result.bases) > 6 else ""
  steps = f"{result.num_steps:,} steps from {bases}{ellipsis}"
  if result.must_be_equal:
    return f"{steps}: the same bits; {result.num_states} saved states too"
  return (
    f"{steps}, elsewhere than the run: {result.num_equal} with the same bits, losses within "
    f"{result.max_difference:.1e} (bound {bound:g})"
  )
