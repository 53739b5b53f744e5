"""`seqio:module:TASK[@source]`: a SeqIO task's records, preprocessed but not tokenised.

TASK is an attribute of the module, a SeqIO `Task`, or the name under which the module registers
one; it may also be a list of preprocessors, or a function that returns a task or a list. The
records are the task's own or, after `@`, the records of any source of this folder:
`seqio:my_tasks:translate@jsonl:pairs/*.jsonl`.

Preprocessors are functions of `tf.data` datasets and run once, while a store is prepared: training
reads its store, so an example stays a function of its index. The first preprocessor that makes
tokens and all that follow it are left out, since tokens and lengths belong to the tasks here. A
preprocessor that needs `sequence_length` or that returns other records when it is called again is
refused. Random draws are SeqIO's, seeded with 0.
"""

import contextlib
import functools
import hashlib
import inspect
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from t5x_like import trust
from t5x_like.corpora.sources import Record, Skip, open_source
from t5x_like.corpora.sources import Source as Base
from t5x_like.errors import UserError, one_line
from t5x_like.quiet_tensorflow import tf

_SPELLING = re.compile(r"([^@:]+:[^@:]+)(?:@(.+))?", re.DOTALL)
_TOKENS = (
  "tokenize",
  "tokenize_and_append_eos",
  "append_eos",
  "append_eos_after_trim",
  "CacheDatasetPlaceholder",
)
_NUM_TRIED_RECORDS = 8  # records on which preprocessors are tried twice
_Step = Callable[[Any], Any]


class Source(Base):
  """The records that preprocessors of SeqIO make of other records."""

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    del fields  # they are names of results, not of the other source's fields
    self._where = f"source seqio:{spec}"
    match = _SPELLING.fullmatch(spec)
    if not match:
      raise UserError(f"{self._where}: expected seqio:module:TASK or seqio:module:TASK@SOURCE")
    self._name, inner = match.groups()
    task = _task(self._where, self._name)
    steps = getattr(task, "preprocessors", task)
    if not isinstance(steps, Sequence) or not all(map(callable, steps)):
      raise UserError(
        f"{self._where}: found a {type(task).__name__}, expected a SeqIO task or a "
        "list of preprocessors"
      )
    self._steps, omitted = _divide_at_tokens(steps)
    self._features = getattr(task, "output_features", {})
    self._inner = open_source(inner, data_dir=data_dir) if inner else None
    self._task_source = None if inner else getattr(task, "source", None)
    if self._inner is None and not hasattr(self._task_source, "get_dataset"):
      raise UserError(
        f"{self._where}: found no records, expected a source after @, such as @jsonl:pairs/*.jsonl"
      )
    self.splits = tuple((self._inner or self._task_source).splits)
    self.name = re.sub(r"[^A-Za-z0-9_.-]+", "_", self._name.partition(":")[2])
    # The reasons to skip records of the inner source, which preprocessors cannot take.
    self._skip_reasons: list[str] = []
    self._bound_steps = [self._bind_arguments(step) for step in self._steps]
    omission = f" without {', '.join(omitted)}" if omitted else ""
    names = ", ".join(map(_label, self._steps)) or "no preprocessors"
    print(f"data: {self._where}: {names}{omission}", file=sys.stderr, flush=True)

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record | Skip]]:
    where = f"{self._where}, split {split}"
    first_results = list(self._preprocess(split, _NUM_TRIED_RECORDS))
    repeated_results = list(self._preprocess(split, _NUM_TRIED_RECORDS))
    if repr(first_results) != repr(repeated_results):
      raise UserError(
        f"{where}: preprocessors return other records when they are called again; draw numbers "
        "with the seeds of seqio.map_over_dataset, or leave the shuffling to training"
      )
    self._skip_reasons.clear()
    for number, record in enumerate(self._preprocess(split)):
      yield f"{where}, record {number}", record
    for reason in self._skip_reasons:
      yield where, Skip(reason)

  def facts(self, field: str) -> dict[str, Any]:
    facts = {
      "form": "seqio",
      "task": self._name,
      "text_field": field,
      "version": self._version(),
    }
    if self._inner:
      facts["of"] = self._inner.facts(field)
    return facts

  def split_facts(self, split: str) -> dict[str, Any]:
    facts = {"form": "seqio", "task": self._name, "split": split, "version": self._version()}
    if self._inner:
      facts["of"] = self._inner.split_facts(split)
    return facts

  def modification_times(self, split: str) -> list[int | None]:
    return self._inner.modification_times(split) if self._inner else []

  def _preprocess(self, split: str, num_records: int | None = None) -> Iterator[Record | Skip]:
    """Yield the results for the records of a split, or for the first records."""
    where = f"{self._where}, split {split}"
    with _seed_draws():
      try:
        if self._inner:
          dataset = _dataset(where, lambda: self._inner.records(split), self._skip_reasons)
        else:
          dataset = self._task_source.get_dataset(split=split, shuffle=False)
        if num_records is not None:
          dataset = dataset.take(num_records)
        for step in self._bound_steps:
          dataset = step(dataset)
        dataset = dataset.with_options(_deterministic_options())
        if num_records is not None:
          dataset = dataset.take(num_records)
        for record in dataset.as_numpy_iterator():
          yield _to_plain(record)
      except UserError:
        raise
      except Exception as error:  # whatever the user's functions raise, at once or within tf.data
        message = one_line(str(error).partition("[[{{")[0] or error)[:300]
        raise UserError(
          f"{where}: a preprocessor failed ({type(error).__name__}: {message})"
        ) from error

  def _bind_arguments(self, step: _Step) -> _Step:
    """Return the preprocessor with the arguments that SeqIO gives it by name."""
    parameters = inspect.signature(step).parameters
    if "output_features" in parameters and not _has_argument(step, "output_features"):
      step = functools.partial(step, output_features=self._features)
    length = parameters.get("sequence_length")
    if length is not None and length.default is inspect.Parameter.empty:
      raise UserError(
        f"{self._where}: {_label(step)} needs sequence_length, which is known only in training; "
        "leave it out, as tasks here have their own length"
      )
    return step

  def _version(self) -> str:
    """Return a hash of the files that define the preprocessors."""
    files = set()
    for step in self._steps:
      with contextlib.suppress(TypeError, OSError):
        files.add(inspect.getsourcefile(inspect.unwrap(_function(step))))
    files.add(getattr(sys.modules[self._name.partition(":")[0]], "__file__", None))
    hashes = sorted(
      hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest() for file in files if file
    )
    return hashlib.sha256(repr([hashes, list(map(_label, self._steps))]).encode()).hexdigest()


def _task(where: str, name: str) -> Any:
  """Return a task or a list of preprocessors by `module:TASK`."""
  module, _, task = name.partition(":")
  try:
    task_or_function = trust.import_function("source", name)
  except UserError:
    registry = getattr(sys.modules.get("seqio"), "TaskRegistry", None)
    if module not in sys.modules or registry is None or task not in registry.names():
      raise
    return registry.get(task)
  if isinstance(task_or_function, Sequence) or hasattr(task_or_function, "preprocessors"):
    return task_or_function
  try:
    return task_or_function()
  except Exception as error:
    raise UserError(f"{where}: {name} raised {type(error).__name__}: {one_line(error)}") from error


def _divide_at_tokens(steps: Sequence[_Step]) -> tuple[list[_Step], list[str]]:
  """Return the preprocessors before the first that makes tokens, and the names of the others."""
  labels = [_label(step) for step in steps]
  for number, label in enumerate(labels):
    if label in _TOKENS:
      return list(steps[:number]), labels[number:]
  return list(steps), []


def _function(step: _Step) -> Any:
  """Return the function of a preprocessor, without the arguments that are bound to it."""
  while isinstance(step, functools.partial):
    step = step.func
  return step


def _has_argument(step: _Step, name: str) -> bool:
  return isinstance(step, functools.partial) and name in step.keywords


def _label(step: _Step) -> str:
  """Return the name of a preprocessor's function or class."""
  function = _function(step)
  return getattr(function, "__name__", None) or type(function).__name__


@contextlib.contextmanager
def _seed_draws():
  """Seed the random draws of TensorFlow and, where it is installed, of SeqIO."""
  tf.random.set_seed(0)
  manager = getattr(sys.modules.get("seqio"), "map_seed_manager", None)
  with manager(0) if manager else contextlib.nullcontext():
    yield


def _deterministic_options():
  """Return the options of a `tf.data.Dataset` that keeps the order of its records."""
  options = tf.data.Options()
  options.deterministic = True
  return options


def _dataset(
  where: str, records: Callable[[], Iterator[tuple[str, Record | Skip]]], skip_reasons: list[str]
):
  """Return a `tf.data` dataset of records, the first of which determines the types.

  Args:
    where: the split, for messages.
    records: iterates over the records.
    skip_reasons: gets the reason of each record that is left out.
  """
  first = next((record for _, record in records() if not _skip_reason(record)), None)
  if first is None:
    raise UserError(f"{where}: found no records; check the source")
  spec = {name: _spec(value, f"{where}, field {name!r}") for name, value in first.items()}

  def usable_records() -> Iterator[Record]:
    for record_where, record in records():
      reason = _skip_reason(record)
      if reason:
        skip_reasons.append(reason)
        continue
      if record.keys() != spec.keys():
        name = sorted(record.keys() ^ spec.keys())[0]
        raise UserError(
          f"{record_where}: found other fields than in the first record ({name!r}), expected "
          "the same in each"
        )
      yield record

  return tf.data.Dataset.from_generator(usable_records, output_signature=spec)


def _skip_reason(record: Record | Skip) -> str | None:
  """Return why preprocessors cannot take a record, or None."""
  if isinstance(record, Skip):
    return record.reason
  return "null" if None in record.values() else None


def _spec(value: Any, where: str):
  """Return the TensorFlow type of a value, which all values of the same field share."""
  if isinstance(value, dict):
    return {name: _spec(inner, f"{where}, {name!r}") for name, inner in value.items()}
  if isinstance(value, list):
    inner = _spec(value[0], where) if value else tf.TensorSpec((), tf.string)
    if isinstance(inner, tf.TensorSpec):
      return tf.TensorSpec((None, *inner.shape), inner.dtype)
  kinds = {str: tf.string, bytes: tf.string, bool: tf.bool, int: tf.int64, float: tf.float32}
  if type(value) not in kinds:
    raise UserError(
      f"{where}: found a {type(value).__name__}, expected text, numbers, lists or objects of these"
    )
  return tf.TensorSpec((), kinds[type(value)])


def _to_plain(value: Any) -> Any:
  """Convert a result of TensorFlow to plain Python types; bytes that are text become text."""
  if isinstance(value, dict):
    return {name: _to_plain(inner) for name, inner in value.items()}
  if isinstance(value, bytes):
    try:
      return value.decode()
    except UnicodeDecodeError:
      return value
  if isinstance(value, np.ndarray | np.generic):
    return _to_plain(value.tolist())
  if hasattr(value, "to_list"):  # a ragged tensor
    return _to_plain(value.to_list())
  return [_to_plain(inner) for inner in value] if isinstance(value, list) else value
