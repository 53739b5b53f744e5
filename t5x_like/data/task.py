"""A task: a corpus, a vocabulary and a preprocessor that turn an example's index into features.

The module path is the registry: the task named `span_corruption` is the function `task` of
`t5x_like/data/tasks/span_corruption.py`, and its keyword arguments are the task's configuration.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like import config, slots, trust
from t5x_like.data import cache_directory, tasks
from t5x_like.data.features import BatchFunction, Feature
from t5x_like.data.preprocessors import user_defined
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.stream import Stream
from t5x_like.files import checked_json, file_names
from t5x_like.store.tokens import TokenStore
from t5x_like.vocabularies import Vocabulary

# Imported only by recipes that name no store of their own.
_PREPARERS = "t5x_like.corpora"
# Arguments of tasks that name data to open: sources, and locations with the word that stands for
# data made here.
_SOURCES = ("source", "passages")
_LOCATIONS = {"store": "builtin", "vocabulary": "bytes", "cache": "", "data_dir": "", "folder": ""}


@dataclasses.dataclass(frozen=True)
class Task:
  """Examples as a pure function of their index.

  Attributes:
    name: its name in metrics (`eval/<name>/loss`).
    vocabulary: the vocabulary of the ids.
    fingerprint: SHA-256 over everything an example depends on besides seed, epoch and index: the
      store's content, the preprocessor and its arguments, the lengths.
    num_examples: examples in an epoch.
    features: the features of every example, by name.
    batch: (example_index int64 [B] in 0..num_examples-1, epoch int64 [B], seed) -> features with a
      leading axis B. TensorFlow operations only, so it works eagerly and inside `tf.function`. Row
      b depends only on element b of its arguments and the seed.
    numbering: identifies the meaning of the indices; None means a numbering particular to this
      fingerprint.
    examples: the metrics' view of each example, for tasks made from labelled records: `(names of
      further record fields) -> dicts` in index order, with the keys that the task documents. Every
      process reads them from the source again.
    has_sentinels: whether `<extra_id_N>` in the `inputs` of its `examples` is a sentinel rather
      than text.
    classes: the class names of its labels, in order; empty if labels are numbers or texts.
    end_ids: ids besides EOS that end a generated text.
    labels: the class of every example, int32 [num_examples], if known without making the examples.
    eval_batch: replaces `batch` in evaluations, for example without image augmentation; None is
      `batch`.
    captions: for images with texts, `() -> (int32 [C, T] rows of all captions, int64 [C] the
      example of each)`.
    repeats: consecutive copies of each example per epoch, each with its own random draws.
    buckets: the most lengths of a training batch, see `training/buckets.py`; 1 is rows of one
      length.
  """

  name: str
  vocabulary: Vocabulary
  fingerprint: str
  num_examples: int
  features: dict[str, Feature]
  batch: BatchFunction
  numbering: str | None = None
  examples: Callable[[Sequence[str]], list[dict[str, Any]]] | None = None
  has_sentinels: bool = False
  classes: tuple[str, ...] = ()
  end_ids: tuple[int, ...] = ()
  labels: np.ndarray | None = None
  eval_batch: BatchFunction | None = None
  captions: Callable[[], tuple[np.ndarray, np.ndarray]] | None = None
  repeats: int = 1
  buckets: int = 1

  def set_shapes(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Set the declared shapes on a batch; values from Python functions have no static shape."""
    return {
      name: tf.ensure_shape(value, [None, *self.features[name].shape])
      for name, value in features.items()
    }

  @property
  def leaves(self) -> dict[str, Task]:
    """The tasks whose streams it draws from, by label: itself, unless it is a mixture."""
    return {"": self}

  @property
  def counts(self) -> tuple[int, ...]:
    """The draws from each leaf in a period; () for a single task."""
    return ()

  def draw(
    self, index_B: tf.Tensor, seed: int, streams: tuple[Stream, ...]
  ) -> dict[str, tf.Tensor]:
    """Return the features of examples int64 [B], counted from the positions of the streams."""
    (stream,) = streams
    return self.batch(*stream.locate(index_B), stream.seed)

  def advance(self, examples: int, seed: int, streams: tuple[Stream, ...]) -> tuple[Stream, ...]:
    """Return the streams of the leaves after `examples` draws of the task."""
    return tuple(stream.advance(examples) for stream in streams)


def build(name: str | None, split: str, **arguments: Any) -> Task:
  """Make a task of a split of its corpus from the arguments in `config.task`; see `build_at`."""
  return build_at("task", name, split, arguments)


def build_at(slot: str, name: str | None, split: str, arguments: dict[str, Any]) -> Task:
  """Make a task from the arguments at `config.<slot>`, such as a part of a mixture.

  Every task accepts `preprocessors`, see `data/preprocessors/user_defined.py`. A task with a
  `store` also accepts the fields of `config.Corpus` instead. Its `store` is then a function that
  prepares a split, see `data.windows.open_tokens`, as it is for `store="builtin"`, the small corpus
  of `corpora/builtin.py`.

  Args:
    name: a module of `t5x_like/data/tasks`, or `module:function`.
    split: the split of its corpus.
    arguments: arguments of the module's `task` function, as a recipe gives them.
  Raises:
    UserError: no such task; an unknown, missing or wrongly typed argument, named as
      `config.<slot>.<key>`; any error of the task itself.
  """
  where = f"config.{slot}"
  _check_locations(where, arguments)
  function = slots.find(f"{where}.name", name, tasks, "task")
  user_preprocessors = arguments.get("preprocessors")
  arguments = {key: value for key, value in arguments.items() if key != "preprocessors"}
  if user_preprocessors and "shared" in slots.argument_names(function):
    # The parts of a mixture apply them.
    shared = {"preprocessors": user_preprocessors}
    shared.update(arguments.get("shared", {}))
    arguments["shared"] = shared
    user_preprocessors = None
  arguments, corpus = config.split_corpus(where, arguments, function)
  filled: dict[str, Any] = {"split": split}
  if corpus:
    corpus = dataclasses.replace(corpus, cache=corpus.cache or cache_directory())
    prepare = slots.find(where, "corpus", _PREPARERS, "prepare_split")
    filled["store"] = functools.partial(prepare, corpus)
  elif arguments.get("store") == "builtin" and "store" in slots.argument_names(function):
    filled["store"] = slots.find(where, arguments.pop("store"), _PREPARERS, "prepare_split")
  file_names.check_name(f"{where}: its split", split, "choose another split")
  arguments = slots.fill(where, arguments, function, supplied=tuple(filled))
  task = function(**filled, **arguments)
  file_names.check_name(
    f"{where}: the task's name", task.name, "its files are named after it; name its data otherwise"
  )
  if user_preprocessors:
    task = user_defined.append_to_task(task, f"{where}.preprocessors", user_preprocessors)
  return task


def _check_locations(where: str, arguments: Mapping[str, Any]) -> None:
  """Raise UserError for a source, path or address that a saved config may not name; see `trust`."""
  for key, value in arguments.items():
    if isinstance(value, Mapping):
      _check_locations(f"{where}.{key}", value)
    elif key in _SOURCES:
      trust.check_source(f"{where}.{key}", value)
    elif key in _LOCATIONS and value != _LOCATIONS[key]:
      trust.check_location(f"{where}.{key}", value)


def fingerprint(task: str, tokens: TokenStore, **arguments: Any) -> str:
  """Return the SHA-256 of a task over one token store.

  Args:
    task: the name and version of the task.
    tokens: the store, whose content counts.
    arguments: the arguments of the task; JSON.
  """
  return digest(task=task, store=tokens.fingerprint, **arguments)


def digest(**content: Any) -> str:
  """Return the hexadecimal SHA-256 of JSON-serialisable content."""
  return checked_json.digest(content)
