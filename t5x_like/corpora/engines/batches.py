"""`batches`: builds one part after another, in processes of this machine.

This process reads a part, others make its batches. joblib can pickle functions of a task, so a kind
may have them as attributes, and programs need no `if __name__ == "__main__"`.
"""

import itertools
import os
from collections.abc import Iterable, Iterator

import joblib

from t5x_like.corpora import building
from t5x_like.corpora.engines import processes
from t5x_like.corpora.job import ItemBatch, Job, StoredBatch, StoreKind

_MAX_BATCHES_ALONE = 2  # so few are made in this process: starting others would take longer


class Engine(processes.Engine):
  """An engine of `workers` processes, for sources that have one part."""

  def make(self, job: Job) -> None:
    for number in range(job.kind.num_parts):
      building.make_part(job, number, self._make_batches)

  def _make_batches(self, job: Job, batches: Iterable[ItemBatch]) -> Iterator[StoredBatch]:
    """Make batches and yield the results in order."""
    remaining = iter(batches)
    first_batches = list(itertools.islice(remaining, _MAX_BATCHES_ALONE + 1))
    if len(first_batches) <= _MAX_BATCHES_ALONE:
      return map(job.kind.make, first_batches)
    parallel = joblib.Parallel(
      self._workers, return_as="generator", batch_size=1, pre_dispatch="2 * n_jobs"
    )
    all_batches = itertools.chain(first_batches, remaining)
    return parallel(joblib.delayed(_make_batch)(job.kind, batch) for batch in all_batches)


def _make_batch(kind: StoreKind, batch: ItemBatch) -> StoredBatch:
  """Make a batch in a worker process."""
  os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the processes share the cores
  return kind.make(batch)
