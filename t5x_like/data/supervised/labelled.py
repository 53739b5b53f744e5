"""Labelled tasks: records become examples, which are prepared once, and examples become rows of
features.

A task's file says the fields it reads, the features of its rows, the example of a record, and the
rows of the examples. `labelled` does the rest: it opens the source, prepares the examples or opens
the prepared ones, and makes batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from t5x_like.corpora.sources import Record, Skip
from t5x_like.data.features import Features
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.source import Source
from t5x_like.data.supervised import example_store, records
from t5x_like.data.supervised.example_store import Example, ExampleStore
from t5x_like.data.task import Task, digest
from t5x_like.slots import PositiveInt
from t5x_like.vocabularies import Vocabulary


@dataclasses.dataclass(frozen=True, kw_only=True)
class Records(Source):
  """The records of a labelled task.

  Attributes:
    vocabulary: a vocabulary's directory or file, or `bytes`.
    buckets: the most lengths to which training batches are cut, see `training/buckets.py`; 1 leaves
      them whole.
  """

  vocabulary: str = "bytes"
  buckets: PositiveInt = 1

  @property
  def gaps(self) -> bool:
    """Whether texts may lack a field: everywhere but in a training split, so that every example is
    predicted."""
    return not self.split.startswith("train")

  @property
  def with_gaps(self) -> dict[str, bool]:
    """The facts of examples whose texts may lack a field."""
    return {"gaps": True} if self.gaps else {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedRecords(Records):
  """The records of a labelled task whose rows hold several examples.

  Attributes:
    packed: several examples per row; otherwise one.
    pack_seed: seed of the packing plan; decides which examples share a row.
  """

  packed: bool = True
  pack_seed: int = 0


@dataclasses.dataclass(frozen=True)
class Labelled(Task):
  """A task of labelled records.

  Attributes:
    truncated: the share of its examples that are shortened to fit a row, from 0 to 1.
    passages: a `data.supervised.passages.Passages`, for tasks whose models retrieve.
  """

  truncated: float = 0.0
  passages: Any = None


@dataclasses.dataclass(frozen=True)
class Rows:
  """The rows of a task.

  Attributes:
    number: the number of rows.
    read: makes the features of rows, int64 [B] -> each [B, *shape].
    used: the store's number of the example in each row, int64 [number]; None if rows hold several.
    view: (a record, its location, its place in the list) -> the metrics' view of an example,
      without its `record`. The list is `used`, or all examples without it. None if metrics have no
      view.
    truncated: the share of the examples used that are shortened to fit a row.
  """

  number: int
  read: Callable[[np.ndarray], dict[str, np.ndarray]]
  used: np.ndarray | None = None
  view: Callable[[Record, str, int], dict[str, Any]] | None = None
  truncated: float = 0.0


def labelled(
  version: str,
  source: Records,
  vocabulary: Vocabulary,
  *,
  fields: Sequence[str],
  facts: dict[str, Any],
  streams: dict[str, bool],
  example: Callable[[Record, str], Example | Skip],
  rows: Callable[[ExampleStore], Rows],
  features: Features,
  made: dict[str, Any],
  **more: Any,
) -> Labelled:
  """Make a labelled task, preparing its examples first if necessary.

  Args:
    version: the task's name and version, such as `tagging.v1`; raise the version when its examples
      change.
    source: the records.
    vocabulary: the vocabulary of the ids.
    fields: the fields of a record in use.
    facts: all else that determines the examples besides the vocabulary; JSON.
    streams: the names of the examples' token streams, and whether they end with EOS.
    example: turns a record and its location into an example, or a `Skip`, which is counted.
    rows: the rows of the prepared examples.
    features: the features of a row.
    made: all that rows depend on besides the examples; JSON.
    more: further attributes of the task.

  Raises:
    UserError: an unusable source, an unwritable cache, no usable record, or a file changed since
      preparation.
  """

  def examples(found: Iterator[tuple[str, Record]]) -> Iterator[Example | Skip]:
    return (example(record, where) for where, record in found)

  told = dict(
    task=version, fields=tuple(fields), facts=facts, vocabulary=vocabulary, streams=streams
  )
  store = example_store.open_store(examples=examples, **told, **source.opening)
  table = rows(store)

  def viewed(further: Sequence[str]) -> list[dict[str, Any]]:
    wanted = (*fields, *further)
    found = records.used(
      source.source, source.split, fields=wanted, data_dir=source.data_dir, examples=examples
    )
    found = found if table.used is None else [found[number] for number in table.used]
    return [
      {"record": record} | table.view(record, where, n) for n, (where, record) in enumerate(found)
    ]

  return Labelled(
    name=source.label or f"{store.name}_{version.partition('.')[0]}",
    vocabulary=vocabulary,
    fingerprint=digest(**{"task": version, "examples": store.fingerprint} | made),
    num_examples=table.number,
    features=features,
    batch=batch_of(table.read, features),
    examples=viewed if table.view else None,
    truncated=table.truncated,
    buckets=source.buckets,
    **more,
  )


def beside(
  store: ExampleStore, array: str, stream: str, example_n: np.ndarray, valid_nL: np.ndarray
) -> np.ndarray:
  """Return the numbers [n, L] that an array has for the first tokens of examples; undefined where
  not `valid_nL`."""
  start_n = store.ends[stream][example_n] - store.lengths[stream][example_n]
  places_nL = np.where(valid_nL, start_n[:, None] + np.arange(valid_nL.shape[1]), 0)
  return np.asarray(store.arrays[array])[places_nL]


def batch_of(read: Callable[[np.ndarray], dict[str, np.ndarray]], features: Features):
  """Make a task's `batch` from a function of the example indices alone."""

  def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    def arrays(index_B: np.ndarray) -> list[np.ndarray]:
      made = read(index_B)
      return [made[name].astype(feature.dtype, copy=False) for name, feature in features.items()]

    kinds = [getattr(tf, feature.dtype) for feature in features.values()]
    out = tf.numpy_function(arrays, [example_index_B], kinds, stateful=False)
    return {
      name: tf.ensure_shape(x, [example_index_B.shape[0], *features[name].shape])
      for name, x in zip(features, out)
    }

  return batch
