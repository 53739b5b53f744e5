"""The saved predictions of a suite's runs, and the metrics that score them again: for comparisons,
facts and charts."""

import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from t5x_like import slots
from t5x_like.errors import UserError, one_line
from t5x_like.files import file_names
from t5x_like.metrics.classification import Accuracy, Classification, Correlation
from t5x_like.metrics.metric import Metric
from t5x_like.metrics.tagging import EntityF1, TagAccuracy
from t5x_like.metrics.texts import METRICS

PredictionRows = list[dict[str, Any]]


def median_run(result: dict[str, Any]) -> str:
  """Return the workdir of the run whose metrics stand for a task."""
  return next(run["workdir"] for run in result["runs"] if run["metrics"] == result["metrics"])


def read_predictions(run: str, label: str) -> PredictionRows:
  """Return the predictions of an evaluation, in order; UserError if they cannot be read."""
  file_names.check_name(f"{run}: the group of a score", label, "run its suite again")
  path = pathlib.Path(run) / "predictions" / f"{label}.jsonl"
  try:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
  except (OSError, ValueError) as error:
    raise UserError(
      f"--compare: {path} cannot be read ({one_line(error)}); delete {run}/result.json and run "
      "its suite again"
    ) from None


def rows_with_labels(
  rows: PredictionRows, evaluator: dict[str, Any], task: dict[str, Any]
) -> PredictionRows:
  """Return the rows whose examples have labels; a test set's have none, or -1 where that is no
  class."""
  classes = [*(task.get("labels") or ())]
  classes += [
    name
    for one in evaluator.get("metrics", ())
    if isinstance(one, dict)
    for name in one.get("classes", ())
  ]
  absent = (None,) if "-1" in map(str, classes) else (None, "-1")
  return [row for row in rows if row["target"] not in absent]


def metrics_with_readers(
  evaluator: dict[str, Any], task: dict[str, Any]
) -> Iterator[tuple[Metric, Callable, Callable]]:
  """Yield each metric of an evaluator, and functions from a saved row to its reference and its
  prediction."""
  texts = {"generation": evaluator.get("metrics", ()), "span_qa": ("answers",)}.get(
    evaluator["name"], ()
  )
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
    for metric in (
      TagAccuracy(),
      *([EntityF1()] if any(tag.startswith("B-") for tag in task["tags"]) else []),
    ):
      yield metric, lambda row: row["target"].split(), lambda row: row["tags"]
  if evaluator["name"] == "multiple_choice" and "accuracy" in evaluator["scores"]:
    yield Accuracy(), lambda row: row["target"], lambda row: row["prediction"]
  if evaluator["name"] != "classification":
    return
  if task.get("labels") is None:
    yield Correlation(), lambda row: row["target"], lambda row: row["prediction"]
  else:
    index = [str(name) for name in task["labels"]].index
    metric = Classification(len(task["labels"]), evaluator["scores"])
    yield metric, lambda row: index(row["target"]), lambda row: index(row["prediction"])
