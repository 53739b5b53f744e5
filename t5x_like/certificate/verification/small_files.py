"""Compare `config.json` and `metrics.jsonl` with the chain."""

import sys
from typing import Any

from t5x_like import config as config_lib
from t5x_like.certificate.digests import digest_metrics, float_bits, float_value
from t5x_like.certificate.history import CONFIG, METRICS, Break, Step
from t5x_like.certificate.recorder import MAX_UNSENT_STEPS
from t5x_like.certificate.verification.certified_run import CertifiedRun
from t5x_like.files import checked_json
from t5x_like.report.writer import FILE, read_metrics
from t5x_like.saved_model.workdir import IDENTITY_FILE

_TRAIN = "train/"
_EVALUATION = "eval/"
_NAN = "7fc00000"


def check_config(run: CertifiedRun) -> str:
  """Check that `config.json` is the config of the last start; return a line about it.

  Raises:
    Break: it is another one; names the first key that differs, if the old config is known.
  """
  start = run.history.starts[-1]
  digest = checked_json.digest(run.identity)
  if digest == start.config:
    return f"{IDENTITY_FILE} is the config of the last start, {digest[:12]}"
  difference = f"its digest is {digest[:12]}"
  recorded = run.identity_of(start.config)
  if recorded is not None:
    before = config_lib.flatten(recorded)
    now = config_lib.flatten(run.identity)
    keys = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    difference = f"{keys[0]} is {now.get(keys[0])!r:.40}, and was {before.get(keys[0])!r:.40}"
  raise Break(
    start.step,
    CONFIG,
    f"{IDENTITY_FILE} is not the config of the last start, {start.config[:12]}: {difference}",
  )


def check_metrics(run: CertifiedRun) -> str:
  """Check that every line of `metrics.jsonl` agrees with the chain, and that none is missing.

  Returns:
    A line about it, which names steps whose lines the run itself has marked as lost.
  Raises:
    Break: at the first step that does not agree.
  """
  history = run.history
  training_steps = set()
  evaluated_steps = set()
  lost_steps: set[int] = set()
  for row in read_metrics(run.folder):
    number = row["step"]
    if number <= history.begins:
      continue
    if "missing_from" in row:
      lost_steps.update(_lost_steps(run, row))
    elif any(name.startswith(_EVALUATION) for name in row):
      _check_once(number, evaluated_steps, "evaluations")
      _check_evaluation(run, row)
    else:
      _check_once(number, training_steps, "training metrics")
      _check_training(run, row)
  for number, step in history.steps.items():
    if _is_line_due(number, step) and number not in training_steps | lost_steps:
      if number < history.last_step:  # the last one may be on its way
        raise Break(number, METRICS, f"{FILE} has no line of it")
  for number in history.evaluations:
    is_certified = history.begins < number < history.last_step
    if is_certified and number not in evaluated_steps | lost_steps:
      raise Break(number, METRICS, f"{FILE} has no line of its evaluation")
  lost = ""
  if lost_steps:
    lost = f"; the run marks steps {min(lost_steps)} to {max(lost_steps)} as lost"
  return f"{len(training_steps):,} lines of steps and {len(evaluated_steps):,} of evaluations{lost}"


def _lost_steps(run: CertifiedRun, row: dict[str, Any]) -> range:
  """Return the steps whose lines a mark of the run says are lost."""
  first = row["missing_from"]
  if type(first) is not int:
    raise Break(row["step"], METRICS, f"{FILE} has a mark of lost lines without a step")
  return range(max(first, 1), min(row["step"], run.history.last_step) + 1)


def _check_once(number: int, steps: set[int], noun: str) -> None:
  if number in steps:
    raise Break(number, METRICS, f"{FILE} has two lines of its {noun}")
  steps.add(number)


def _is_line_due(number: int, step: Step) -> bool:
  start = step.lineage.last
  is_regular = number % start.log_every == 0 or number == start.total_steps
  return is_regular or bool(step.refused)


def _check_training(run: CertifiedRun, row: dict[str, Any]) -> None:
  """Compare a line about a step with the step's record."""
  number = row["step"]
  history = run.history
  step = history.steps.get(number)
  if step is None:
    num_processes = history.starts[-1].environment.get("processes")
    is_unsent = num_processes != 1 and number <= history.last_step + MAX_UNSENT_STEPS
    if is_unsent and not history.is_finished and history.last_step not in history.saves:
      return
    raise Break(
      number, METRICS, f"{FILE} has a line of it, and the chain ends at step {history.last_step}"
    )
  values = {name.removeprefix(_TRAIN): x for name, x in _numbers(row, _TRAIN).items()}
  for name, recorded in (("loss", step.loss), ("gradient_norm", step.gradient_norm)):
    if _bits(values.get(name)) != _finite_bits(recorded):
      raise Break(
        number,
        METRICS,
        f"{FILE} has the {name} {values.get(name)!s:.40}, and the chain "
        f"{float_value(recorded):.9g}",
      )
  if digest_metrics(values) != step.metrics:
    raise Break(
      number, METRICS, f"{FILE} has the recorded loss, and other values of its other metrics"
    )


def _check_evaluation(run: CertifiedRun, row: dict[str, Any]) -> None:
  """Compare a line about an evaluation with its record."""
  number = row["step"]
  values = _numbers(row, _EVALUATION)
  recorded = run.history.evaluations.get(number)
  if recorded is None:
    raise Break(number, METRICS, f"{FILE} has an evaluation that the chain does not have")
  if digest_metrics(values) != recorded:
    raise Break(number, METRICS, f"{FILE} has other metrics of its evaluation than the chain")


def _numbers(row: dict[str, Any], prefix: str) -> dict[str, float | None]:
  """Return the values of a line whose names have a prefix; null stands for NaN and infinities."""
  values = {}
  for name, value in row.items():
    if not name.startswith(prefix):
      continue
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and abs(value) <= sys.float_info.max):
      raise Break(row["step"], METRICS, f"{FILE} has {name} {value!r:.40}, expected a number")
    values[name] = value
  return values


def _bits(value: float | None) -> str:
  return _NAN if value is None else float_bits(value)


def _finite_bits(bits: str) -> str:
  exponent = int(bits, 16) >> 23 & 0xFF
  return _NAN if exponent == 0xFF else bits
