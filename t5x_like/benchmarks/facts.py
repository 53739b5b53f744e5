"""Collect the facts about a run in a table of benchmarks besides its score."""

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
  """Return the step of a workdir's newest checkpoint, in a list; an empty list if it has none.

  A published model has no checkpoints.
  """
  if not as_path(f"{workdir}/checkpoints").exists():
    return []
  with Checkpoints(f"{workdir}/checkpoints") as checkpoints:
    return checkpoints.steps()[-1:]


def describe_run(folder: pathlib.Path, counted: Sequence[str]) -> dict[str, Any]:
  """Return the facts of a finished run.

  Args:
    folder: its workdir, with its predictions.
    counted: the scores whose mean is the score of the run.

  Returns:
    `evaluations`, how many there were, and `last`, the score at the last of them; `examples`, how
    many were scored; `majority`, the score of giving the commonest of their labels every time, or
    None where there are no labels; `steps`, `batch_size`, `length` (of a row) and `seconds` (of
    training, without evaluations).
  """
  rows = read_metrics(folder)
  identity = read_identity(folder)
  evaluated = [row for row in rows if f"eval/{counted[0]}" in row]
  last_score = None
  num_examples = None
  if evaluated:
    last_scores = {name: evaluated[-1].get(f"eval/{name}") for name in counted}
    last_score = suites.mean_score(last_scores, counted)
    label = counted[0].split("/", 1)[0]
    num_examples = evaluated[-1].get(f"eval/{label}/examples")
  lengths = [identity["task"].get(key) for key in _LENGTHS]
  return {
    "evaluations": len(evaluated),
    "last": last_score,
    "examples": num_examples,
    "majority": _majority_score(folder, identity, counted),
    "steps": identity["total_steps"],
    "batch_size": identity["batch_size"],
    "length": "+".join(str(length) for length in lengths if length),
    "seconds": _training_seconds(rows, identity["total_steps"]),
  }


def _training_seconds(rows: list[dict[str, Any]], total_steps: int) -> float | None:
  seconds = [row.get("train/seconds_per_step") for row in rows]
  seconds = [seconds_per_step for seconds_per_step in seconds if seconds_per_step is not None]
  if not seconds:
    return None
  return round(sum(seconds) / len(seconds) * total_steps, 1)


def versions() -> dict[str, Any]:
  """Return the versions that the table was made with, and the machine."""
  facts = describe_environment()
  return {name: facts[name] for name in _VERSIONS if name in facts}


def _majority_score(
  folder: pathlib.Path, identity: dict[str, Any], counted: Sequence[str]
) -> float | None:
  """Return the score of giving the commonest label every time; None where there are no labels."""
  task = identity["task"]
  scores: dict[str, float] = {}
  for label in dict.fromkeys(name.split("/", 1)[0] for name in counted):
    evaluator = identity["evals"][label]
    rows = predictions.read_predictions(str(folder), label)
    rows = predictions.rows_with_labels(rows, evaluator, task)
    majority_rows = _predict_majority(evaluator, task, rows)
    if not majority_rows:
      continue
    for metric, reference, prediction in predictions.metrics_with_readers(evaluator, task):
      references = [reference(row) for row in rows]
      metric_scores = metric(references, [prediction(row) for row in majority_rows])
      scores |= {f"{label}/{name}": score for name, score in metric_scores.items()}
  if not all(name in scores for name in counted):
    return None
  return suites.mean_score(scores, counted)


def _predict_majority(
  evaluator: dict[str, Any], task: dict[str, Any], rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
  """Return the rows with the commonest target for each prediction; none without labels."""
  if evaluator["name"] == "tagging":
    tags = collections.Counter(tag for row in rows for tag in row["target"].split())
    return [row | {"tags": [tags.most_common(1)[0][0]] * len(row["tags"])} for row in rows]
  if not rows or not _has_labels(evaluator, task, rows[0]):
    return []
  targets = collections.Counter(row["target"] for row in rows)
  return [row | {"prediction": targets.most_common(1)[0][0]} for row in rows]


def _has_labels(evaluator: dict[str, Any], task: dict[str, Any], row: dict[str, Any]) -> bool:
  if evaluator["name"] == "classification" and task.get("labels") is not None:
    return True
  if evaluator["name"] == "multiple_choice" and isinstance(row["target"], str):
    return True
  return '"labels"' in json.dumps(evaluator.get("metrics"))
