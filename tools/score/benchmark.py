"""Benchmarks, and the alignment of their predictions with their references."""

import collections
import dataclasses
from collections.abc import Callable, Container, Sequence
from typing import Any

from t5x_like.errors import UserError
from t5x_like.metrics.metric import Metric
from tools.score.predictions import Predictions, load

_NAMED = 5


@dataclasses.dataclass(frozen=True)
class Example:
  """One example of the references.

  Attributes:
    id, aliases: names that predictions may use; an alias shared by several examples is ignored.
    reference: as the metric takes it.
    context: what parsing its prediction needs, such as the labels of its choices.
    group: the subset that is also scored separately, such as a subject.
  """

  id: str
  reference: Any
  aliases: tuple[str, ...] = ()
  context: Any = None
  group: str | None = None


@dataclasses.dataclass(frozen=True)
class Benchmark:
  """How one benchmark is scored.

  Attributes:
    metric: its scores.
    examples: from the files given by --references to the examples, in order.
    prediction: from (a value in the file, its example) to what the metric takes; a ValueError says what was expected.
    predictions: from a file to Predictions.
    partial: whether a missing prediction is None to the metric, and one for no example only counted; else both are
      refused.
    invalid: what happens if `prediction` raises a ValueError: "refuse", or "wrong", None to the metric and counted.
    part: from a file's name to its part, for references and predictions in several pairs of files.
  """

  metric: Metric
  examples: Callable[[Sequence[str]], list[Example]]
  prediction: Callable[[Any, Example], Any]
  predictions: Callable[[str], Predictions] = load
  partial: bool = False
  invalid: str = "refuse"
  part: Callable[[str], str] | None = None


@dataclasses.dataclass(frozen=True)
class Aligned:
  """Examples with one prediction each, as the metric takes them, and counts such as `missing`."""

  examples: list[Example]
  predictions: list[Any]
  counts: dict[str, Any]


def align(benchmark: Benchmark, examples: list[Example], given: Predictions) -> Aligned:
  """Gives every example its prediction.

  Raises:
    UserError: examples without prediction or predictions of no example, if the benchmark does not allow them; a
      different number of predictions than of examples, if they have no ids; or an invalid value.
  """
  entries, counts = _in_order(examples, given) if given.ids is None else _by_id(benchmark, examples, given)
  values, invalid = [], 0
  for example, entry in zip(examples, entries):
    try:
      values.append(None if entry is None else benchmark.prediction(entry[0], example))
    except ValueError as error:
      if benchmark.invalid == "refuse":
        raise UserError(f"{entry[1]}: {error}") from error
      values.append(None)
      invalid += 1
  if benchmark.invalid == "wrong":
    counts["invalid"] = invalid
  return Aligned(examples, values, counts)


Entry = tuple[Any, str]  # a value and its place in the file


def _in_order(examples: list[Example], given: Predictions) -> tuple[list[Entry | None], dict[str, Any]]:
  if len(given.values) != len(examples):
    raise UserError(
      f"{given.path}: found {len(given.values)} predictions without ids for {len(examples)} examples, expected one for "
      "each, in order"
    )
  return list(zip(given.values, given.places)), {}


def _by_id(
  benchmark: Benchmark, examples: list[Example], given: Predictions
) -> tuple[list[Entry | None], dict[str, Any]]:
  entries = dict(zip(given.ids, zip(given.values, given.places)))
  names = _names(examples, entries)
  known = set(names)
  missing = [name for name in names if name not in entries]
  extra = [name for name in entries if name not in known]
  if len(missing) == len(examples):
    raise UserError(
      f"{given.path}: none of its ids ({_some(list(entries))}) is one of the references' ({_some(names)}); are these "
      "the predictions of this split?"
    )
  if not benchmark.partial:
    if missing:
      raise UserError(f"{given.path}: no prediction for {len(missing)} of {len(examples)} examples: {_some(missing)}")
    if extra:
      raise UserError(f"{given.path}: {len(extra)} predictions of no example of the references: {_some(extra)}")
  counts = {"missing": len(missing), "extra": len(extra)} if benchmark.partial else {}
  return [entries.get(name) for name in names], counts


def _names(examples: list[Example], given: Container[str]) -> list[str]:
  """The names that predictions use: ids or one kind of alias, whichever matches most."""
  kinds = [[example.id for example in examples]]
  for place in range(max(len(example.aliases) for example in examples)):
    names = [example.aliases[place] if place < len(example.aliases) else example.id for example in examples]
    often = collections.Counter(names)
    kinds.append([name if often[name] == 1 else example.id for name, example in zip(names, examples)])
  return max(kinds, key=lambda names: sum(name in given for name in names))


def _some(names: list[str]) -> str:
  return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def merged(parts: dict[str, Aligned]) -> Aligned:
  """The examples of several pairs of files as one set, each pair a group."""
  examples = [
    dataclasses.replace(example, id=f"{part}/{example.id}", group=part)
    for part, aligned in parts.items()
    for example in aligned.examples
  ]
  counts: collections.Counter = collections.Counter()
  for aligned in parts.values():
    counts.update(aligned.counts)
  return Aligned(examples, [value for aligned in parts.values() for value in aligned.predictions], dict(counts))


def text(value: Any, example: Example) -> str:
  """A free-text prediction: a string, or a number as written."""
  if isinstance(value, str):
    return value
  if isinstance(value, (int, float)) and not isinstance(value, bool):
    return str(value)
  raise ValueError(f"found {value!r}, expected a text")


def one_file(paths: Sequence[str]) -> str:
  """The only path of a benchmark whose references are one file."""
  if len(paths) != 1:
    raise UserError(f"--references: found {len(paths)} files, expected one: {', '.join(paths)}")
  return paths[0]
