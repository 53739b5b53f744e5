"""Measure step times, data waits and padding, and find the slowest host."""

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from t5x_like.parallel import distributed
from t5x_like.runtime import compile_cache

_PREFIX = "t5x_like/hosts/"
_EXCHANGE_SECONDS = 20.0  # between two exchanges of the hosts' times
_WARM_UP_STEPS = 2  # their times include waits for the first batches and for buffers
_MIN_COMPILE_SECONDS = 0.2  # a step's program takes longer; small programs take less


class Goodput:
  """The share of the time since a run's first start that was spent on its steps.

  Starts, saves, waits and steps that are computed again do not count.

  Args:
    start_time: the time of the run's first start, in seconds since the epoch.
    step_seconds: seconds that earlier starts spent on the steps up to this one.
  """

  def __init__(self, start_time: float, step_seconds: float):
    self._start_time = start_time
    self._step_seconds = step_seconds

  def add(self, seconds: float) -> float:
    """Add the seconds of a step, and return the goodput up to now."""
    self._step_seconds += seconds
    return min(1.0, self._step_seconds / max(time.time() - self._start_time, 1e-9))


@dataclasses.dataclass
class StepTotals:
  """Sums over the steps of a meter, without its first two.

  Attributes:
    steps: the number of steps.
    seconds: the duration of all steps, without saves and evaluations.
    wait_seconds: seconds in which this host waited for data.
    compilations: the number of steps before which a program was compiled.
    compile_seconds: this host's seconds for tracing, compiling and dispatching these steps.
    blocked_seconds: seconds in which this host waited for its devices.
    flops: model FLOPs.
    saves: the number of checkpoints that were started.
    save_seconds: seconds by which saves delayed the steps.
  """

  steps: int = 0
  seconds: float = 0.0
  wait_seconds: float = 0.0
  compilations: int = 0
  compile_seconds: float = 0.0
  blocked_seconds: float = 0.0
  flops: float = 0.0
  saves: int = 0
  save_seconds: float = 0.0

  def add(self, later: "StepTotals") -> None:
    """Add the sums over further steps."""
    for field in dataclasses.fields(self):
      setattr(self, field.name, getattr(self, field.name) + getattr(later, field.name))

  def since(self, earlier: "StepTotals") -> "StepTotals":
    """Return the sums over the steps after an earlier state of these totals."""
    differences = {}
    for field in dataclasses.fields(self):
      differences[field.name] = getattr(self, field.name) - getattr(earlier, field.name)
    return StepTotals(**differences)


@dataclasses.dataclass
class _PendingStep:
  """A step whose metrics have not arrived.

  Attributes:
    padding: the share of padding in its batch.
    cost: its `StepCost`.
    dispatch_time: when it had been dispatched; None before.
  """

  padding: float
  cost: Any
  dispatch_time: float | None = None


class StepMeter:
  """Times steps without waiting for the one just dispatched.

  If dispatching computes the step, as on CPU, its time ends with the dispatch.

  Args:
    batches: this host's batches.
    cost: `(batch) -> the cost of its step`.
    goodput: the run's goodput.
    pad_id: the id of padding in features without segments; None for none.

  Attributes:
    totals: sums over the steps so far.
    totals_start: when the first of these steps began, by `time.perf_counter`.
  """

  def __init__(
    self,
    batches: Iterator[dict[str, np.ndarray]],
    cost: Callable,
    goodput: Goodput,
    pad_id: int | None,
  ):
    self._batches = batches
    self._cost = cost
    self._goodput = goodput
    self._stragglers = StragglerFinder()
    self._dispatch_computes = jax.default_backend() == "cpu" and not jax.config.read(
      "jax_cpu_enable_async_dispatch"
    )
    self._last_end = time.perf_counter()
    self._pad_id = pad_id
    self._waited = 0.0
    self._excluded = 0.0
    self._own_seconds = 0.0
    self._compile_start = 0.0  # the value of `compile_cache.compile_seconds` when a step began
    self._dispatch_start = 0.0  # the time when the batch of the step had arrived
    self._compile_seconds = 0.0
    self._num_finished = 0
    self.totals = StepTotals()
    self.totals_start = time.perf_counter()
    self._pending: list[_PendingStep] = []

  def next_batch(self) -> dict[str, np.ndarray]:
    """Return the next batch; the time taken counts as data wait."""
    self._compile_start = compile_cache.compile_seconds()
    start = time.perf_counter()
    batch = next(self._batches)
    self._dispatch_start = time.perf_counter()
    self._waited += self._dispatch_start - start
    self._pending.append(_PendingStep(_padding(batch, self._pad_id), self._cost(batch)))
    return batch

  def record_dispatch(self, since: float) -> None:
    """Count the time from `since` until now as this host's own work for a step."""
    now = time.perf_counter()
    self._pending[-1].dispatch_time = now
    self._own_seconds += now - since
    if compile_cache.compile_seconds() - self._compile_start >= _MIN_COMPILE_SECONDS:
      self._compile_seconds = now - self._dispatch_start

  def exclude_time(self, since: float, is_save: bool = False) -> None:
    """Exclude the time since `since` from step times, such as the time of an evaluation.

    Args:
      since: the start of that time, by `time.perf_counter`.
      is_save: whether a checkpoint was started in that time.
    """
    seconds = time.perf_counter() - since
    self._excluded += seconds
    if is_save:
      self.totals.saves += 1
      self.totals.save_seconds += seconds

  def finish_step(self) -> dict[str, float]:
    """Return the figures of the step whose metrics have just arrived."""
    step = self._pending.pop(0)
    cost = step.cost
    end = time.perf_counter()
    if self._dispatch_computes and step.dispatch_time is not None:
      end = step.dispatch_time
    seconds = max(end - self._last_end - self._excluded, 1e-9)
    figures = {
      "seconds_per_step": seconds,
      f"{cost.unit}_per_second": cost.positions / seconds,
      "model_flops_per_second": cost.flops / seconds,
      "data_wait_fraction": min(1.0, self._waited / seconds),
      "padding_fraction": step.padding,
      "goodput": self._goodput.add(max(0.0, seconds - self._waited)),
    }
    if cost.flops / seconds <= cost.peak:  # a peak measured on a busy machine may be too low
      figures["mfu"] = cost.flops / seconds / cost.peak
    slowest = self._stragglers.finish_step(self._own_seconds)
    self._add_to_totals(seconds, cost.flops)
    self._last_end = end
    self._waited = 0.0
    self._excluded = 0.0
    self._own_seconds = 0.0
    self._compile_seconds = 0.0
    return figures | slowest

  def _add_to_totals(self, seconds: float, flops: float) -> None:
    """Add a step to the totals, after the first steps."""
    self._num_finished += 1
    if self._num_finished <= _WARM_UP_STEPS:
      self.totals_start = time.perf_counter()
      return
    totals = self.totals
    totals.steps += 1
    totals.seconds += seconds
    totals.wait_seconds += self._waited
    totals.compilations += self._compile_seconds > 0
    totals.compile_seconds += self._compile_seconds
    host_seconds = self._waited + max(self._own_seconds, self._compile_seconds)
    totals.blocked_seconds += max(0.0, seconds - host_seconds)
    totals.flops += flops


class StragglerFinder:
  """Finds the slowest host by the time that each spends on its own work for a step.

  All processes of a job take equally long for a step, since each waits for the last. Hosts differ
  in the time that they wait for data and prepare the step. They exchange these times through the
  coordinator every 20 s, without a collective. In a job of a single process, nothing is exchanged.
  """

  def __init__(self):
    self._seconds = 0.0
    self._steps = 0
    self._last_exchange = time.monotonic()
    self._store = distributed.key_value_store()

  def finish_step(self, own_seconds: float) -> dict[str, float]:
    """Count a step; in process 0, return the slowest host and its mean seconds if they are due."""
    self._seconds += own_seconds
    self._steps += 1
    if self._store is None or time.monotonic() - self._last_exchange < _EXCHANGE_SECONDS:
      return {}
    mean_seconds = json.dumps(self._seconds / self._steps)
    self._store.key_value_set(f"{_PREFIX}{jax.process_index()}", mean_seconds, allow_overwrite=True)
    self._seconds = 0.0
    self._steps = 0
    self._last_exchange = time.monotonic()
    if jax.process_index():
      return {}
    seconds_by_host = {
      int(k.rpartition("/")[2]): json.loads(v) for k, v in self._store.key_value_dir_get(_PREFIX)
    }
    slowest = max(seconds_by_host, key=seconds_by_host.get)
    return {"slowest_host": slowest, "slowest_host_seconds": seconds_by_host[slowest]}


def _padding(batch: dict[str, np.ndarray], pad_id: int | None) -> float:
  """Return the share of padding: tokens in segment 0 or, without segments, with the padding id."""
  empty = total = 0
  for side, tokens in (("encoder", "encoder_input_tokens"), ("decoder", "decoder_target_tokens")):
    if tokens not in batch:
      continue
    segments = batch.get(f"{side}_segment_ids")
    empty += np.count_nonzero(batch[tokens] == pad_id if segments is None else segments == 0)
    total += batch[tokens].size
  return empty / max(total, 1)
