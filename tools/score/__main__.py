"""Score saved predictions of a benchmark in its official format; the last line is a JSON object.

Examples:
  python -m tools.score squad --references=dev-v1.1.json --predictions=predictions.json
  python -m tools.score glue/cola --references=CoLA/dev.tsv --predictions=CoLA.tsv
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
from t5x_like.files.checked_json import replace_nonfinite
from t5x_like.metrics import resampling
from t5x_like.metrics.metric import Metric
from t5x_like.metrics.texts import METRICS

from .benchmarks import BENCHMARKS, Benchmark, evaluation_name
from .files import IDS, Ids, Row, name_of, refuse_references

_FLAGS = ("references", "predictions", "compare", "bootstrap", "seed", "output")
_SUITES = {"glue": glue.SUITE, "superglue": superglue.SUITE}
_ENDINGS = (".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz", ".json", ".json.gz", ".txt", ".txt.gz")
_RESAMPLES = 1000
_MAX_LISTED = 5  # the most names in a message


@handle_errors
def main(argv: Sequence[str] | None = None) -> None:
  args, options = _parse_arguments(sys.argv[1:] if argv is None else argv)
  names = BENCHMARKS | dict.fromkeys(_SUITES, _declare_suite_options)
  build_benchmark = slots.find("NAME", args.name, names)
  declaration = METRICS.get(args.name, build_benchmark)
  for key in options.keys() - inspect.signature(declaration).parameters.keys():
    suggestion = did_you_mean(key, _FLAGS)
    if suggestion:
      raise UserError(f"--{key}: unknown flag{suggestion}")
  options = slots.fill(args.name, options, declaration)
  output = None
  if args.output:
    inputs = [*args.references, *args.predictions, args.compare]
    output = outputs.OutputFile(args.output, inputs=inputs)
  if args.name in _SUITES:
    result = _score_suite(args.name, args, options)
  else:
    result = _score(build_benchmark(**options), args.references, args.predictions, args)
  text = json.dumps({"benchmark": args.name} | result, ensure_ascii=False, allow_nan=False)
  if output:
    output.write([text + "\n"])
  print(text)


def _parse_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, dict[str, Any]]:
  names = ", ".join(sorted([*BENCHMARKS, *_SUITES]))
  parser = Parser(
    f"{__doc__}\nNAME is one of: {names}", opens_runs=False, prog="python -m tools.score"
  )
  parser.add_argument("name", metavar="NAME", help="name of the benchmark")
  parser.add_argument(
    "--references",
    action="append",
    required=True,
    metavar="FILE",
    help="file of references; repeatable",
  )
  parser.add_argument(
    "--predictions", action="append", required=True, metavar="FILE", help="file of predictions"
  )
  parser.add_argument(
    "--compare", metavar="FILE2", help="other predictions, for a paired test of both"
  )
  parser.add_argument(
    "--bootstrap",
    type=int,
    metavar="N",
    help="also add intervals from N resamples, with their standard errors",
  )
  parser.add_argument("--seed", type=int, default=0, help="seed of resampling (default: 0)")
  parser.add_argument("--output", metavar="FILE", help="also write the JSON to this file")
  args, remaining = parser.parse_known_args(argv)
  if (args.bootstrap is not None and args.bootstrap < 1) or args.seed < 0:
    raise UserError(
      f"--bootstrap={args.bootstrap}: expected at least 1, and --seed={args.seed}: 0 or more"
    )
  options = {}
  for argument in remaining:
    key, equals, value = argument.removeprefix("--").partition("=")
    if not argument.startswith("--") or not equals:
      raise UserError(
        f"{argument}: unknown argument, expected --FLAG=VALUE{did_you_mean(key, _FLAGS)}"
      )
    try:
      options[key] = json.loads(value.lower() if value in ("True", "False") else value)
    except ValueError:
      options[key] = value
  return args, options


# (reference, prediction, group) of each example, in the metric's form
Examples = list[tuple[Any, Any, str | None]]


def _score(
  benchmark: Benchmark, references: Sequence[str], predictions: Sequence[str], args
) -> dict[str, Any]:
  """Return the scores of files of predictions with their intervals, and the tests asked for."""
  examples, counts = _align_files(benchmark, references, predictions)
  metric = benchmark.metric
  gold = [reference for reference, _, _ in examples]
  answers = [answer for _, answer, _ in examples]
  groups = [group for _, _, group in examples]
  rows_NC = metric.compute_rows(gold, answers)
  scores = metric.scores(rows_NC)
  if not any(math.isfinite(score) for score in scores.values()):
    problem = f"{' and '.join(scores)} are not defined for these {len(rows_NC)} examples"
    raise UserError(f"{predictions[0]}: {problem}: is one side the same throughout?")
  result = replace_nonfinite(scores) | {"examples": len(rows_NC)} | counts
  result["intervals"] = resampling.score_intervals(metric, rows_NC)
  empty_count = sum(_is_empty(answer) for answer in answers)
  if empty_count:
    result["empty"] = empty_count
  result |= replace_nonfinite(metric.details(rows_NC, gold, answers))
  result |= _score_groups(metric, groups, rows_NC)
  if args.bootstrap:
    result["bootstrap"] = resampling.bootstrap(metric, rows_NC, args.bootstrap, args.seed)
  if args.compare:
    compared, counts = _align_files(benchmark, references, [args.compare])
    compared_NC = metric.compute_rows(gold, [answer for _, answer, _ in compared])
    samples = args.bootstrap or _RESAMPLES
    test = resampling.paired_test(metric, rows_NC, compared_NC, samples, args.seed)
    compared_scores = replace_nonfinite(metric.scores(compared_NC))
    result["compare"] = {"predictions": args.compare} | compared_scores | counts | test
  return result


def _is_empty(answer: Any) -> bool:
  return answer == "" or (isinstance(answer, tuple) and not answer[0])


def _score_groups(metric: Metric, groups: list[str | None], rows_NC: np.ndarray) -> dict[str, Any]:
  """Return the scores of each group of examples with their intervals, and the means over groups."""
  scores_by_group = {}
  for name in dict.fromkeys(groups):
    if name is not None:
      part_NC = rows_NC[[group == name for group in groups]]
      scores = replace_nonfinite(metric.scores(part_NC))
      intervals = resampling.score_intervals(metric, part_NC)
      scores_by_group[name] = scores | {"examples": len(part_NC), "intervals": intervals}
  if not scores_by_group:
    return {}
  means = {}
  for name in metric.names:
    values = [scores[name] for scores in scores_by_group.values() if scores.get(name) is not None]
    means[name] = sum(values) / len(values) if values else None
  return {"groups": scores_by_group, "mean_of_groups": means}


def _align_files(
  benchmark: Benchmark, references: Sequence[str], predictions: Sequence[str]
) -> tuple[Examples, dict[str, int]]:
  """Align one set of references, or several pairs of files if the benchmark has parts.

  Returns:
    (the examples; counts of examples that are missing, extra or invalid)
  """
  if len(predictions) == 1 and (benchmark.part is None or len(references) == 1):
    return _align_pair(benchmark, references, predictions[0])
  if benchmark.part is None or len(references) != len(predictions):
    expected = "one"
    if benchmark.part is not None:
      expected = f"pairs with the {len(references)} --references"
    raise UserError(f"--predictions: found {len(predictions)} files, expected {expected}")
  examples = []
  parts = set()
  counts = collections.Counter()
  for reference, path in zip(references, predictions):
    part = benchmark.part(reference)
    part_examples, part_counts = _align_pair(benchmark, [reference], path)
    if part in parts:
      raise UserError(f"--references={reference}: {part} is given twice")
    parts.add(part)
    examples += [(gold, answer, part) for gold, answer, _ in part_examples]
    counts.update(part_counts)
  return examples, counts


def _align_pair(
  benchmark: Benchmark, references: Sequence[str], path: str
) -> tuple[Examples, dict[str, int]]:
  """Assign its prediction to every example.

  Raises:
    UserError: examples without prediction or predictions of no example, unless the benchmark counts
      them; a different number of predictions than of examples, if they have no ids; or an invalid
      reference or prediction.
  """
  rows = benchmark.read(references)
  if not rows:
    raise UserError(
      f"{references[0]}: holds no examples: a score over zero examples is not defined"
    )
  gold = []
  for where, row in rows:
    try:
      gold.append(benchmark.gold(row))
    except (ValueError, TypeError, KeyError) as error:
      raise UserError(f"{where}: {error}") from None
  entries, ids = benchmark.read_predictions(path)
  counts = {}
  if ids:
    values = [row for _, row in rows]
    entries, counts = _align_by_id(benchmark, references[0], values, ids, entries, path)
  elif len(entries) != len(rows):
    expected = f"{len(rows)} examples, expected one for each, in order"
    raise UserError(f"{path}: found {len(entries)} predictions without ids for {expected}")
  values = [None if entry is None else entry[1] for entry in entries]
  refuse_references(path, values, [row for _, row in rows])
  answers = []
  invalid = 0
  for (_, row), entry in zip(rows, entries):
    try:
      answers.append(None if entry is None else benchmark.prediction(entry[1], row))
    except ValueError as error:
      if not benchmark.invalid_is_wrong:
        raise UserError(f"{entry[0]}: {error}") from None
      answers.append(None)
      invalid += 1
  if benchmark.invalid_is_wrong:
    counts["invalid"] = invalid
  groups = [benchmark.group(row) for _, row in rows]
  return list(zip(gold, answers, groups)), counts


@dataclasses.dataclass(frozen=True)
class _Alignment:
  """One way to match predictions with examples by their ids.

  Attributes:
    field: field of the predictions that holds ids.
    reference: field of the examples that holds ids; None stands for their numbers from 0.
    names: id of each example.
    matches: number of examples that have a prediction.
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


def _align_by_id(
  benchmark: Benchmark, where: str, rows: list, ids: Ids, entries: list[Row], path: str
) -> tuple[list[Row | None], dict[str, int]]:
  """Return the predictions of the examples, in order, by the ids that match most.

  Of ids that match equally many examples, a field that both files have counts before other fields,
  these before the number of an example, and a table's `index`, which may be either, last.
  """
  alignments = []
  for field, predicted_ids in ids.items():
    predicted = set(predicted_ids)
    for reference, names in _reference_ids(where, rows, ids).items():
      matches = sum(name in predicted for name in names)
      alignments.append(_Alignment(field, reference, names, matches))
  alignment = _best_alignment(alignments, path)
  predictions = dict(zip(ids[alignment.field], entries))
  names = alignment.names
  known_names = set(names)
  missing = [name for name in names if name not in predictions]
  extra = [name for name in predictions if name not in known_names]
  if not alignment.matches:
    raise UserError(
      f"{path}: none of its ids ({_list_names(list(predictions))}) is one of the references' "
      f"({_list_names(names)}); are these the predictions of this split?"
    )
  if missing and not benchmark.partial:
    raise UserError(
      f"{path}: no prediction for {len(missing)} of {len(names)} examples: {_list_names(missing)}"
    )
  if extra and not benchmark.partial:
    raise UserError(
      f"{path}: {len(extra)} predictions whose ids are not in the references: {_list_names(extra)}"
    )
  counts = {"missing": len(missing), "extra": len(extra)} if benchmark.partial else {}
  return [predictions.get(name) for name in names], counts


def _reference_ids(where: str, rows: list, ids: Ids) -> dict[str | None, list[str]]:
  """Return the ids of the examples by field, and their numbers from 0 as the field None.

  Raises:
    UserError: a field of numbers, or `id` where the predictions have it, appears twice.
  """
  ids_by_field: dict[str | None, list[str]] = {}
  for field in IDS:
    values = [row.get(field) if isinstance(row, dict) else None for row in rows]
    if any(value is None for value in values):
      continue
    names = [name_of(value) for value in values]
    name, count = collections.Counter(names).most_common(1)[0]
    if count == 1:
      ids_by_field[field] = names
    elif field in ("index", "idx") or field == "id" in ids:
      raise UserError(f"{where}: id {name} appears {count} times, expected once")
  return ids_by_field | {None: [str(number) for number in range(len(rows))]}


def _best_alignment(alignments: list[_Alignment], path: str) -> _Alignment:
  """Return the alignment that matches most examples.

  Raises:
    UserError: alignments by different ids match equally many, and the fields do not decide.
  """
  most_matches = max(alignment.matches for alignment in alignments)
  candidates = [alignment for alignment in alignments if alignment.matches == most_matches]
  for alignment in candidates:
    if alignment.is_same:
      return alignment
  candidates = [alignment for alignment in candidates if alignment.field != "index"] or candidates
  by_field = [alignment for alignment in candidates if alignment.reference is not None]
  if by_field and candidates[0].field != "index":
    candidates = by_field
  choice = candidates[0]
  for alignment in candidates[1:]:
    is_rival = alignment.field == choice.field and alignment.names != choice.names
    if most_matches and is_rival:
      names = f"{_spell_reference(choice)} or {_spell_reference(alignment)}"
      raise UserError(
        f"{path}: its {choice.field!r} could be an example's {names}, in different orders; call "
        "it by the name of the references' field"
      )
  return choice


def _spell_reference(alignment: _Alignment) -> str:
  return repr(alignment.reference) if alignment.reference else "its number"


def _list_names(names: list[str]) -> str:
  """List names for a message, the first ones if there are many."""
  text = ", ".join(names[:_MAX_LISTED])
  if len(names) > _MAX_LISTED:
    text += f" and {len(names) - _MAX_LISTED} more"
  return text


def _score_suite(suite: str, args: argparse.Namespace, options: dict[str, Any]) -> dict[str, Any]:
  """Score a directory of submission files, and average the scores as the leaderboard does."""
  if args.compare or len(args.references) > 1 or len(args.predictions) > 1:
    raise UserError(
      f"{suite}: takes one directory of --references and one of --predictions, and no --compare"
    )
  for flag, path in (("references", args.references[0]), ("predictions", args.predictions[0])):
    if not pathlib.Path(path).is_dir():
      raise UserError(f"--{flag}={path}: expected a directory, as {suite} is several files")
  files = {}
  for path in sorted(pathlib.Path(args.predictions[0]).rglob("*")):
    files[path.name.lower()] = str(path)
  results = {}
  scores = []
  missing = []
  expected_files = []
  for name, task in _SUITES[suite].tasks.items():
    task_scores = {}
    folder = task.files.splits["train"][0].partition("/")[0]
    for label, submitted in zip(task.evaluated, task.test or [folder]):
      expected_files.append(submitted)
      path = _find_submission(files, submitted)
      if path is None:
        continue
      benchmark_name = evaluation_name(suite, name, task, label)
      build_benchmark = BENCHMARKS[benchmark_name]
      parameters = inspect.signature(build_benchmark).parameters
      benchmark_options = {key: value for key, value in options.items() if key in parameters}
      benchmark = build_benchmark(**benchmark_options)
      results[benchmark_name] = _score(benchmark, args.references, [path], args)
      for key, value in results[benchmark_name].items():
        task_scores[f"{label}/{key}"] = value
    if set(task.encoder.counted) <= task_scores.keys():
      scores.append(suites.mean_score(task_scores, task.encoder.counted))
    else:
      missing.append(name)
  if not results:
    raise UserError(
      f"{args.predictions[0]}: no predictions of {suite}, expected files such as "
      f"{', '.join(expected_files)} (.tsv)"
    )
  if missing:
    return {"average": None, "missing": missing, "tasks": results}
  return {"average": sum(scores) / len(scores), "tasks": results}


def _find_submission(files: dict[str, str], name: str) -> str | None:
  """Return the path of a submitted file, by its name without ending; None if there is none."""
  for ending in _ENDINGS:
    file_name = f"{name}{ending}".lower()
    if file_name in files:
      return files[file_name]
  return None


def _declare_suite_options(invalid: str = "refuse") -> None:
  """Declare the flags of a whole suite."""


if __name__ == "__main__":
  sys.exit(main())
