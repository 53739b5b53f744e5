"""Describe the runs of a table of benchmarks: their training, last score and software versions."""

import collections
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from t5x_like.benchmarks import predictions, suites
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.files.paths import as_path
from t5x_like.report.writer import read_metrics
from t5x_like.runtime.process import describe_environment
from t5x_like.saved_model.workdir import read_identity

_LENGTHS = ("length", "inputs_length", "targets_length")
_VERSIONS = (
  "t5x-like code_version jax flax numpy tensorflow tensorflow-cpu python device_kind host_cpu "
  "host_cores"
).split()


def newest_steps(workdir: str) -> list[int]:
  """Return a list of the step of a workdir's newest checkpoint; a published model has none."""
  if not as_path(f"{workdir}/checkpoints").exists():
    return []
  with Checkpoints(f"{workdir}/checkpoints") as checkpoints:
    return checkpoints.steps()[-1:]


def describe_run(folder: pathlib.Path, score_names: Sequence[str]) -> dict[str, Any]:
  """Return the facts of a finished run.

  Args:
    folder: the run's workdir, with its predictions.
    score_names: the scores `<evaluator>/<score>` whose mean is the score of the run.

  Returns:
    `evaluations`: the number of evaluations.
    `last`: the score of the last evaluation.
    `examples`: the number of examples that it scored.
    `majority`: the score of always predicting the most common label; None without labels.
    `steps`, `batch_size`: as configured.
    `length`: the length of a row, inputs and targets apart.
    `seconds`: the training time without evaluations; None if it was not measured.
  """
  rows = read_metrics(folder)
  identity = read_identity(folder)
  evaluations = [row for row in rows if f"eval/{score_names[0]}" in row]
  last_score = None
  num_examples = None
  if evaluations:
    last_scores = {name: evaluations[-1].get(f"eval/{name}") for name in score_names}
    last_score = suites.mean_score(last_scores, score_names)
    label = score_names[0].split("/", 1)[0]
    num_examples = evaluations[-1].get(f"eval/{label}/examples")
  lengths = [identity["task"].get(key) for key in _LENGTHS]
  return {
    "evaluations": len(evaluations),
    "last": last_score,
    "examples": num_examples,
    "majority": _majority_score(folder, identity, score_names),
    "steps": identity["total_steps"],
    "batch_size": identity["batch_size"],
    "length": "+".join(str(length) for length in lengths if length),
    "seconds": _training_seconds(rows, identity["total_steps"]),
  }


def _training_seconds(rows: list[dict[str, Any]], total_steps: int) -> float | None:
  """Return the mean time of a step times the number of steps; None if no row has a time."""
  step_times = []
  for row in rows:
    step_time = row.get("train/seconds_per_step")
    if step_time is not None:
      step_times.append(step_time)
  if not step_times:
    return None
  return round(sum(step_times) / len(step_times) * total_steps, 1)


def score_intervals(folder: str, score_names: Sequence[str]) -> dict[str, dict[str, float]]:
  """Return the 95 % intervals of the scores of a finished run, from its saved predictions.

  Args:
    folder: the run's workdir.
    score_names: the scores `<evaluator>/<score>`; those that predictions do not determine
      (SQuAD 2.0, MLQA, MultiRC) have no interval.
  """
  identity = read_identity(folder)
  intervals = {}
  for label in dict.fromkeys(name.split("/", 1)[0] for name in score_names):
    rows = predictions.read_predictions(folder, label)
    named_intervals = predictions.score_intervals(rows, identity["evals"][label], identity["task"])
    intervals |= {f"{label}/{name}": interval for name, interval in named_intervals.items()}
  return {name: intervals[name] for name in score_names if name in intervals}


def versions() -> dict[str, Any]:
  """Return the versions of this process's software, and its processor and device."""
  facts = describe_environment()
  return {name: facts[name] for name in _VERSIONS if name in facts}


def _majority_score(
  folder: pathlib.Path, identity: dict[str, Any], score_names: Sequence[str]
) -> float | None:
  """Return the score of always predicting the most common label; None without labels."""
  task = identity["task"]
  scores: dict[str, float] = {}
  for label in dict.fromkeys(name.split("/", 1)[0] for name in score_names):
    evaluator = identity["evals"][label]
    rows = predictions.read_predictions(str(folder), label)
    rows = predictions.rows_with_labels(rows, evaluator, task)
    majority_rows = _predict_majority(evaluator, task, rows)
    if not majority_rows:
      continue
    readers = predictions.metrics_with_readers(evaluator, task)
    for metric, read_reference, read_prediction in readers:
      references = [read_reference(row) for row in rows]
      metric_scores = metric(references, [read_prediction(row) for row in majority_rows])
      scores |= {f"{label}/{name}": score for name, score in metric_scores.items()}
  if not all(name in scores for name in score_names):
    return None
  return suites.mean_score(scores, score_names)


def _predict_majority(
  evaluator: dict[str, Any], task: dict[str, Any], rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
  """Replace every prediction in `rows` by the most common target; return [] without labels."""
  if not rows:
    return []
  if evaluator["name"] == "tagging":
    tags = collections.Counter(tag for row in rows for tag in row["target"].split())
    return [row | {"tags": [tags.most_common(1)[0][0]] * len(row["tags"])} for row in rows]
  if not _has_labels(evaluator, task, rows[0]):
    return []
  targets = collections.Counter(row["target"] for row in rows)
  most_common = targets.most_common(1)[0][0]
  return [row | {"prediction": most_common} for row in rows]


def _has_labels(evaluator: dict[str, Any], task: dict[str, Any], row: dict[str, Any]) -> bool:
  """Return whether targets are labels from a fixed set, rather than numbers or texts."""
  if evaluator["name"] == "classification" and task.get("labels") is not None:
    return True
  if evaluator["name"] == "multiple_choice" and isinstance(row["target"], str):
    return True
  # Metrics nest, so the metric `labels` may be at any depth.
  return '"labels"' in json.dumps(evaluator.get("metrics"))
