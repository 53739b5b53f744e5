"""The facts in a table of benchmarks about a run besides its score: its making, and the scores to
compare it with."""

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
from t5x_like.training import workdir as workdirs

_LENGTHS = ("length", "inputs_length", "targets_length")
_VERSIONS = (
  "t5x-like code_version jax flax numpy tensorflow tensorflow-cpu python device_kind host_cpu "
  "host_cores"
).split()


def newest_step(workdir: str) -> list[int]:
  """Return the step of a workdir's newest checkpoint; nothing of a published model, which has
  none."""
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
  saved = workdirs.read_identity(folder)
  evaluated = [row for row in rows if f"eval/{counted[0]}" in row]
  seconds = [
    row["train/seconds_per_step"] for row in rows if row.get("train/seconds_per_step") is not None
  ]
  return {
    "evaluations": len(evaluated),
    "last": suites.mean_score(
      {name: evaluated[-1].get(f"eval/{name}") for name in counted}, counted
    )
    if evaluated
    else None,
    "examples": evaluated[-1].get(f"eval/{counted[0].split('/', 1)[0]}/examples")
    if evaluated
    else None,
    "majority": _majority(folder, saved, counted),
    "steps": saved["total_steps"],
    "batch_size": saved["batch_size"],
    "length": "+".join(str(saved["task"][key]) for key in _LENGTHS if saved["task"].get(key)),
    "seconds": round(sum(seconds) / len(seconds) * saved["total_steps"], 1) if seconds else None,
  }


def versions() -> dict[str, Any]:
  """Return the versions that the table was made with, and the machine."""
  found = describe_environment()
  return {name: found[name] for name in _VERSIONS if name in found}


def _majority(folder: pathlib.Path, saved: dict[str, Any], counted: Sequence[str]) -> float | None:
  found: dict[str, float] = {}
  for label in dict.fromkeys(name.split("/", 1)[0] for name in counted):
    evaluator = saved["evals"][label]
    rows = predictions.rows_with_labels(
      predictions.read_predictions(str(folder), label), evaluator, saved["task"]
    )
    given = _commonest(evaluator, saved["task"], rows)
    for metric, reference, prediction in (
      predictions.metrics_with_readers(evaluator, saved["task"]) if given else ()
    ):
      scores = metric([reference(row) for row in rows], [prediction(row) for row in given])
      found |= {f"{label}/{name}": value for name, value in scores.items()}
  return suites.mean_score(found, counted) if all(name in found for name in counted) else None


def _commonest(
  evaluator: dict[str, Any], task: dict[str, Any], rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
  """Return the rows with the commonest target for each prediction; none where targets are no
  labels."""
  if evaluator["name"] == "tagging":
    counts = collections.Counter(tag for row in rows for tag in row["target"].split())
    return [row | {"tags": [counts.most_common(1)[0][0]] * len(row["tags"])} for row in rows]
  labelled = evaluator["name"] == "classification" and task.get("labels") is not None
  labelled |= (
    evaluator["name"] == "multiple_choice" and isinstance(rows[0]["target"], str) if rows else False
  )
  labelled |= '"labels"' in json.dumps(evaluator.get("metrics"))
  if not labelled or not rows:
    return []
  counts = collections.Counter(row["target"] for row in rows)
  return [row | {"prediction": counts.most_common(1)[0][0]} for row in rows]
