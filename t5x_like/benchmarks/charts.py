"""Draw the charts of each task on a suite's page.

They show its curves, the spread of its runs, confusions, and scores by length. The last two come
from the predictions of the run with the median score.
"""

import collections
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from t5x_like.benchmarks import predictions
from t5x_like.metrics.metric import Metric
from t5x_like.report import charts as report_charts
from t5x_like.report.writer import read_metrics
from t5x_like.saved_model.workdir import read_identity

_MAX_CLASSES = 16  # the most in a chart, besides one for all rarer classes
_OTHER = "(other)"
_MAX_GROUPS = 5  # the most groups of examples by length
_MIN_ROWS = 8  # the fewest rows of a group
Charts = list[dict[str, str]]


def draw_task_charts(task: str, result: dict[str, Any]) -> Charts:
  """Draw one {title, svg} for each chart of a task of `results.json`; its runs must exist."""
  counted = result["counted"][0]
  label, score = counted.split("/", 1)
  runs = result["runs"]
  curves = {pathlib.Path(run["workdir"]).name: read_metrics(run["workdir"]) for run in runs}
  curves_svg = report_charts.curves(curves, f"eval/{counted}")
  charts = [{"title": f"{task}: {counted} by step", "svg": curves_svg}]
  if len(runs) > 1:
    scores_by_rate = collections.defaultdict(list)
    for run in runs:
      rate = "the recipe's rate" if run["rate"] is None else f"{run['rate']:g}"
      scores_by_rate[rate].append(run["score"])
    title = f"{task}: score of every seed, by rate"
    charts.append({"title": title, "svg": report_charts.points_by_group(scores_by_rate, title)})
  median_run = predictions.median_run(result)
  identity = read_identity(median_run)
  if label not in identity["evals"]:
    return charts
  evaluator = identity["evals"][label]
  rows = predictions.read_predictions(median_run, label)
  rows = predictions.rows_with_labels(rows, evaluator, identity["task"])
  classes, counts_GP = confusions(_class_pairs(evaluator, identity["task"], rows))
  if len(classes) > 1:
    title = f"{task}: targets and predictions"
    charts.append({"title": title, "svg": report_charts.confusion(classes, counts_GP, title)})
  for readers in predictions.metrics_with_readers(evaluator, identity["task"]):
    by_length = scores_by_length(rows, functools.partial(_score_rows, *readers))
    if len(by_length) > 1 and score in next(iter(by_length.values())):
      bars = {num_words: scores[score] for num_words, scores in by_length.items()}
      title = f"{task}: {counted} by words of input"
      charts.append({"title": title, "svg": report_charts.bars(bars, title)})
  return charts


def _score_rows(
  metric: Metric, reference: Callable, prediction: Callable, rows: list[dict[str, Any]]
) -> dict[str, float]:
  """Score rows of predictions by a metric, given the readers of their two sides."""
  references = [reference(row) for row in rows]
  return metric(references, [prediction(row) for row in rows])


def _class_pairs(
  evaluator: dict[str, Any], task: dict[str, Any], rows: list[dict[str, Any]]
) -> list[tuple[str, str]]:
  """Return (target, prediction) of every text or word that has a class, also in generated text."""
  if evaluator["name"] == "tagging":
    pairs = []
    for row in rows:
      pairs += zip(row["target"].split(), row["tags"])
    return pairs
  classes = _class_names(evaluator, task)
  if classes is None:
    return []
  pairs = []
  for row in rows:
    prediction = row["prediction"] if row["prediction"] in classes else _OTHER
    pairs.append((row["target"], prediction))
  return pairs


def _class_names(evaluator: dict[str, Any], task: dict[str, Any]) -> set[str] | None:
  """Return the classes of texts; None if an evaluator has none."""
  for metric in evaluator.get("metrics", ()):
    if isinstance(metric, dict) and metric.get("name") == "labels":
      return set(map(str, metric["classes"]))
  if evaluator["name"] == "classification" and task.get("labels") is not None:
    return set(map(str, task["labels"]))
  return None


def confusions(pairs: list[tuple[str, str]]) -> tuple[list[str], np.ndarray]:
  """Count the predictions of each target.

  Returns:
    The classes, commonest targets first and the rarest as one; and int64 [G, P], how often each
    target (row) got each prediction (column).
  """
  targets = collections.Counter(target for target, _ in pairs)
  ranked = sorted(targets.items(), key=lambda item: (-item[1], item[0]))
  classes = [name for name, _ in ranked[:_MAX_CLASSES]]
  index = {name: number for number, name in enumerate(classes)}
  other = len(classes)
  index_pairs = []
  for target, prediction in pairs:
    index_pairs.append((index.get(target, other), index.get(prediction, other)))
  if any(other in pair for pair in index_pairs):
    classes.append(_OTHER)
  counts_GP = np.zeros((len(classes), len(classes)), np.int64)
  for pair in index_pairs:
    counts_GP[pair] += 1
  return classes, counts_GP


def scores_by_length(rows: list[dict[str, Any]], score) -> dict[str, dict[str, float]]:
  """Score groups of rows by their numbers of words; rows of equal length share a group."""
  lengths = np.array([len(str(row["input"]).split()) for row in rows])
  num_groups = min(_MAX_GROUPS, len(rows) // _MIN_ROWS)
  if num_groups < 2:
    return {}
  shares = np.arange(1, num_groups) / num_groups
  edges = np.unique(np.quantile(lengths, shares, method="lower"))
  groups = np.searchsorted(edges, lengths)  # an edge belongs to the group below it
  scores = {}
  for group in np.unique(groups):
    members = np.flatnonzero(groups == group)
    low = lengths[members].min()
    high = lengths[members].max()
    name = f"{low}" if low == high else f"{low}–{high}"
    scores[name] = score([rows[n] for n in members])
  return scores
