"""A task: a corpus, a vocabulary and a preprocessor that together turn an example's index into
features.

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
from t5x_like.data import cache_directory, preprocessors, tasks
from t5x_like.data.features import Feature
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.stream import Stream
from t5x_like.files import checked_json, file_names
from t5x_like.store.tokens import TokenStore
from t5x_like.vocabularies import Vocabulary

Batch = Callable[["tf.Tensor", "tf.Tensor", int], dict[str, "tf.Tensor"]]  # see `Task.batch`
_PREPARERS = "t5x_like.corpora"  # imported only by recipes that name no store of their own
# Arguments of tasks that are opened: sources, and paths or addresses with the words that stand for
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
    marked: whether `<extra_id_N>` in the `inputs` of its `examples` is a sentinel rather than text.
    classes: the class names of its labels, in order; empty if labels are numbers or texts.
    ends: ids besides EOS that end a generated text.
    labels: the class of every example, int32 [num_examples], if known without making the examples.
    evaluated: replaces `batch` in evaluations, for example without image augmentation; None is
      `batch`.
    captions: for images with texts, `() -> (int32 [C, T] rows of all captions, int64 [C] the
      example of each)`.
    boxes: the boxes of all examples, a `data.images.boxes.Boxes`, for tasks that have boxes.
    repeats: consecutive copies of each example per epoch, each with its own random draws.
    buckets: the most lengths of a training batch, see `training/buckets.py`; 1 is rows of one
      length.
  """

  name: str
  vocabulary: Vocabulary
  fingerprint: str
  num_examples: int
  features: dict[str, Feature]
  batch: Batch
  numbering: str | None = None
  examples: Callable[[Sequence[str]], list[dict[str, Any]]] | None = None
  marked: bool = False
  classes: tuple[str, ...] = ()
  ends: tuple[int, ...] = ()
  labels: np.ndarray | None = None
  evaluated: Batch | None = None
  captions: Callable[[], tuple[np.ndarray, np.ndarray]] | None = None
  boxes: Any = None
  repeats: int = 1
  buckets: int = 1

  def declared(self, made: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Set the declared shapes on a batch; values from a Python function have no static shape of
    their own."""
    return {
      name: tf.ensure_shape(value, [None, *self.features[name].shape])
      for name, value in made.items()
    }

  @property
  def leaves(self) -> dict[str, Task]:
    """The tasks whose streams it draws from, by label: itself, unless it is a mixture."""
    return {"": self}

  @property
  def counts(self) -> tuple[int, ...]:
    """The draws from each leaf in a period; () for a single task."""
    return ()

  def drawn(
    self, index_B: tf.Tensor, seed: int, streams: tuple[Stream, ...]
  ) -> dict[str, tf.Tensor]:
    """Return the features of examples int64 [B], counted from where the streams of its leaves
    are."""
    (stream,) = streams
    return self.batch(*stream.at(index_B), stream.seed)

  def after(self, examples: int, seed: int, streams: tuple[Stream, ...]) -> tuple[Stream, ...]:
    """Return the streams of its leaves after it has drawn so many examples."""
    return tuple(stream.after(examples) for stream in streams)


def build(name: str | None, split: str, **kwargs: Any) -> Task:
  """Make a task by name, of a split of its corpus, from arguments as `config.task` gives them; see
  `build_at`."""
  return build_at("task", name, split, kwargs)


def build_at(slot: str, name: str | None, split: str, arguments: dict[str, Any]) -> Task:
  """Make a task from the arguments at `config.<slot>`, such as a part of a mixture.

  Every task accepts `preprocessors`, see `data/preprocessors/own.py`. A task with a `store` also
  accepts the fields of `config.Corpus` instead. Its `store` is then a function that prepares a
  split, see `data.windows.open_tokens`, as it is for `store="builtin"`, the small corpus of
  `corpora/builtin.py`.

  Args:
    name: a module of `t5x_like/data/tasks`, or `module:function`.
    split: the split of its corpus.
    arguments: of the module's `task` function, as a recipe gives them.
  Raises:
    UserError: no such task; an unknown, missing or wrongly typed argument, named as
      `config.<slot>.<key>`; any error of the task itself.
  """
  where = f"config.{slot}"
  _check_locations(where, arguments)
  function = slots.find(f"{where}.name", name, tasks, "task")
  after = arguments.get("preprocessors")
  arguments = {key: value for key, value in arguments.items() if key != "preprocessors"}
  if after and "shared" in slots.argument_names(function):  # of a mixture: its parts apply them
    arguments["shared"], after = {"preprocessors": after} | dict(arguments.get("shared", {})), None
  arguments, corpus = config.split_corpus(where, arguments, function)
  given: dict[str, Any] = {}
  if corpus:
    corpus = dataclasses.replace(corpus, cache=corpus.cache or cache_directory())
    given["store"] = functools.partial(slots.find(where, "corpus", _PREPARERS, "prepared"), corpus)
  elif arguments.get("store") == "builtin" and "store" in slots.argument_names(function):
    given["store"] = slots.find(where, arguments.pop("store"), _PREPARERS, "prepared")
  file_names.check(f"{where}: its split", split, "choose another split")
  made = function(
    split=split, **given, **slots.fill(where, arguments, function, given=("split", *given))
  )
  file_names.check(
    f"{where}: the task's name", made.name, "its files are named after it; name its data otherwise"
  )
  return (
    slots.module("own", preprocessors).behind(made, f"{where}.preprocessors", after)
    if after
    else made
  )


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
  """Return the SHA-256 of a task over one token store: name and version, the store's content,
  arguments as JSON."""
  return digest(task=task, store=tokens.fingerprint, **arguments)


def digest(**content: Any) -> str:
  """Return the hexadecimal SHA-256 of JSON-serialisable content."""
  return checked_json.digest(content)
