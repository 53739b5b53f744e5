"""A task: a corpus, a vocabulary and a preprocessor that together turn an example's index into features.

The module path is the registry: the task named `span_corruption` is the function `task` of
`t5x_like/data/tasks/span_corruption.py`, and its keyword arguments are the task's configuration.
"""

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any

from t5x_like import slots
from t5x_like.config import Corpus
from t5x_like.data import tasks
from t5x_like.data.features import Feature
from t5x_like.data.preprocessors import own
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.store.reader import TokenStore
from t5x_like.data.vocabularies import Vocabulary
from t5x_like.errors import UserError


@dataclasses.dataclass(frozen=True)
class Task:
  """Examples as a pure function of their index.

  Attributes:
    name: its name in metrics (`eval/<name>/loss`).
    vocabulary: of the ids.
    fingerprint: SHA-256 over everything an example depends on besides seed, epoch and index: the store's content,
      the preprocessor and its arguments, the lengths.
    num_examples: examples in an epoch.
    features: of every example, by name.
    batch: (example_index int64 [B] in 0..num_examples-1, epoch int64 [B], seed) -> features with a leading axis B.
      TensorFlow operations only, so it works eagerly and inside `tf.function`. Row b depends only on element b of its
      arguments and the seed.
    numbering: what the indices count; None means a numbering particular to this fingerprint.
    examples: what metrics need to know of each example, for tasks made from labelled records: `(names of other fields
      of the records) -> dicts` in the order of the indices, with the keys that the task states. They are read from the
      source again, in every process.
    classes: the names of the classes of its labels, in order; empty if these are numbers or texts.
  """

  name: str
  vocabulary: Vocabulary
  fingerprint: str
  num_examples: int
  features: dict[str, Feature]
  batch: Callable[[tf.Tensor, tf.Tensor, int], dict[str, tf.Tensor]]
  numbering: str | None = None
  examples: Callable[[Sequence[str]], list[dict[str, Any]]] | None = None
  classes: tuple[str, ...] = ()

  def dataset(
    self, seed: int = 0, start: int = 0, *, batch_size: int = 128, rows: Sequence[int] | None = None
  ) -> tf.data.Dataset:
    """The training batches from a step on, without end, as an ordinary `tf.data.Dataset`.

    They are those of a run with this seed and batch size and without earlier phases. Nothing here needs JAX.

    Args:
      seed: of the order and of whatever the task draws.
      start: the step of the first batch; any opens as fast as the first.
      batch_size: rows of the global batch.
      rows: those that are wanted, ascending; None is all of them.

    Returns:
      A dataset of `features` with an axis of rows in front. It makes one batch after another, when asked, and calls
      Python functions for it. If an iterator over a `prefetch` or a parallel `map` behind it is dropped early,
      TensorFlow can wait for itself; for batches made ahead and in parallel take `loader.train_batches`.

    Raises:
      UserError: rows outside the batch, or a negative start.
    """
    from t5x_like.data import loader  # which needs tasks

    return loader.train_dataset(self, batch_size=batch_size, seed=seed, start_step=start, rows=rows)

  def declared(self, made: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Features of a batch, held to the shapes declared; what comes from a Python function has none of its own."""
    return {name: tf.ensure_shape(value, [None, *self.features[name].shape]) for name, value in made.items()}


def build(name: str | None, split: str, **kwargs: Any) -> Task:
  """Makes a task by name.

  Args:
    name: a module of `t5x_like/data/tasks`.
    split: the split of its corpus.
    **kwargs: the arguments of the module's `task` function, as a recipe gives them.

  Raises:
    UserError: no such task; an unknown, missing or wrongly typed argument, named as `config.task.<key>`; and whatever
      the task raises.
  """
  return build_at("task", name, split, kwargs)


def build_at(slot: str, name: str | None, split: str, arguments: dict[str, Any]) -> Task:
  """`build` for the arguments at `config.<slot>`, such as a part of a mixture.

  Any task takes `preprocessors`, see `data/preprocessors/own.py`. One that takes a `store` also takes the fields of
  `Corpus`, to make its store from; it gets them as its `store`.
  """
  where = f"config.{slot}"
  preprocessors = arguments.get("preprocessors")
  if preprocessors:
    arguments = {key: value for key, value in arguments.items() if key != "preprocessors"}
    return _preprocessed(slot, name, split, arguments, preprocessors)
  function = slots.find(f"{where}.name", name, tasks, "task")
  takes = inspect.signature(function).parameters
  arguments, given = dict(arguments), {"split": split}
  if "store" in takes and "source" not in takes and arguments.get("source") is not None:
    if arguments.pop("store", None) is not None:
      raise UserError(f"{where}: found both a store and a source, {arguments['source']!r}, expected one of the two")
    fields = [field.name for field in dataclasses.fields(Corpus) if field.name not in takes]
    asked = {key: arguments.pop(key) for key in fields if key in arguments}
    given["store"] = Corpus(**slots.fill(where, asked, Corpus))
  return function(**given, **slots.fill(where, arguments, function, given=tuple(given)))


def _preprocessed(slot: str, name: str | None, split: str, arguments: dict[str, Any], preprocessors: Any) -> Task:
  """The task of the arguments with preprocessors of the user's own behind it; those of a mixture are its parts'."""
  function = slots.find(f"config.{slot}.name", name, tasks, "task")
  if "shared" in inspect.signature(function).parameters:
    shared = {"preprocessors": preprocessors} | dict(arguments.get("shared", {}))
    return build_at(slot, name, split, arguments | {"shared": shared})
  made = build_at(slot, name, split, arguments)
  batch, content = own.apply(
    f"config.{slot}.preprocessors", preprocessors, made.batch, made.features, made.num_examples
  )
  return dataclasses.replace(
    made,
    batch=batch,
    fingerprint=digest(task=made.fingerprint, preprocessors=content),
    numbering=made.numbering or made.fingerprint,  # they change examples, not their order
  )


def fingerprint(task: str, tokens: TokenStore, **arguments: Any) -> str:
  """The SHA-256 of a task over one token store: its name and version, the store's content, the arguments (as JSON)."""
  return digest(task=task, store=tokens.fingerprint, **arguments)


def digest(**content: Any) -> str:
  """The SHA-256 of JSON-serialisable content, hexadecimal."""
  return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
