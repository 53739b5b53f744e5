"""Record the starts, steps, saves, evaluations and rollbacks of a run in its chain.

Process 0 writes. In a job of several processes, each sends the sums of its rows' digests over the
coordinator's store, every few steps and before every record that is no step. So there is no further
collective, and no process waits for the step just dispatched. The last records of a killed job can
be missing, but no record before its last checkpoint.
"""

import dataclasses
import datetime
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from t5x_like.certificate import chain
from t5x_like.certificate.digests import (
  combine_sums,
  digest_metrics,
  float_bits,
  sum_row_digests,
)
from t5x_like.files import checked_json
from t5x_like.parallel import distributed
from t5x_like.parallel.rules import rows_by_process
from t5x_like.runtime import process

MAX_UNSENT_STEPS = 32  # steps after which the processes of a job combine their digests
_LOSSES = ("loss", "gradient_norm")
_DEVICE_COUNT = "--xla_force_host_platform_device_count="


def compiler_flags() -> str:
  """Return the flags of XLA in the environment, without the number of simulated devices."""
  flags = os.environ.get("XLA_FLAGS", "").split()
  return " ".join(flag for flag in flags if not flag.startswith(_DEVICE_COUNT))


@dataclasses.dataclass(frozen=True)
class HostRows:
  """The rows of a global batch that this process has, and those that it digests.

  Attributes:
    rows: the rows of its devices, int64 ascending.
    is_digested: bool [len(rows)]; false for rows that an earlier process has too.
  """

  rows: np.ndarray
  is_digested: np.ndarray

  @classmethod
  def from_sharding(cls, sharding: NamedSharding, batch_size: int) -> "HostRows":
    """Return the rows of this process for batches of this size."""
    rows_of_all = rows_by_process(sharding, batch_size)
    rows = rows_of_all[jax.process_index()]
    is_digested = np.ones(len(rows), bool)
    for index, other_rows in rows_of_all.items():
      if index < jax.process_index():
        is_digested &= ~np.isin(rows, other_rows)
    return cls(rows, is_digested)

  def sum_digests(self, batch: Mapping[str, np.ndarray]) -> int:
    """Return the sum of the digests of these rows; see `digests.sum_row_digests`."""
    if self.is_digested.all():
      return sum_row_digests(batch, self.rows)
    own_batch = {name: x[self.is_digested] for name, x in batch.items()}
    return sum_row_digests(own_batch, self.rows[self.is_digested])


class Recorder:
  """Append the records of a run; every method must be called in all processes.

  Args:
    workdir: the local directory of the run.
    check: see `AppendedLines`.
  Raises:
    UserError: of every method, if the file cannot be written.
  """

  def __init__(self, workdir: pathlib.Path, check: Callable[[], None]):
    self._chain = chain.ChainWriter(workdir, check) if process.is_first() else None
    # Sums of digests by step, for steps whose metrics have not arrived.
    self._digest_sums: dict[int, int] = {}
    # (step, sum of digests, other facts) of steps whose sums the processes have not combined.
    self._steps: list[tuple[int, int, dict[str, Any]]] = []

  def begin(
    self,
    step: int,
    state: str,
    batches_passed: int,
    identity: dict[str, Any],
    environment: dict[str, Any],
  ) -> None:
    """Record a start.

    Args:
      step: the step that the run continues from.
      state: the digest of its state; see `checkpoints.manifest.digest_tensors`.
      batches_passed: the number of batches that rollbacks have skipped before the step.
      identity: the content of `config.json`.
      environment: devices, host and versions.
    """
    if self._chain is None:
      return
    self._warn_of_gap(step)
    self._chain.append(
      chain.START,
      step,
      time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
      state=state,
      batches_passed=batches_passed,
      config=checked_json.digest(identity),
      fingerprints=identity["fingerprints"],
      log_every=identity["log_every"],
      total_steps=identity["total_steps"],
      environment=environment | {"xla_flags": compiler_flags()},
    )

  def _warn_of_gap(self, step: int) -> None:
    last_step = self._chain.last_step
    if last_step is None and step:
      process.log(f"{chain.FILE} begins at step {step}; it does not certify the steps before")
    elif last_step is not None and last_step < step:
      process.log(
        f"{chain.FILE} ends at step {last_step}, and the run continues from step {step}: records "
        "are missing, and the run can no longer be certified as a whole"
      )

  def note_batch(self, step: int, rows: HostRows, batch: Mapping[str, np.ndarray]) -> None:
    """Digest this host's rows of the batch of a step, which has just been dispatched."""
    self._digest_sums[step] = rows.sum_digests(batch)

  def add_step(
    self, step: int, batch_index: int, metrics: Mapping[str, float], refusal: str | None
  ) -> None:
    """Record a step whose metrics have arrived.

    Args:
      batch_index: the index of its batch in the order of the data.
      metrics: the scalars that the step returned.
      refusal: the guard's reason to refuse the update, if it did.
    """
    facts = {"batch_index": batch_index}
    facts |= {name: float_bits(metrics[name]) for name in _LOSSES}
    facts["metrics"] = digest_metrics(metrics)
    if refusal:
      facts["refused"] = refusal
    self._steps.append((step, self._digest_sums.pop(step), facts))
    is_alone = jax.process_count() == 1
    if is_alone or refusal or len(self._steps) == MAX_UNSENT_STEPS:
      self._combine()

  def add_save(self, step: int, state: str) -> None:
    """Record that a step is about to be saved with a state of this digest."""
    self._append(chain.SAVE, step, state=state)

  def add_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
    """Record the metrics of an evaluation."""
    self._append(chain.EVALUATION, step, metrics=digest_metrics(metrics))

  def add_rollback(
    self, step: int, state: str, refused_step: int, reason: str, batches_passed: int
  ) -> None:
    """Record that the guard has returned the run to a saved step; see `begin`."""
    self._digest_sums.clear()
    self._append(
      chain.ROLLBACK,
      step,
      state=state,
      refused_step=refused_step,
      reason=reason,
      batches_passed=batches_passed,
    )

  def _append(self, kind: str, step: int, **facts: Any) -> None:
    self._combine()
    if self._chain is not None:
      self._chain.append(kind, step, **facts)

  def _combine(self) -> None:
    """Combine the sums of all processes, and write the records of the steps that wait for them."""
    steps = self._steps
    if not steps:
      return
    self._steps = []
    sums_by_process = distributed.gather_in_first([f"{part:x}" for _, part, _ in steps])
    if sums_by_process is None:
      return
    for (step, _, facts), *sums in zip(steps, *sums_by_process, strict=True):
      batch = combine_sums(int(part, 16) for part in sums)
      self._chain.append(chain.STEP, step, batch=batch, **facts)

  def flush(self) -> None:
    """Flush the records to the disk."""
    if self._chain is not None:
      self._chain.flush()

  def close(self) -> None:
    """Close the file; a second call does nothing."""
    if self._chain is not None:
      self._chain.close()
