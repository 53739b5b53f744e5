"""Two tables of a suite side by side: what differs between their runs, on the same examples.

Of each task the run with the median score counts (with an even number of seeds, the lower of the two in the middle), by
its saved predictions. The interval of a difference is by paired
bootstrap over examples, its p-value by approximate randomisation (`metrics/resampling.py`).
"""

import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from t5x_like import slots
from t5x_like.errors import UserError, one_line
from t5x_like.files import file_names
from t5x_like.metrics.classification import Classification, Correlation, Matches
from t5x_like.metrics.metric import Metric
from t5x_like.metrics.resampling import paired_test
from t5x_like.metrics.tagging import EntityF1, TagAccuracy
from t5x_like.metrics.texts import METRICS
from t5x_like.training import workdir as workdirs

_SAMPLES = 1000
Rows = list[dict[str, Any]]


def read(directory: str) -> dict[str, Any]:
  """The `results.json` of a suite's directory; UserError if there is none."""
  path = pathlib.Path(directory) / "results.json"
  try:
    return json.loads(path.read_text(encoding="utf-8"))
  except (OSError, ValueError) as error:
    raise UserError(
      f"--compare={directory}: expected the directory of a finished suite ({path}: {one_line(error)})"
    ) from None


def compared(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
  """The scores that two results of one suite both have.

  Returns:
    `names` of the two and `rows`, each with task, metric, first, second (scores), and difference, low, high, p_value:
    the last three are None where the evaluator's predictions do not tell (SQuAD 2.0, MultiRC, XQuAD).

  Raises:
    UserError: the two are of other suites, or were evaluated on other examples.
  """
  if first["suite"] != second["suite"]:
    raise UserError(f"--compare: found a table of suite {first['suite']}, expected one of {second['suite']}")
  rows = []
  for task, other in second["tasks"].items():
    one = first["tasks"].get(task)
    tests: dict[str, dict] = {}
    for name in other["counted"] if one else ():
      label, score = name.split("/", 1)
      if label not in tests:
        tests[label] = _tests(median(one), median(other), label) if one["runs"] and other["runs"] else {}
      pair = [side["metrics"].get(name) for side in (one, other)]
      found = tests[label].get(score) or {}
      difference = None if None in pair else pair[1] - pair[0]
      numbers = {key: found.get(key) for key in ("low", "high", "p_value")}
      rows.append(
        {"task": task, "metric": score, "first": pair[0], "second": pair[1], "difference": difference} | numbers
      )
  return {"names": _names(first, second), "rows": rows}


def markdown(found: dict[str, Any]) -> str:
  """The table: scores in percent, differences with their 95 % intervals."""
  first, second = found["names"]
  lines = [f"| task | metric | {first} | {second} | difference (95 % interval) |", "|---|---|---|---|---|"]
  for row in found["rows"]:
    scores = [_shown(row[key], ".1f") for key in ("first", "second")]
    interval = "" if row["low"] is None else f" ({row['low']:+.1f} to {row['high']:+.1f})"
    difference = _shown(row["difference"], "+.1f") + interval
    lines.append(f"| {row['task']} | {row['metric']} | {' | '.join(scores)} | {difference} |")
  return "\n".join(lines) + "\n"


def _shown(value: float | None, form: str) -> str:
  return "–" if value is None else format(value, form)


def _names(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
  """What to call the two: where they differ only in their start, by that."""
  sides = (first, second)
  if first["workdir"] == second["workdir"] and first["from_scratch"] != second["from_scratch"]:
    return ["from scratch" if side["from_scratch"] else "pretrained" for side in sides]
  return [side["workdir"] + (", from scratch" if side["from_scratch"] else "") for side in sides]


def median(result: dict[str, Any]) -> str:
  """The workdir of the run whose metrics stand for a task."""
  return next(run["workdir"] for run in result["runs"] if run["metrics"] == result["metrics"])


def _tests(first: str, second: str, label: str) -> dict[str, Any]:
  """`paired_test` of an evaluation's scores."""
  saved = workdirs.read(second)
  sides = [predictions(run, label) for run in (first, second)]
  if [row["input"] for row in sides[0]] != [row["input"] for row in sides[1]]:
    raise UserError(f"--compare: {first} and {second} predicted other examples in {label}.jsonl, expected the same")
  found = {}
  for metric, reference, prediction in metrics(saved["evals"][label], saved["task"]):
    labelled = [n for n, row in enumerate(sides[1]) if row["target"] not in (None, "-1")]
    gold = [reference(sides[1][n]) for n in labelled]
    rows_2NC = [metric.checked_rows(gold, [prediction(side[n]) for n in labelled]) for side in sides]
    found |= paired_test(metric, *map(np.asarray, rows_2NC), samples=_SAMPLES, seed=0)["differences"]
  return found


def predictions(run: str, label: str) -> Rows:
  file_names.check(f"{run}: the group of a score", label, "run its suite again")
  path = pathlib.Path(run) / "predictions" / f"{label}.jsonl"
  try:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
  except (OSError, ValueError) as error:
    raise UserError(
      f"--compare: {path} cannot be read ({one_line(error)}); delete {run}/result.json and run its suite again"
    ) from None


def metrics(evaluator: dict[str, Any], task: dict[str, Any]) -> Iterator[tuple[Metric, Callable, Callable]]:
  """Each metric of an evaluator, with how it reads the references and predictions of a saved row."""
  texts = {"generation": evaluator.get("metrics", ()), "span_qa": ("answers",)}.get(evaluator["name"], ())
  if evaluator.get("unanswerable") or evaluator.get("language"):
    texts = ()
  for metric in texts:
    made = slots.make("config.evals", metric, METRICS)
    yield (
      made.metric,
      lambda row, made=made: made.reference(row.get("references") or [row["target"]]),
      lambda row, made=made: made.prediction(row["prediction"]),
    )
  if evaluator["name"] == "tagging":
    for metric in (TagAccuracy(), *([EntityF1()] if any(tag.startswith("B-") for tag in task["tags"]) else [])):
      yield metric, lambda row: row["target"].split(), lambda row: row["tags"]
  if evaluator["name"] == "multiple_choice" and "accuracy" in evaluator["scores"]:
    yield Matches(), lambda row: row["target"], lambda row: row["prediction"]
  if evaluator["name"] != "classification":
    return
  if task.get("labels") is None:
    yield Correlation(), lambda row: row["target"], lambda row: row["prediction"]
  else:
    index = task["labels"].index
    metric = Classification(len(task["labels"]), evaluator["scores"])
    yield metric, lambda row: index(row["target"]), lambda row: index(row["prediction"])
