"""Scores saved predictions of a benchmark in its official format, and prints one JSON object as the
last line.

Examples:
  python -m tools.score squad --references=dev-v1.1.json --predictions=predictions.json
  python -m tools.score glue/cola --references=CoLA/dev.tsv --predictions=CoLA.tsv --bootstrap=1000
  python -m tools.score bleu --references=test.de --predictions=ours.txt \\
      --compare=theirs.txt --tokenize=intl
  python -m tools.score glue --references=glue_data --predictions=submission

Files are plain or compressed; docs/how-to/score-predictions.md has their formats, and the flags of
each benchmark.
"""

import argparse
import collections
import dataclasses
import inspect
import json
import math
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5x_like import slots
from t5x_like.benchmarks import suites
from t5x_like.benchmarks.suites import glue, superglue
from t5x_like.command_line import Parser
from t5x_like.errors import UserError, did_you_mean, handle_errors
from t5x_like.files import outputs
from t5x_like.metrics import resampling
from t5x_like.metrics.metric import Metric
from t5x_like.metrics.texts import METRICS

from .benchmarks import BENCHMARKS, Benchmark
from .files import IDS, Ids, Row, name_of

_FLAGS = ("references", "predictions", "compare", "bootstrap", "seed", "output")
_SUITES = {"glue": glue.SUITE, "superglue": superglue.SUITE}
_ENDINGS = [
  f"{end}{packed}" for end in (".tsv", ".jsonl", ".json", ".txt") for packed in ("", ".gz")
]
_SAMPLES = 1000
_NAMED = 5


@handle_errors
def main(argv: Sequence[str] | None = None) -> None:
  args, options = _arguments(sys.argv[1:] if argv is None else argv)
  make = slots.find("NAME", args.name, BENCHMARKS | {name: _options for name in _SUITES})
  takes = METRICS.get(args.name, make)
  for key in options.keys() - inspect.signature(takes).parameters.keys():
    if near := did_you_mean(key, _FLAGS):
      raise UserError(f"--{key}: unknown flag{near}")
  options = slots.fill(args.name, options, takes)
  output = (
    outputs.OutputFile(args.output, inputs=[*args.references, *args.predictions, args.compare])
    if args.output
    else None
  )
  if args.name in _SUITES:
    found = _suite(args.name, args, options)
  else:
    found = _result(make(**options), args.references, args.predictions, args)
  text = json.dumps({"benchmark": args.name} | found, ensure_ascii=False, allow_nan=False)
  if output:
    output.write([text + "\n"])
  print(text)


def _arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, dict[str, Any]]:
  names = ", ".join(sorted([*BENCHMARKS, *_SUITES]))
  parser = Parser(
    f"{__doc__}\nNAME is one of: {names}", opens_runs=False, prog="python -m tools.score"
  )
  parser.add_argument("name", metavar="NAME", help="the benchmark")
  parser.add_argument(
    "--references",
    action="append",
    required=True,
    metavar="FILE",
    help="the references; repeatable",
  )
  parser.add_argument(
    "--predictions", action="append", required=True, metavar="FILE", help="the predictions to score"
  )
  parser.add_argument(
    "--compare", metavar="FILE2", help="other predictions: a paired test of the two"
  )
  parser.add_argument(
    "--bootstrap", type=int, metavar="N", help="add 95%% intervals from N resamples"
  )
  parser.add_argument("--seed", type=int, default=0, help="seed of resampling (default: 0)")
  parser.add_argument("--output", metavar="FILE", help="also write the JSON to this file")
  args, rest = parser.parse_known_args(argv)
  if args.bootstrap is not None and args.bootstrap < 1 or args.seed < 0:
    raise UserError(
      f"--bootstrap={args.bootstrap}: expected at least 1, and --seed={args.seed}: 0 or more"
    )
  options = {}
  for word in rest:
    key, equals, value = word.removeprefix("--").partition("=")
    if not word.startswith("--") or not equals:
      raise UserError(f"{word}: unknown argument, expected --FLAG=VALUE{did_you_mean(key, _FLAGS)}")
    try:
      options[key] = json.loads(value.lower() if value in ("True", "False") else value)
    except ValueError:
      options[key] = value
  return args, options


# what the metric takes of each example, its prediction, and its group
Scored = list[tuple[Any, Any, str | None]]


def _result(
  made: Benchmark, references: Sequence[str], predictions: Sequence[str], args
) -> dict[str, Any]:
  (scored, counts), metric = _aligned(made, references, predictions), made.metric
  gold, given, groups = map(list, zip(*scored))
  rows_NC = metric.checked_rows(gold, given)
  scores = metric.scores(rows_NC)
  if not any(math.isfinite(score) for score in scores.values()):
    what = f"{' and '.join(scores)} are not defined for these {len(rows_NC)} examples"
    raise UserError(f"{predictions[0]}: {what}: is one side the same throughout?")
  empty = sum(one == "" or isinstance(one, tuple) and not one[0] for one in given)
  found = {
    **_finite(scores),
    "examples": len(rows_NC),
    **counts,
    **({"empty": empty} if empty else {}),
  }
  found |= _finite(metric.details(rows_NC, gold, given)) | _groups(metric, groups, rows_NC)
  if args.bootstrap:
    found["bootstrap"] = resampling.bootstrap(metric, rows_NC, args.bootstrap, args.seed)
  if args.compare:
    other, counts = _aligned(made, references, [args.compare])
    other_NC = metric.checked_rows(gold, [given for _, given, _ in other])
    test = resampling.paired_test(metric, rows_NC, other_NC, args.bootstrap or _SAMPLES, args.seed)
    found["compare"] = (
      {"predictions": args.compare} | _finite(metric.scores(other_NC)) | counts | test
    )
  return found


def _groups(metric: Metric, groups: list[str | None], rows_NC: np.ndarray) -> dict[str, Any]:
  """Return the scores of each group of examples, and their means over groups."""
  found = {}
  for kind in dict.fromkeys(group for group in groups if group is not None):
    part_NC = rows_NC[[group == kind for group in groups]]
    found[kind] = _finite(metric.scores(part_NC)) | {"examples": len(part_NC)}
  means = {}
  for name in metric.names if found else ():
    values = [group[name] for group in found.values() if group.get(name) is not None]
    means[name] = sum(values) / len(values) if values else None
  return {"groups": found, "mean_of_groups": means} if found else {}


def _finite(values: dict[str, Any]) -> dict[str, Any]:
  """Return an undefined score, NaN, as None, because JSON has no NaN."""
  return {
    key: None if isinstance(one, float) and not math.isfinite(one) else one
    for key, one in values.items()
  }


def _aligned(
  made: Benchmark, references: Sequence[str], predictions: Sequence[str]
) -> tuple[Scored, dict[str, int]]:
  """Align one set of references, or several pairs of files if the benchmark has parts; also count
  `missing` etc."""
  if len(predictions) == 1 and (made.part is None or len(references) == 1):
    return _pair(made, references, predictions[0])
  if made.part is None or len(references) != len(predictions):
    pairs = "one" if made.part is None else f"pairs with the {len(references)} --references"
    raise UserError(f"--predictions: found {len(predictions)} files, expected {pairs}")
  scored = []
  counts = collections.Counter()
  for reference, path in zip(references, predictions):
    part, (found, more) = made.part(reference), _pair(made, [reference], path)
    if part in {group for _, _, group in scored}:
      raise UserError(f"--references={reference}: {part} is given twice")
    scored += [(gold, given, part) for gold, given, _ in found]
    counts.update(more)
  return scored, counts


def _pair(made: Benchmark, references: Sequence[str], path: str) -> tuple[Scored, dict[str, int]]:
  """Give every example its prediction.

  Raises:
    UserError: examples without prediction or predictions of no example, unless the benchmark counts
      them; a different number of predictions than of examples, if they have no ids; or an invalid
      reference or prediction.
  """
  found = made.read(references)
  gold = []
  given = []
  wrong = 0
  if not found:
    raise UserError(
      f"{references[0]}: holds no examples: a score over zero examples is not defined"
    )
  for where, row in found:
    try:
      gold.append(made.gold(row))
    except (ValueError, TypeError, KeyError) as error:
      raise UserError(f"{where}: {error}") from None
  entries, ids = made.given(path)
  counts = {}
  if ids:
    entries, counts = _by_id(made, references[0], [row for _, row in found], ids, entries, path)
  elif len(entries) != len(found):
    expected = f"{len(found)} examples, expected one for each, in order"
    raise UserError(f"{path}: found {len(entries)} predictions without ids for {expected}")
  for (_, row), entry in zip(found, entries):
    try:
      given.append(None if entry is None else made.prediction(entry[1], row))
    except ValueError as error:
      if not made.wrong:
        raise UserError(f"{entry[0]}: {error}") from None
      given.append(None)
      wrong += 1
  return list(zip(gold, given, [made.group(row) for _, row in found])), counts | (
    {"invalid": wrong} if made.wrong else {}
  )


@dataclasses.dataclass(frozen=True)
class _Alignment:
  """One way to give the examples their predictions.

  Attributes:
    field: the field of the predictions' ids.
    reference: the field of the examples' ids; None for their numbers from 0.
    names: the id of each example.
    matches: how many of them have a prediction.
  """

  field: str
  reference: str | None
  names: list[str]
  matches: int

  @property
  def is_same(self) -> bool:
    return _same_field(self.field) == _same_field(self.reference)


def _same_field(field: str | None) -> str | None:
  return "idx" if field == "index" else field


def _by_id(made: Benchmark, where: str, rows: list, ids: Ids, entries: list[Row], path: str):
  """Return the predictions of the examples, in order, by the ids that match most.

  Of ids that match equally many examples, a field that both files have counts before other fields,
  these before the number of an example, and a table's `index`, which may be either, last.
  """
  references = _reference_ids(where, rows, ids)
  alignments = []
  for field, names in ids.items():
    known = set(names)
    for reference, own in references.items():
      alignments.append(_Alignment(field, reference, own, sum(name in known for name in own)))
  alignment = _best(alignments, ids, path)
  given = dict(zip(ids[alignment.field], entries))
  names = alignment.names
  known = set(names)
  missing = [name for name in names if name not in given]
  extra = [name for name in given if name not in known]
  if not alignment.matches:
    raise UserError(
      f"{path}: none of its ids ({_some(list(given))}) is one of the references' "
      f"({_some(names)}); are these the predictions of this split?"
    )
  if missing and not made.partial:
    raise UserError(
      f"{path}: no prediction for {len(missing)} of {len(names)} examples: {_some(missing)}"
    )
  if extra and not made.partial:
    raise UserError(
      f"{path}: {len(extra)} predictions of no example of the references: {_some(extra)}"
    )
  counts = {"missing": len(missing), "extra": len(extra)} if made.partial else {}
  return [given.get(name) for name in names], counts


def _reference_ids(where: str, rows: list, ids: Ids) -> dict[str | None, list[str]]:
  """Return the ids of the examples by field, and their numbers from 0 as the field None.

  Raises:
    UserError: a field of numbers, or `id` where the predictions have it, stands twice.
  """
  found: dict[str | None, list[str]] = {}
  for field in IDS:
    values = [row.get(field) if isinstance(row, dict) else None for row in rows]
    if any(value is None for value in values):
      continue
    names = [name_of(value) for value in values]
    name, times = collections.Counter(names).most_common(1)[0]
    if times == 1:
      found[field] = names
    elif field in ("index", "idx") or field == "id" in ids:
      raise UserError(f"{where}: id {name} stands {times} times, expected once")
  return found | {None: [str(number) for number in range(len(rows))]}


def _best(alignments: list[_Alignment], ids: Ids, path: str) -> _Alignment:
  """Return the alignment that matches most; raise UserError if different ones do, and nothing tells
  which is meant."""
  most = max(alignment.matches for alignment in alignments)
  best = [alignment for alignment in alignments if alignment.matches == most]
  same = [alignment for alignment in best if alignment.is_same]
  if same:
    return same[0]
  surest = [alignment for alignment in best if alignment.field != "index"] or best
  named = [alignment for alignment in surest if alignment.reference is not None]
  if named and surest[0].field != "index":
    surest = named
  chosen, *more = [alignment for alignment in surest if alignment.field == surest[0].field]
  for alignment in more:
    if most and alignment.names != chosen.names:
      names = " or ".join(
        repr(each.reference) if each.reference else "its number" for each in (chosen, alignment)
      )
      raise UserError(
        f"{path}: its {chosen.field!r} could be an example's {names}, in different orders; call "
        "it by the name of the references' field"
      )
  return chosen


def _some(names: list[str]) -> str:
  return ", ".join(names[:_NAMED]) + (
    f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
  )


def _suite(suite: str, args: argparse.Namespace, options: dict[str, Any]) -> dict[str, Any]:
  """Score a directory of submission files against the archive's; the average is the
  leaderboard's."""
  if args.compare or len(args.references) > 1 or len(args.predictions) > 1:
    raise UserError(
      f"{suite}: takes one directory of --references and one of --predictions, and no --compare"
    )
  for flag, path in (("references", args.references[0]), ("predictions", args.predictions[0])):
    if not pathlib.Path(path).is_dir():
      raise UserError(f"--{flag}={path}: expected a directory, as {suite} is several files")
  files = {
    path.name.lower(): str(path) for path in sorted(pathlib.Path(args.predictions[0]).rglob("*"))
  }
  results = {}
  scores = []
  missing = []
  names = []
  for name, task in _SUITES[suite].tasks.items():
    found = {}
    folder = task.files.splits["train"][0].partition("/")[0]
    for label, submitted in zip(task.evaluated, task.test or [folder]):
      names.append(submitted)
      path = next(
        (files[one] for end in _ENDINGS if (one := f"{submitted}{end}".lower()) in files), None
      )
      if path is None:
        continue
      full = f"{suite}/{name}" + f"_{label}" * (len(task.evaluated) > 1)
      takes = inspect.signature(BENCHMARKS[full]).parameters
      made = BENCHMARKS[full](**{key: value for key, value in options.items() if key in takes})
      results[full] = _result(made, args.references, [path], args)
      found |= {f"{label}/{key}": value for key, value in results[full].items()}
    if set(task.encoder.counted) <= found.keys():
      scores.append(suites.mean_score(found, task.encoder.counted))
    else:
      missing.append(name)
  if not results:
    raise UserError(
      f"{args.predictions[0]}: no predictions of {suite}, expected files such as "
      f"{', '.join(names)} (.tsv)"
    )
  average = (
    {"average": None, "missing": missing} if missing else {"average": sum(scores) / len(scores)}
  )
  return average | {"tasks": results}


def _options(invalid: str = "refuse") -> None:
  """Declare the flags of a whole suite."""


if __name__ == "__main__":
  sys.exit(main())
