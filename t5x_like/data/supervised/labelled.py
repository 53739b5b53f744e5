"""Labelled tasks: records become examples, prepared once, and examples become rows of features.

A task's file declares its arguments and the features of its rows, and makes the example of a record
and the rows of the examples. `LabelledArguments.build_task` opens the source, prepares the examples
or opens the prepared ones, and makes batches. An argument that is declared by `task.rows_only` does
not change the prepared examples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like.corpora.sources import Record, Skip
from t5x_like.data.features import BatchFunction, Features
from t5x_like.data.source import SourceArguments
from t5x_like.data.supervised import example_store, records
from t5x_like.data.supervised.example_store import Example, ExampleStore
from t5x_like.data.task import Task, rows_only, unfingerprinted
from t5x_like.quiet_tensorflow import tf
from t5x_like.slots import PositiveInt
from t5x_like.vocabularies import Vocabulary


@dataclasses.dataclass(frozen=True)
class LabelledTask(Task):
  """A task of labelled records.

  Attributes:
    truncated: the share of its examples that are shortened to fit a row, from 0 to 1.
  """

  truncated: float = 0.0


@dataclasses.dataclass(frozen=True)
class ExampleRows:
  """The rows of a task.

  Attributes:
    num_rows: the number of rows.
    read: a function that makes the features of rows, int64 [B] -> each [B, *shape].
    used: the number of the example in each row, int64 [num_rows]; None if rows hold several.
    view: (a record, its location, its position in the list) -> the metrics' view of an example,
      without its `record`. The list is `used`, or all examples without it. None if metrics have no
      view.
    truncated: the share of the examples used that are shortened to fit a row.
  """

  num_rows: int
  read: Callable[[np.ndarray], dict[str, np.ndarray]]
  used: np.ndarray | None = None
  view: Callable[[Record, str, int], dict[str, Any]] | None = None
  truncated: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledArguments(SourceArguments):
  """The arguments that labelled tasks share.

  Attributes:
    vocabulary: the directory or file of a vocabulary, or `bytes`.
    buckets: the most lengths to which training batches are cut, see `training/buckets.py`; 1 leaves
      them whole.
  """

  vocabulary: str = unfingerprinted(
    "the fingerprint covers the content of the vocabulary", default="bytes"
  )
  buckets: PositiveInt = unfingerprinted("it only cuts padding off batches", default=1)

  @property
  def allows_gaps(self) -> bool:
    """Whether fields of a text's template may be empty.

    They may in evaluations, so that every example is predicted, but not in training splits.
    """
    return not self.split.startswith("train")

  def build_task(
    self,
    version: str,
    vocabulary: Vocabulary,
    *,
    fields: Sequence[str],
    streams: dict[str, bool],
    make_example: Callable[[Record, str], Example | Skip],
    make_rows: Callable[[ExampleStore], ExampleRows],
    example_facts: Mapping[str, Any] = {},
    row_facts: Mapping[str, Any] = {},
    **attributes: Any,
  ) -> LabelledTask:
    """Return the task, preparing its examples first if necessary.

    Args:
      version: the task's name and version, such as `tagging.v1`; raise the version when its
        examples change.
      vocabulary: the vocabulary of the ids.
      fields: the fields of a record in use.
      streams: the names of the examples' token streams, and whether they end with EOS.
      make_example: `(record, its location) -> an example`, or a `Skip`, which is counted.
      make_rows: `(prepared examples) -> rows of them`.
      example_facts: all that the examples depend on besides the arguments and the vocabulary;
        JSON.
      row_facts: all that rows depend on besides the examples, the arguments and the vocabulary;
        JSON.
      attributes: further attributes of the task.

    Raises:
      UserError: an unusable source, an unwritable cache, no usable record, or a file changed since
        preparation.
    """

    def make_examples(pairs: Iterator[tuple[str, Record]]) -> Iterator[Example | Skip]:
      return (make_example(record, where) for where, record in pairs)

    store = example_store.open_store(
      examples=make_examples,
      task=version,
      fields=tuple(fields),
      facts={**self.preparation(), **example_facts},
      vocabulary=vocabulary,
      streams=streams,
      **self.store_arguments,
    )
    rows = make_rows(store)

    def view_examples(further_fields: Sequence[str]) -> list[dict[str, Any]]:
      """Return the metrics' view of each example; see `Task.examples`."""
      used_records = records.read_used_records(
        self.source,
        self.split,
        fields=(*fields, *further_fields),
        data_dir=self.data_dir,
        examples=make_examples,
      )
      if rows.used is not None:
        used_records = [used_records[number] for number in rows.used]
      views = []
      for position, (where, record) in enumerate(used_records):
        views.append({"record": record} | rows.view(record, where, position))
      return views

    task_name, _, _ = version.partition(".")
    features = self.features(vocabulary)
    return LabelledTask(
      name=self.label or f"{store.name}_{task_name}",
      vocabulary=vocabulary,
      fingerprint=self.fingerprint(
        version, examples=store.fingerprint, vocabulary=vocabulary.fingerprint, **row_facts
      ),
      num_examples=rows.num_rows,
      features=features,
      batch=batch_from_reader(rows.read, features),
      examples=view_examples if rows.view else None,
      truncated=rows.truncated,
      buckets=self.buckets,
      **attributes,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedArguments(LabelledArguments):
  """The arguments of labelled tasks whose rows hold several examples.

  Attributes:
    packed: whether a row holds several examples.
    pack_seed: seed of the packing plan, which decides the examples that share a row.
  """

  packed: bool = rows_only(default=True)
  pack_seed: int = rows_only(default=0)


def read_parallel(
  store: ExampleStore, array: str, stream: str, example_n: np.ndarray, valid_nL: np.ndarray
) -> np.ndarray:
  """Read an array with one number per token of a stream, for the first tokens of examples.

  Returns:
    [n, L], undefined where not `valid_nL`.
  """
  start_n = store.ends[stream][example_n] - store.lengths[stream][example_n]
  positions_nL = np.where(valid_nL, start_n[:, None] + np.arange(valid_nL.shape[1]), 0)
  return np.asarray(store.arrays[array])[positions_nL]


def batch_from_reader(
  read: Callable[[np.ndarray], dict[str, np.ndarray]], features: Features
) -> BatchFunction:
  """Make a task's `batch` from a function that takes only the example indices."""
  dtypes = [getattr(tf, feature.dtype) for feature in features.values()]

  def read_arrays(index_B: np.ndarray) -> list[np.ndarray]:
    values = read(index_B)
    arrays = []
    for name, feature in features.items():
      arrays.append(values[name].astype(feature.dtype, copy=False))
    return arrays

  def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
    arrays = tf.numpy_function(read_arrays, [example_index_B], dtypes, stateful=False)
    B = example_index_B.shape[0]
    return {
      name: tf.ensure_shape(array, [B, *feature.shape])
      for (name, feature), array in zip(features.items(), arrays)
    }

  return batch
