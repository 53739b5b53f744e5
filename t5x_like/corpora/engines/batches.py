"""`batches`: build one part after another, reading it here and making its batches in processes of
this machine.

joblib sends what is sent, so a kind may hold functions of a task, and programs need no `if __name__
== "__main__"`.
"""

import itertools
import os
from collections.abc import Iterable, Iterator

import joblib

from t5x_like.corpora import building
from t5x_like.corpora.engines import processes
from t5x_like.corpora.job import ItemBatch, Job, StoredBatch, StoreKind

_ALONE = 2  # up to so many batches, starting processes does not pay


class Engine(processes.Engine):
  """An engine of `workers` processes, for sources that have one part."""

  def make(self, job: Job) -> None:
    for number in range(job.kind.num_parts):
      building.make_part(job, number, self._made)

  def _made(self, job: Job, batches: Iterable[ItemBatch]) -> Iterator[StoredBatch]:
    """Make batches and yield the results in order."""
    waiting = iter(batches)
    few = list(itertools.islice(waiting, _ALONE + 1))
    if len(few) <= _ALONE:
      return map(job.kind.make, few)
    calls = (joblib.delayed(_make)(job.kind, batch) for batch in itertools.chain(few, waiting))
    return joblib.Parallel(
      self._workers, return_as="generator", batch_size=1, pre_dispatch="2 * n_jobs"
    )(calls)


def _make(kind: StoreKind, batch: ItemBatch) -> StoredBatch:
  os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the processes share the cores
  return kind.make(batch)
