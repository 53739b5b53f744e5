"""Read the saved predictions of a suite's runs, and find the metrics that score them again."""

import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from t5x_like import slots
from t5x_like.errors import UserError, one_line
from t5x_like.files import file_names
from t5x_like.metrics import resampling
from t5x_like.metrics.classification import Accuracy, Classification, Correlation
from t5x_like.metrics.metric import Metric
from t5x_like.metrics.tagging import EntityF1, TagAccuracy
from t5x_like.metrics.texts import METRICS, TextMetric

PredictionRows = list[dict[str, Any]]


def median_run(result: dict[str, Any]) -> str:
  """Return the workdir of the run with the median score, whose metrics are those of the task."""
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
  """Return the rows whose examples have labels; those of a test set have None or -1.

  -1 is a label where the task or a metric has a class of this name.
  """
  classes = list(task.get("labels") or ())
  for metric in evaluator.get("metrics", ()):
    if isinstance(metric, dict):
      classes += metric.get("classes", ())
  absent = (None,) if "-1" in map(str, classes) else (None, "-1")
  return [row for row in rows if row["target"] not in absent]


def score_intervals(
  rows: PredictionRows, evaluator: dict[str, Any], task: dict[str, Any]
) -> dict[str, dict[str, float]]:
  """Return the 95 % interval of each score that an evaluator's predictions determine.

  Args:
    rows: the predictions; those of examples without labels do not count.
    evaluator: its arguments and name.
    task: the task's arguments.
  """
  rows = rows_with_labels(rows, evaluator, task) if rows and "target" in rows[0] else []
  intervals: dict[str, dict[str, float]] = {}
  if not rows:
    return intervals
  for metric, read_reference, read_prediction in metrics_with_readers(evaluator, task):
    references = [read_reference(row) for row in rows]
    rows_NC = metric.compute_rows(references, [read_prediction(row) for row in rows])
    intervals |= resampling.score_intervals(metric, np.asarray(rows_NC))
  return intervals


def metrics_with_readers(
  evaluator: dict[str, Any], task: dict[str, Any]
) -> Iterator[tuple[Metric, Callable, Callable]]:
  """Yield each metric of an evaluator, with the readers of saved rows.

  The readers return a row's reference and its prediction.
  """
  name = evaluator["name"]
  for metric in _text_metrics(evaluator):
    text_metric = slots.make("config.evals", metric, METRICS)
    yield text_metric.metric, *_text_readers(text_metric)
  if name == "tagging":
    metrics = [TagAccuracy()]
    if any(tag.startswith("B-") for tag in task["tags"]):
      metrics.append(EntityF1())
    for metric in metrics:
      yield metric, lambda row: row["target"].split(), lambda row: row["tags"]
  elif name == "multiple_choice" and "accuracy" in evaluator["scores"]:
    yield Accuracy(), lambda row: row["target"], lambda row: row["prediction"]
  elif name == "classification" and task.get("labels") is None:
    yield Correlation(), lambda row: row["target"], lambda row: row["prediction"]
  elif name == "classification":
    index = [str(label) for label in task["labels"]].index
    metric = Classification(len(task["labels"]), evaluator["scores"])
    yield metric, lambda row: index(row["target"]), lambda row: index(row["prediction"])


def _text_metrics(evaluator: dict[str, Any]) -> Sequence[str | dict[str, Any]]:
  """Return the metrics of texts, by name or with their options, that an evaluator has."""
  if evaluator.get("unanswerable") or evaluator.get("language"):
    return ()
  if evaluator["name"] == "generation":
    return evaluator.get("metrics", ())
  return ("answers",) if evaluator["name"] == "span_qa" else ()


def _text_readers(text_metric: TextMetric) -> tuple[Callable, Callable]:
  """Return the readers of a row's reference and prediction for a metric of texts."""

  def read_reference(row: dict[str, Any]) -> Any:
    return text_metric.reference(row.get("references") or [row["target"]])

  def read_prediction(row: dict[str, Any]) -> Any:
    return text_metric.prediction(row["prediction"])

  return read_reference, read_prediction
