"""Find the first step at which two runs differ, by their chains."""

import dataclasses

from t5x_like.certificate.digests import float_value
from t5x_like.certificate.history import CODE, CONFIG, DATA, STATE, Break, History, Start
from t5x_like.errors import UserError


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The comparison of two runs, step by step.

  Attributes:
    first: the first step that both chains have.
    last: the last step up to which they agree.
    num_states: the number of equal saved states.
    difference: the first difference; None if there is none.
    notes: differences of configs and environments.
  """

  first: int
  last: int
  num_states: int
  difference: Break | None
  notes: tuple[str, ...]


def compare_histories(history: History, against: History) -> Comparison:
  """Compare the steps, saved states and evaluations that two runs have in common.

  Raises:
    UserError: they have no step in common.
  """
  first = max(history.begins, against.begins)
  last = min(history.last_step, against.last_step)
  if last < first:
    raise UserError(
      f"--against: the chains have no step in common: one ends at step {last}, the other begins "
      f"at step {first}"
    )
  num_states = 0
  for number in range(first, last + 1):
    difference = _compare_number(history, against, number)
    if difference:
      break
    num_states += number in history.saves and number in against.saves
  else:
    number = last + 1
    difference = None
  notes = tuple(_compare_starts(history.starts[-1], against.starts[-1]))
  return Comparison(first, number - 1, num_states, difference, notes)


def _compare_number(history: History, against: History, number: int) -> Break | None:
  """Return how two runs differ at a step."""
  step = history.steps.get(number)
  against_step = against.steps.get(number)
  if step and against_step:
    if step.batch != against_step.batch:
      return Break(
        number, DATA, f"batch {step.batch[:12]} here and {against_step.batch[:12]} there"
      )
    for name in ("loss", "gradient_norm"):
      value = getattr(step, name)
      against_value = getattr(against_step, name)
      if value != against_value:
        return Break(
          number,
          CODE,
          f"from equal batches, {name} {float_value(value):.9g} here and "
          f"{float_value(against_value):.9g} there",
        )
    if step.metrics != against_step.metrics:
      return Break(number, CODE, "equal losses, and other metrics")
  save = history.saves.get(number)
  against_save = against.saves.get(number)
  if save and against_save and save.state != against_save.state:
    return Break(number, STATE, f"state {save.state[:12]} here and {against_save.state[:12]} there")
  evaluation = history.evaluations.get(number)
  against_evaluation = against.evaluations.get(number)
  if evaluation and against_evaluation and evaluation != against_evaluation:
    return Break(number, CODE, "equal steps, and other metrics of the evaluation")
  return None


def _compare_starts(start: Start, against: Start) -> list[str]:
  """Return lines about the environments and configs of the last starts."""
  notes = []
  names = {*start.environment, *against.environment}
  for name in sorted(names):
    value = start.environment.get(name)
    against_value = against.environment.get(name)
    if value != against_value:
      notes.append(f"{name}: {value} here, {against_value} there")
  if start.config != against.config:
    notes.append(f"{CONFIG}: {start.config[:12]} here, {against.config[:12]} there")
  return notes
