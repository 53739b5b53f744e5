"""A task: a corpus, a vocabulary and a preprocessor that turn an example's index into features.

The module path is the registry: the task named `span_corruption` is built from the dataclass
`Arguments` of `t5x_like/data/tasks/span_corruption.py`. Its fields are the keys of `config.task`,
with their types and defaults, and its docstring is their reference.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from t5x_like import config, slots, trust
from t5x_like.data import cache_directory
from t5x_like.data.features import BatchFunction, Feature, Features
from t5x_like.data.preprocessors import user_defined
from t5x_like.data.stream import Stream
from t5x_like.errors import UserError
from t5x_like.files import checked_json, file_names
from t5x_like.quiet_tensorflow import tf
from t5x_like.vocabularies import Vocabulary

# Imported only by recipes that name no store of their own.
_PREPARERS = "t5x_like.corpora"
# Arguments of tasks that name data to open, each with a value that names none and is always valid.
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
    eval_batch: the function in place of `batch` in evaluations, for example without image
      augmentation; None is `batch`.
    captions: for images with texts, `() -> (int32 [C, T] rows of all captions, int64 [C] the
      example of each)`.
    repeats: consecutive copies of each example per epoch, each with its own random draws.
    buckets: the most lengths of a training batch, see `training/buckets.py`; 1 is rows of one
      length.
    bucket_module: the module of `training/` that builds the steps if there are several.
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
  bucket_module: str = "buckets"

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


_REASON = "reason"
_ROWS_ONLY = "rows_only"


def unfingerprinted(reason: str, **options: Any) -> Any:
  """Declare a field of `TaskArguments` that is no part of the fingerprint.

  Args:
    reason: why another value leaves the examples as they are, or what counts instead of it.
    options: `default` or `default_factory`, as for `dataclasses.field`.
  """
  return dataclasses.field(metadata={_REASON: reason}, **options)


def rows_only(**options: Any) -> Any:
  """Declare a field that arranges prepared examples in rows, and is not used to prepare them.

  Args:
    options: `default` or `default_factory`, as for `dataclasses.field`.
  """
  return dataclasses.field(metadata={_ROWS_ONLY: True}, **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskArguments(abc.ABC):
  """The arguments of a task, from which it is built.

  A run resumes if the fingerprint of its task is the same. A field counts in it unless it is
  declared by `unfingerprinted`.

  Attributes:
    split: the split of the corpus, or a part of one: `validation[:200]` is the first 200 records.
  """

  # the fields that name sources
  SOURCES: ClassVar[tuple[str, ...]] = ("source",)
  # whether a decoder trained on it answers a user's message in the chat template `template`
  IS_CONVERSATION: ClassVar[bool] = False

  split: str = unfingerprinted("the fingerprint covers the content of the split")

  @abc.abstractmethod
  def features(self, vocabulary: Vocabulary) -> Features:
    """Return the features of the task's examples without reading data."""

  @abc.abstractmethod
  def build(self) -> Task:
    """Open the data and return the task.

    Raises:
      UserError: the arguments exclude each other, or the data cannot be used.
    """

  def fingerprint(self, version: str, **facts: Any) -> str:
    """Return the SHA-256 of everything that the examples depend on.

    Args:
      version: the task's name and version, such as `causal_lm.v1`; raise the version when a change
        of the code changes its examples.
      facts: what the task has read or derived from its arguments, such as the fingerprint of a
        store; JSON. It replaces the field of the same name.
    """
    return digest(**{"task": version} | _to_json(self._fields()) | _to_json(facts))

  def preparation(self) -> dict[str, Any]:
    """Return the fields on which prepared examples depend, as JSON."""
    return _to_json(self._fields(with_rows=False))

  def _fields(self, with_rows: bool = True) -> dict[str, Any]:
    """Return the fields of the fingerprint, with or without the fields that shape only rows."""
    values = {}
    for field in dataclasses.fields(self):
      is_counted = _REASON not in field.metadata
      if is_counted and (with_rows or _ROWS_ONLY not in field.metadata):
        values[field.name] = getattr(self, field.name)
    return values


def _to_json(value: Any) -> Any:
  """Return a value as JSON that does not distinguish 3 from 3.0, or tuples from lists."""
  if dataclasses.is_dataclass(value):
    value = dataclasses.asdict(value)
  value = slots.to_plain(value)
  if isinstance(value, Mapping):
    return {key: _to_json(inner) for key, inner in value.items()}
  if isinstance(value, list | tuple):
    return [_to_json(inner) for inner in value]
  if isinstance(value, float) and value.is_integer():
    return int(value)
  return value


TASKS = slots.Slot(
  "t5x_like.data.tasks",
  "Arguments",
  records=(config.Corpus,),
  base=TaskArguments,
  guide="docs/how-to/add-a-task.md",
)


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
    name: a module of `t5x_like/data/tasks`, or `module:Class`, a subclass of `TaskArguments`.
    split: the split of its corpus.
    arguments: the fields of the module's `Arguments`, as a recipe gives them.

  Raises:
    UserError: no such task; an unknown, missing or wrongly typed argument, named as
      `config.<slot>.<key>`; any error of the task itself.
  """
  where = f"config.{slot}"
  arguments_class = TASKS.find(f"{where}.name", name)
  _check_locations(where, arguments, arguments_class.SOURCES)
  user_preprocessors = arguments.get("preprocessors")
  arguments = {key: value for key, value in arguments.items() if key != "preprocessors"}
  if user_preprocessors and "shared" in slots.argument_names(arguments_class):
    # The parts of a mixture apply them.
    shared = {"preprocessors": user_preprocessors}
    shared.update(arguments.get("shared", {}))
    arguments["shared"] = shared
    user_preprocessors = None
  arguments, corpus = config.split_corpus(where, arguments, arguments_class)
  supplied: dict[str, Any] = {"split": split}
  if corpus:
    corpus = dataclasses.replace(corpus, cache=corpus.cache or cache_directory())
    prepare = slots.find(where, "corpus", _PREPARERS, "prepare_split")
    supplied["store"] = functools.partial(prepare, corpus)
  elif arguments.get("store") == "builtin" and "store" in slots.argument_names(arguments_class):
    supplied["store"] = slots.find(where, arguments.pop("store"), _PREPARERS, "prepare_split")
  file_names.check_name(f"{where}: its split", split, "choose another split")
  arguments = slots.fill(where, arguments, arguments_class, supplied=tuple(supplied))
  try:
    task = arguments_class(**supplied, **arguments).build()
  except UserError as error:
    raise _with_slot(error, where, arguments_class) from error
  file_names.check_name(
    f"{where}: the task's name", task.name, "its files are named after it; name its data otherwise"
  )
  if user_preprocessors:
    task = user_defined.append_to_task(task, f"{where}.preprocessors", user_preprocessors)
  return task


def _with_slot(error: UserError, where: str, arguments_class: type) -> UserError:
  """Return the error of a task, with `where` before the argument that its message begins with.

  A task does not know the slot that it is built at: `length: found 3` becomes
  `config.task.length: found 3`.
  """
  argument = re.match(r"(\w+)[:=,]", str(error))
  if type(error) is UserError and argument and argument[1] in slots.argument_names(arguments_class):
    return UserError(f"{where}.{error}")
  return error


def _check_locations(where: str, arguments: Mapping[str, Any], sources: tuple[str, ...]) -> None:
  """Raise UserError for a source, path or URL that a saved config may not name; see `trust`."""
  for key, value in arguments.items():
    if isinstance(value, Mapping):
      _check_locations(f"{where}.{key}", value, sources)
    elif key in sources:
      trust.check_source(f"{where}.{key}", value)
    elif key in _LOCATIONS and value != _LOCATIONS[key]:
      trust.check_location(f"{where}.{key}", value)


def digest(**content: Any) -> str:
  """Return the hexadecimal SHA-256 of JSON-serialisable content."""
  return checked_json.digest(content)
