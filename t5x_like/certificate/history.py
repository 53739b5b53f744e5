"""Read a chain as the history of a run, and check that it is one history without gap or fork.

A start continues from a step that was saved by the chain's records, with the state that was saved.
Later steps of an earlier start are repeated, and must have the same result. If the two starts
differ in versions or devices, batches must be equal, and losses up to rounding; if they differ in
config, nothing is compared. A step whose update the guard left out may have another result when it
is repeated, as its cause may have been faulty memory. After it, the two starts have different
states, and only their batches must be equal.
"""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterable
from typing import Any

from t5x_like.certificate import chain
from t5x_like.certificate.chain import ORIGIN, Record, hash_line
from t5x_like.certificate.digests import float_value

# The aspects in which a run may differ from its certificate.
CHAIN = "chain"
CONFIG = "config"
DATA = "data"
CODE = "code"
STATE = "state"
METRICS = "metrics"
# Relative differences of losses computed by other versions, devices or layouts.
BOUND_FLOAT32 = 1e-3
BOUND_LOW_PRECISION = 3e-2
_SHA256 = re.compile("[0-9a-f]{64}")
_METRICS_DIGEST = re.compile("[0-9a-f]{32}")
_BITS = re.compile("[0-9a-f]{8}")
_DETERMINISTIC_GPU = "xla_gpu_deterministic_ops=true"
# Entries of the environment that change no numbers, or follow from other entries.
_NOT_COMPUTING = ("operating_system", "devices_per_process")


class Break(Exception):
  """The first step at which a certificate does not hold.

  Args:
    step: the first step that is wrong.
    aspect: what is wrong: `CHAIN`, `CONFIG`, `DATA`, `CODE`, `STATE` or `METRICS`.
    reason: the values found and expected.
  """

  def __init__(self, step: int, aspect: str, reason: str):
    super().__init__(f"step {step}: {aspect}: {reason}")
    self.step = step
    self.aspect = aspect
    self.reason = reason


@dataclasses.dataclass(frozen=True)
class Start:
  """A start of a run.

  Attributes:
    line: the number of its line in the chain.
    step: the step that it continued from.
    state: the digest of the state of that step.
    batches_passed: the number of batches that rollbacks had skipped before.
    config: the digest of its config.
    fingerprints: the fingerprints of the data and the vocabulary, by name.
    environment: devices, host, versions and flags.
  """

  line: int
  step: int
  time: str
  state: str
  batches_passed: int
  config: str
  fingerprints: dict[str, Any]
  log_every: int
  total_steps: int
  environment: dict[str, Any]

  def computes_like(self, environment: dict[str, Any]) -> bool:
    """Return whether an environment computes the same bits as the environment of this start."""
    keys = {*self.environment, *environment} - {*_NOT_COMPUTING}
    is_same = all(self.environment.get(key) == environment.get(key) for key in keys)
    return is_same and self.is_deterministic

  @property
  def is_deterministic(self) -> bool:
    """Whether a repeated step gives the same bits."""
    on_gpu = self.environment.get("platform") == "gpu"
    return not on_gpu or _DETERMINISTIC_GPU in str(self.environment.get("xla_flags"))


@dataclasses.dataclass(frozen=True)
class Lineage:
  """The starts that led to a state: two states of equal lineage and step have equal bits.

  Attributes:
    configs: a digest over the configs of the starts, and the steps at which they changed.
    environments: a digest over the environments of the starts, and the steps at which they changed.
    refusals: a digest over the steps whose updates were left out; "" for none.
    last: the last of the starts.
  """

  configs: str
  environments: str
  refusals: str
  last: Start

  def continue_with(self, start: Start) -> "Lineage":
    """Return the lineage after a start."""
    configs = self.configs
    environments = self.environments
    if start.config != self.last.config:
      configs = _extend_digest(configs, start.step, start.config)
    if not self.last.computes_like(start.environment):
      environments = _extend_digest(environments, start.step, start.environment)
    return Lineage(configs, environments, self.refusals, start)

  def continue_after_refusal(self, step: int) -> "Lineage":
    """Return the lineage after a step whose update was left out."""
    return dataclasses.replace(self, refusals=_extend_digest(self.refusals, step, "refused"))

  def equals(self, lineage: "Lineage") -> bool:
    """Return whether two lineages lead to equal bits."""
    is_same_config = self.configs == lineage.configs
    is_same_environment = self.environments == lineage.environments
    return is_same_config and is_same_environment and self.refusals == lineage.refusals

  @classmethod
  def first(cls, start: Start) -> "Lineage":
    """Return the lineage of a run's first start."""
    configs = _extend_digest("", start.step, start.config)
    environments = _extend_digest("", start.step, start.environment)
    return cls(configs, environments, refusals="", last=start)


def _extend_digest(digest: str, step: int, value: Any) -> str:
  content = json.dumps([digest, step, value], sort_keys=True)
  return hashlib.sha256(content.encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Step:
  """A step of a run.

  Attributes:
    batch_index: the index of its batch in the order of the data.
    batch: the digest of the batch.
    loss, gradient_norm: float32, as bits.
    metrics: the digest of all its metrics.
    refused: the guard's reason to refuse the update, "" if it did not.
  """

  batch_index: int
  batch: str
  loss: str
  gradient_norm: str
  metrics: str
  refused: str
  lineage: Lineage


@dataclasses.dataclass(frozen=True)
class Save:
  """A saved step.

  Attributes:
    state: the digest of its state.
    batches_passed: the number of batches that rollbacks had skipped before.
  """

  state: str
  batches_passed: int
  lineage: Lineage


@dataclasses.dataclass(frozen=True)
class Rollback:
  """A return of the run by its guard from a refused step to a saved one."""

  refused_step: int
  step: int
  reason: str


@dataclasses.dataclass
class History:
  """The history of a run by the records of its chain.

  Attributes:
    starts, rollbacks: all starts and rollbacks, in order.
    steps, saves, evaluations: the records of the run's present state, by step. Of a repeated step,
      only the last record is included, and steps that were rolled back are not. Evaluations are
      digests of metrics.
    begins: the step at which the chain begins.
    last_step: the last step with a record.
    head: the hash of the last line.
    num_records: the number of records of the whole chain.
    repeated: the number of repetitions of steps with the same bits.
    rounded: the number of repetitions of steps, in another environment, with other bits.
    refused_once: the steps whose repetitions had different results, and whose update was left out
      at least once.
  """

  starts: list[Start] = dataclasses.field(default_factory=list)
  rollbacks: list[Rollback] = dataclasses.field(default_factory=list)
  steps: dict[int, Step] = dataclasses.field(default_factory=dict)
  saves: dict[int, Save] = dataclasses.field(default_factory=dict)
  evaluations: dict[int, str] = dataclasses.field(default_factory=dict)
  begins: int = 0
  last_step: int = 0
  head: str = ORIGIN
  num_records: int = 0
  repeated: int = 0
  rounded: int = 0
  refused_once: list[int] = dataclasses.field(default_factory=list)

  @property
  def skipped(self) -> list[int]:
    """The steps whose updates the guard left out."""
    return [number for number, step in self.steps.items() if step.refused]

  @property
  def is_finished(self) -> bool:
    """Whether the run has reached the last step of its config."""
    return self.last_step >= self.starts[-1].total_steps


class HistoryReader:
  """Follow the records of a chain, and check each against those before it.

  Args:
    bound: the largest relative difference of losses that another environment may cause.

  Attributes:
    history: the history up to the last record that was read.
  """

  def __init__(self, bound: float):
    self._bound = bound
    self.history = History()
    self._lineage: Lineage | None = None
    self._batches_passed = 0
    # The last record of each step and index of its batch, or step and batches passed.
    self._past_steps: dict[tuple[int, int], Step] = {}
    self._past_saves: dict[tuple[int, int], Save] = {}
    self._past_evaluations: dict[tuple[int, int], tuple[str, Lineage]] = {}

  def read(self, lines: Iterable[bytes]) -> History:
    """Follow all lines of a chain.

    Raises:
      Break: at the first record that does not follow from those before it.
    """
    for line in lines:
      self._follow(line)
    if not self.history.starts:
      raise Break(0, CHAIN, f"{chain.FILE} has no record; restore it from a backup")
    return self.history

  def _follow(self, line: bytes) -> None:
    history = self.history
    number = history.num_records + 1
    try:
      record = _parse(line)
      kind = record["kind"]
      follow = self._followers[kind]
      if record["previous"] != history.head:
        raise Break(
          record["step"],
          CHAIN,
          f"line {number} names {_short(record['previous'])} as the hash of the line before, found "
          f"{_short(history.head)}: a record was edited, removed or inserted",
        )
      if (kind != chain.START) and not history.starts:
        raise Break(record["step"], CHAIN, f"line {number} comes before any start")
      follow(self, record, number)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
      raise Break(
        history.last_step, CHAIN, f"line {number} is no record ({type(error).__name__}: {error})"
      ) from None
    history.head = hash_line(line)
    history.num_records = number

  def _follow_start(self, record: Record, number: int) -> None:
    history = self.history
    start = Start(
      number,
      _count(record["step"]),
      str(record["time"]),
      _match(_SHA256, record["state"]),
      _count(record["batches_passed"]),
      _match(_SHA256, record["config"]),
      dict(record["fingerprints"]),
      _count(record["log_every"], minimum=1),
      _count(record["total_steps"], minimum=1),
      dict(record["environment"]),
    )
    if history.starts:
      self._check_data(start)
    is_earliest = not history.starts or start.step < history.begins
    if is_earliest:  # such as a return to a step before the chain's first record
      history.begins = start.step
      self._lineage = Lineage.first(start)
      self._return_to(-1)
    else:
      self._lineage = self._check_start(start)
    history.starts.append(start)
    self._batches_passed = start.batches_passed
    if start.step == history.begins:
      history.saves[start.step] = Save(start.state, start.batches_passed, self._lineage)
    self._return_to(start.step)

  def _check_data(self, start: Start) -> None:
    """Check that a start has the same data as the first start."""
    first = self.history.starts[0]
    names = {*start.fingerprints, *first.fingerprints}
    changed = [n for n in sorted(names) if start.fingerprints.get(n) != first.fingerprints.get(n)]
    if changed:
      raise Break(
        start.step,
        DATA,
        f"the start of line {start.line} is on other data than the first ({', '.join(changed)})",
      )

  def _check_start(self, start: Start) -> Lineage:
    """Check that a start continues from a saved step of the run; return its lineage."""
    history = self.history
    if start.step > history.last_step:
      raise Break(
        history.last_step + 1,
        CHAIN,
        f"a gap: the records end at step {history.last_step}, and the start of line {start.line} "
        f"continues from step {start.step}",
      )
    save = history.saves.get(start.step)
    if save is None:
      raise Break(
        start.step,
        STATE,
        f"the start of line {start.line} continues from step {start.step}, of which no record says "
        "that it was saved",
      )
    lineage = save.lineage.continue_with(start)
    begins_anew = start.step == 0 and not lineage.equals(save.lineage)
    if start.state != save.state and not begins_anew:
      raise Break(
        start.step,
        STATE,
        f"the start of line {start.line} continues from the state {_short(start.state)}, and the "
        f"saved one was {_short(save.state)}",
      )
    if start.batches_passed != save.batches_passed:
      raise Break(
        start.step,
        DATA,
        f"the start of line {start.line} has passed over {start.batches_passed} batches, and the "
        f"saved step over {save.batches_passed}",
      )
    return lineage

  def _return_to(self, step: int) -> None:
    """Forget the later steps, which the run repeats."""
    history = self.history
    history.last_step = step
    for records in (history.steps, history.saves, history.evaluations):
      while records and (last := next(reversed(records))) > step:
        del records[last]

  def _follow_step(self, record: Record, number: int) -> None:
    history = self.history
    number_of_step = _count(record["step"])
    step = Step(
      _count(record["batch_index"]),
      _match(_SHA256, record["batch"]),
      _match(_BITS, record["loss"]),
      _match(_BITS, record["gradient_norm"]),
      _match(_METRICS_DIGEST, record["metrics"]),
      str(record.get("refused", "")),
      self._lineage,
    )
    expected = history.last_step + 1
    if number_of_step > expected:
      raise Break(
        expected, CHAIN, f"a gap: line {number} is of step {number_of_step}, expected {expected}"
      )
    if number_of_step < expected:
      raise Break(
        number_of_step,
        CHAIN,
        f"a fork: line {number} is of step {number_of_step} again, and no start or rollback is "
        "between",
      )
    total_steps = history.starts[-1].total_steps
    if number_of_step > total_steps:
      raise Break(
        number_of_step, CHAIN, f"line {number} is of a step after the run's last one, {total_steps}"
      )
    expected_index = number_of_step - 1 + self._batches_passed
    if step.batch_index != expected_index:
      raise Break(
        number_of_step,
        DATA,
        f"line {number} is of batch {step.batch_index}, expected {expected_index}",
      )
    self._compare_step(number_of_step, step)
    history.steps[number_of_step] = step
    history.last_step = number_of_step
    if step.refused:
      self._lineage = self._lineage.continue_after_refusal(number_of_step)

  def _compare_step(self, number: int, step: Step) -> None:
    """Compare a step with the same step of an earlier start."""
    earlier = self._past_steps.get((number, step.batch_index))
    self._past_steps[number, step.batch_index] = step
    exactness = self._exactness(earlier.lineage) if earlier else "any"
    if exactness == "any":
      return
    if earlier.refused or step.refused:
      self._note_refusal(number, earlier, step)
      return
    if earlier.batch != step.batch:
      raise Break(
        number,
        DATA,
        f"a fork: it was made twice, from the batches {_short(earlier.batch)} and "
        f"{_short(step.batch)}",
      )
    if exactness == "batch":
      return
    difference = compare_losses(earlier, step, exactness, self._bound)
    if difference:
      raise Break(number, CODE, f"a fork: it was made twice, with {difference}")
    if earlier.metrics == step.metrics:
      self.history.repeated += 1
    else:
      self.history.rounded += 1

  def _note_refusal(self, number: int, earlier: Step, step: Step) -> None:
    """Count a step that was made again, and whose update was left out at least one time."""
    if (earlier.batch, earlier.metrics) == (step.batch, step.metrics):
      self.history.repeated += 1
    elif number not in self.history.refused_once:
      self.history.refused_once.append(number)

  def _exactness(self, earlier: Lineage) -> str:
    """Return what must be equal if a step is made again: `bits`, `bound`, `batch` or `any`.

    `bound` allows for rounding, `batch` compares the batches alone, and `any` nothing.
    """
    if earlier.configs != self._lineage.configs:
      return "any"
    if earlier.refusals != self._lineage.refusals:
      return "batch"
    is_same_environment = earlier.environments == self._lineage.environments
    return "bits" if is_same_environment and earlier.last.is_deterministic else "bound"

  def _follow_save(self, record: Record, number: int) -> None:
    step = self._check_current(record, number)
    save = Save(_match(_SHA256, record["state"]), self._batches_passed, self._lineage)
    earlier = self._past_saves.get((step, self._batches_passed))
    if earlier and earlier.state != save.state and self._exactness(earlier.lineage) == "bits":
      raise Break(
        step,
        STATE,
        f"a fork: it was saved twice, as {_short(earlier.state)} and {_short(save.state)}",
      )
    self._past_saves[step, self._batches_passed] = save
    self.history.saves[step] = save

  def _follow_evaluation(self, record: Record, number: int) -> None:
    step = self._check_current(record, number)
    metrics = _match(_METRICS_DIGEST, record["metrics"])
    key = (step, self._batches_passed)
    earlier = self._past_evaluations.get(key)
    if earlier and earlier[0] != metrics and self._exactness(earlier[1]) == "bits":
      raise Break(step, CODE, "a fork: it was evaluated twice, with other metrics")
    self._past_evaluations[key] = (metrics, self._lineage)
    self.history.evaluations[step] = metrics

  def _follow_rollback(self, record: Record, number: int) -> None:
    history = self.history
    refused_step = _count(record["refused_step"])
    target = _count(record["step"])
    batches_passed = _count(record["batches_passed"])
    state = _match(_SHA256, record["state"])
    last = history.steps.get(refused_step)
    if refused_step != history.last_step or last is None or not last.refused:
      raise Break(
        history.last_step,
        CHAIN,
        f"line {number} goes back from step {refused_step}, which no record before it refuses",
      )
    save = history.saves.get(target)
    if save is None or save.state != state:
      raise Break(
        target, STATE, f"line {number} goes back to a state of step {target} that was never saved"
      )
    expected = self._batches_passed + refused_step - target
    if batches_passed != expected:
      raise Break(
        target,
        DATA,
        f"line {number} passes over {batches_passed} batches, expected {expected}",
      )
    history.rollbacks.append(Rollback(refused_step, target, str(record["reason"])))
    self._batches_passed = batches_passed
    self._lineage = save.lineage.continue_with(self._lineage.last)
    self._return_to(target)

  def _check_current(self, record: Record, number: int) -> int:
    """Return the step of a record about the state after the last step."""
    step = _count(record["step"])
    last_step = self.history.last_step
    if step != last_step:
      raise Break(
        min(step, last_step + 1),
        CHAIN,
        f"line {number} is about step {step}, and the last step before it is {last_step}",
      )
    return step

  _followers = {
    chain.START: _follow_start,
    chain.STEP: _follow_step,
    chain.SAVE: _follow_save,
    chain.EVALUATION: _follow_evaluation,
    chain.ROLLBACK: _follow_rollback,
  }


def compare_losses(expected: Step, actual: Step, exactness: str, bound: float) -> str | None:
  """Describe the difference of two records of a step; None if it is permitted.

  Args:
    exactness: `bits` or `bound`.
    bound: the largest permitted relative difference of losses with `bound`.
  """
  for name in ("loss", "gradient_norm"):
    before = getattr(expected, name)
    after = getattr(actual, name)
    values = f"{name} {float_value(before):.9g} and {float_value(after):.9g}"
    if exactness == "bits" and before != after:
      return values
    if exactness == "bound" and name == "loss" and relative_difference(before, after) > bound:
      return f"{values}, which differ by more than {bound:g}"
  if exactness == "bits" and expected.metrics != actual.metrics:
    return "equal losses and other metrics"
  return None


def relative_difference(bits: str, other_bits: str) -> float:
  """Return |a - b| / max(|a|, |b|) of two float32 numbers given as bits; 0 for equal bits."""
  if bits == other_bits:
    return 0.0
  first = float_value(bits)
  second = float_value(other_bits)
  if not (math.isfinite(first) and math.isfinite(second)):
    return math.inf
  return abs(first - second) / max(abs(first), abs(second))


def _parse(line: bytes) -> Record:
  record = json.loads(line)
  if not isinstance(record, dict):
    raise ValueError("expected a JSON object")
  _count(record["step"])
  return record


def _count(value: Any, minimum: int = 0) -> int:
  if type(value) is not int or value < minimum:
    raise ValueError(f"found {value!r:.40}, expected a whole number, at minimum {minimum}")
  return value


def _match(pattern: re.Pattern, value: Any) -> str:
  if not isinstance(value, str) or not pattern.fullmatch(value):
    raise ValueError(f"found {value!r:.40}, expected {pattern.pattern}")
  return value


def _short(digest: Any) -> str:
  return str(digest)[:12]
