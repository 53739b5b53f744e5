"""The charts of a suite's page, for each task: its curves, the spread of its runs, confusions, and
scores by length.

The last two are made of the predictions of the run whose metrics stand for the task, those with the
median score.
"""

import collections
import pathlib
from typing import Any

import numpy as np

from t5x_like.benchmarks import predictions
from t5x_like.report import charts as report_charts
from t5x_like.report.writer import read_metrics
from t5x_like.training import workdir as workdirs

_CLASSES = 16  # shown; rarer ones are one
_OTHER = "(other)"
# of the examples by length, and in each
_PARTS = 5
_FEWEST = 8
Charts = list[dict[str, str]]


def draw_task_charts(task: str, result: dict[str, Any]) -> Charts:
  """Draw one {title, svg} for each chart of a task of `results.json`; its runs must be there."""
  counted = result["counted"][0]
  label, score = counted.split("/", 1)
  curves = {
    pathlib.Path(one["workdir"]).name: read_metrics(one["workdir"]) for one in result["runs"]
  }
  drawn = [_chart(f"{task}: {counted} by step", report_charts.curves, curves, f"eval/{counted}")]
  if len(result["runs"]) > 1:
    by_rate = collections.defaultdict(list)
    for one in result["runs"]:
      by_rate["the recipe's rate" if one["rate"] is None else f"{one['rate']:g}"].append(
        one["score"]
      )
    drawn.append(_chart(f"{task}: score of every seed, by rate", report_charts.spread, by_rate))
  run = predictions.median_run(result)
  saved = workdirs.read_identity(run)
  if label not in saved["evals"]:
    return drawn
  evaluator = saved["evals"][label]
  rows = predictions.rows_with_labels(
    predictions.read_predictions(run, label), evaluator, saved["task"]
  )
  classes, counts_GP = confusions(_pairs(evaluator, saved["task"], rows))
  if len(classes) > 1:
    drawn.append(
      _chart(f"{task}: targets and predictions", report_charts.confusion, classes, counts_GP)
    )
  for metric, reference, prediction in predictions.metrics_with_readers(evaluator, saved["task"]):
    by_length = scores_by_length(
      rows, lambda part: metric([reference(r) for r in part], [prediction(r) for r in part])
    )
    if len(by_length) > 1 and score in next(iter(by_length.values())):
      values = {words: found[score] for words, found in by_length.items()}
      drawn.append(_chart(f"{task}: {counted} by words of input", report_charts.bars, values))
  return drawn


def _chart(title: str, draw, *arguments) -> dict[str, str]:
  return {
    "title": title,
    "svg": draw(*arguments, *([title] if draw is not report_charts.curves else [])),
  }


def _pairs(
  evaluator: dict[str, Any], task: dict[str, Any], rows: list[dict[str, Any]]
) -> list[tuple[str, str]]:
  """Return (target, prediction) of everything that has a class: texts, words, or texts that name
  one."""
  if evaluator["name"] == "tagging":
    return [pair for row in rows for pair in zip(row["target"].split(), row["tags"])]
  named = [
    one
    for one in evaluator.get("metrics", ())
    if isinstance(one, dict) and one.get("name") == "labels"
  ]
  if named or (evaluator["name"] == "classification" and task.get("labels") is not None):
    known = set(map(str, named[0]["classes"] if named else task["labels"]))
    return [
      (row["target"], row["prediction"] if row["prediction"] in known else _OTHER) for row in rows
    ]
  return []


def confusions(pairs: list[tuple[str, str]]) -> tuple[list[str], np.ndarray]:
  """Return classes, commonest targets first and the rarest as one, and int64 [G, P]: how often each
  target (row) got each prediction (column)."""
  targets = collections.Counter(target for target, _ in pairs)
  common = [name for name, _ in sorted(targets.items(), key=lambda one: (-one[1], one[0]))][
    :_CLASSES
  ]
  place = {name: number for number, name in enumerate(common)}
  found = [
    (place.get(target, len(common)), place.get(prediction, len(common)))
    for target, prediction in pairs
  ]
  classes = [*common, *([_OTHER] if any(len(common) in pair for pair in found) else [])]
  counts_GP = np.zeros((len(classes), len(classes)), np.int64)
  for pair in found:
    counts_GP[pair] += 1
  return classes, counts_GP


def scores_by_length(rows: list[dict[str, Any]], score) -> dict[str, dict[str, float]]:
  """Score the shortest rows, the next longer ones, and so on, by their numbers of words; equal
  lengths stay together."""
  lengths = np.array([len(str(row["input"]).split()) for row in rows])
  parts = min(_PARTS, len(rows) // _FEWEST)
  if parts < 2:
    return {}
  edges = np.unique(np.quantile(lengths, np.arange(1, parts) / parts, method="lower"))
  members = np.searchsorted(edges, lengths)  # up to and with each edge
  out = {}
  for part in np.unique(members):
    chosen = np.flatnonzero(members == part)
    low = lengths[chosen].min()
    high = lengths[chosen].max()
    out[f"{low}" if low == high else f"{low}–{high}"] = score([rows[n] for n in chosen])
  return out
