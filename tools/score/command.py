"""Scores saved predictions of a benchmark in its official format, and prints one JSON object as the last line.

Examples:
  python -m tools.score squad --references=dev-v1.1.json --predictions=predictions.json
  python -m tools.score glue/cola --references=CoLA/dev.tsv --predictions=CoLA.tsv --bootstrap=1000
  python -m tools.score bleu --references=test.de --predictions=ours.txt --compare=theirs.txt --tokenize=intl
  python -m tools.score glue --references=glue_data --predictions=submission

Files are plain or gzip; docs/how-to/score-predictions.md has their formats, and the flags of each benchmark.
"""

import argparse
import collections
import inspect
import json
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5x_like import slots
from t5x_like.command_line import Parser
from t5x_like.errors import UserError, did_you_mean, door
from t5x_like.files import outputs
from t5x_like.metrics import resampling
from tools.score.benchmark import Aligned, Benchmark, Example, align, merged
from tools.score.benchmarks import BENCHMARKS
from tools.score.suites import SUITES, Suite

_FLAGS = ("references", "predictions", "compare", "bootstrap", "seed", "output")
_SAMPLES = 1000


@door
def main(argv: Sequence[str] | None = None) -> None:
  args, options = _arguments(sys.argv[1:] if argv is None else argv)
  make = slots.find("NAME", args.name, BENCHMARKS | SUITES)
  for key in options.keys() - inspect.signature(make).parameters.keys():
    if near := did_you_mean(key, _FLAGS):
      raise UserError(f"--{key}: unknown flag{near}")
  inputs = [*args.references, *args.predictions, args.compare]
  output = outputs.Output(args.output, inputs=inputs) if args.output else None
  made = make(**slots.fill(args.name, options, make))
  result = {"benchmark": args.name}
  if isinstance(made, Suite):
    result |= _suite_result(made, args)
  else:
    result |= _result(made, args.references, args.predictions, args)
  text = json.dumps(result, ensure_ascii=False, allow_nan=False)
  if output:
    output.write([text + "\n"])
  print(text)


def _arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, dict[str, Any]]:
  names = ", ".join(slots.names(BENCHMARKS | SUITES))
  parser = Parser(f"{__doc__}\nNAME is one of: {names}", opens_runs=False, prog="python -m tools.score")
  parser.add_argument("name", metavar="NAME", help="the benchmark")
  parser.add_argument("--references", action="append", required=True, metavar="FILE", help="the references; repeatable")
  parser.add_argument("--predictions", action="append", required=True, metavar="FILE", help="the predictions to score")
  parser.add_argument("--compare", metavar="FILE2", help="other predictions: a paired test of the two")
  parser.add_argument("--bootstrap", type=int, metavar="N", help="add 95%% intervals from N resamples")
  parser.add_argument("--seed", type=int, default=0, help="seed of resampling (default: 0)")
  parser.add_argument("--output", metavar="FILE", help="also write the JSON to this file")
  args, rest = parser.parse_known_args(argv)
  if args.bootstrap is not None and args.bootstrap < 1:
    raise UserError(f"--bootstrap={args.bootstrap}: expected at least 1")
  if args.seed < 0:
    raise UserError(f"--seed={args.seed}: expected 0 or more")
  options = {}
  for word in rest:
    key, equals, value = word.removeprefix("--").partition("=")
    if not word.startswith("--") or not equals:
      raise UserError(f"{word}: unknown argument, expected --FLAG=VALUE{did_you_mean(key, _FLAGS)}")
    options[key] = _value(value)
  return args, options


def _value(text: str) -> Any:
  try:
    return json.loads(text.lower() if text in ("True", "False") else text)
  except ValueError:
    return text


def _examples(benchmark: Benchmark, references: Sequence[str]) -> list[Example]:
  examples = benchmark.examples(references)
  if not examples:
    raise UserError(f"{references[0]}: holds no examples: a score over zero examples is not defined")
  often = collections.Counter(example.id for example in examples).most_common(1)[0]
  if often[1] > 1:
    raise UserError(f"{references[0]}: id {often[0]} stands {often[1]} times, expected once")
  return examples


def _aligned(benchmark: Benchmark, references: Sequence[str], predictions: Sequence[str]) -> Aligned:
  """The examples of one set of references, or of several pairs of files if the benchmark has parts."""
  if len(predictions) == 1 and (benchmark.part is None or len(references) == 1):
    return align(benchmark, _examples(benchmark, references), benchmark.predictions(predictions[0]))
  if benchmark.part is None:
    raise UserError(f"--predictions: found {len(predictions)} files, expected one")
  if len(references) != len(predictions):
    raise UserError(f"found {len(references)} --references for {len(predictions)} --predictions, expected pairs")
  parts = {}
  for reference, prediction in zip(references, predictions):
    part = benchmark.part(reference)
    if part in parts:
      raise UserError(f"--references={reference}: {part} is given twice")
    parts[part] = align(benchmark, _examples(benchmark, [reference]), benchmark.predictions(prediction))
  return merged(parts)


def _result(
  benchmark: Benchmark, references: Sequence[str], predictions: Sequence[str], args: argparse.Namespace
) -> dict[str, Any]:
  aligned = _aligned(benchmark, references, predictions)
  gold = [example.reference for example in aligned.examples]
  metric = benchmark.metric
  rows_NC = metric.checked_rows(gold, aligned.predictions)
  scores = metric.scores(rows_NC)
  if not any(math.isfinite(score) for score in scores.values()):
    what = f"{' and '.join(scores)} are not defined for these {len(gold)} examples"
    raise UserError(f"{predictions[0]}: {what}: is one side the same throughout?")
  empty = sum(
    prediction == "" or isinstance(prediction, tuple) and not prediction[0] for prediction in aligned.predictions
  )
  result = {
    **_finite(scores),
    "examples": len(gold),
    **aligned.counts,
    **({"empty": empty} if empty else {}),
    **_finite(metric.details(rows_NC, gold, aligned.predictions)),
    **_groups(benchmark, aligned, rows_NC),
  }
  if args.bootstrap:
    result["bootstrap"] = resampling.bootstrap(metric, rows_NC, args.bootstrap, args.seed)
  if args.compare:
    other = _aligned(benchmark, references, [args.compare])
    other_NC = metric.checked_rows(gold, other.predictions)
    result["compare"] = {
      "predictions": args.compare,
      **_finite(metric.scores(other_NC)),
      **other.counts,
      **resampling.paired_test(metric, rows_NC, other_NC, args.bootstrap or _SAMPLES, args.seed),
    }
  return result


def _groups(benchmark: Benchmark, aligned: Aligned, rows_NC: np.ndarray) -> dict[str, Any]:
  """Scores of each group of examples, and their means over groups."""
  names = [example.group for example in aligned.examples]
  kinds = list(dict.fromkeys(name for name in names if name is not None))
  if not kinds:
    return {}
  groups = {}
  for kind in kinds:
    part_NC = rows_NC[[name == kind for name in names]]
    groups[kind] = {**_finite(benchmark.metric.scores(part_NC)), "examples": len(part_NC)}
  means = {}
  for score in benchmark.metric.scores(rows_NC):
    values = [group[score] for group in groups.values() if group[score] is not None]
    means[score] = sum(values) / len(values) if values else None
  return {"groups": groups, "mean_of_groups": means}


def _finite(values: dict[str, Any]) -> dict[str, Any]:
  """NaN, an undefined score, as None, because JSON has no NaN."""
  return {
    key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values.items()
  }


def _suite_result(suite: Suite, args: argparse.Namespace) -> dict[str, Any]:
  if args.compare or len(args.references) > 1 or len(args.predictions) > 1:
    raise UserError(f"{suite.name}: takes one directory of --references and one of --predictions, and no --compare")
  tasks = {}
  for name, (reference, prediction) in suite.found(args.references[0], args.predictions[0]).items():
    make = BENCHMARKS[name]
    takes = inspect.signature(make).parameters
    benchmark = make(**{key: value for key, value in suite.options.items() if key in takes})
    tasks[name] = _result(benchmark, [reference], [prediction], args)
  return {**suite.average(tasks), "tasks": tasks}
