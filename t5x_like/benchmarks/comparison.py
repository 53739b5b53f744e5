"""Compare two results of one suite: the differences between scores on the same examples.

A task is compared by the saved predictions of its run with the median score (of an even number of
seeds, the lower of the two middle runs). Intervals of differences come from the paired bootstrap
over examples, p-values from approximate randomisation (`metrics/resampling.py`).
"""

import json
import pathlib
from typing import Any

import numpy as np

from t5x_like.benchmarks import predictions
from t5x_like.errors import UserError, one_line
from t5x_like.files.checked_json import json_type_name
from t5x_like.metrics.resampling import paired_test

_SAMPLES = 1000


def read_results(directory: str) -> dict[str, Any]:
  """Read the `results.json` of a suite's directory; raise UserError if there is none."""
  path = pathlib.Path(directory) / "results.json"
  try:
    results = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(results, dict):
      raise ValueError(f"found a JSON {json_type_name(results)}, expected an object")
    return results
  except (OSError, ValueError) as error:
    raise UserError(
      f"--compare={directory}: expected the directory of a finished suite ({path}: "
      f"{one_line(error)})"
    ) from None


def compare_results(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
  """Compare the scores that two results of one suite have in common.

  Returns:
    `names`: the names of the two results; `rows`: for each score its task, metric, first and second
    (the scores), difference, low, high and p_value. The last three are None where they cannot be
    computed from the evaluator's predictions (SQuAD 2.0, MLQA, MultiRC).

  Raises:
    UserError: the two are results of different suites, or were evaluated on different examples.
  """
  if first["suite"] != second["suite"]:
    raise UserError(
      f"--compare: found a table of suite {first['suite']}, expected one of {second['suite']}"
    )
  rows = []
  for task, second_result in second["tasks"].items():
    first_result = first["tasks"].get(task)
    if first_result:
      rows += _compare_task(task, first_result, second_result)
  return {"names": _names(first, second), "rows": rows}


def _compare_task(task: str, first: dict[str, Any], second: dict[str, Any]) -> list[dict[str, Any]]:
  """Return a row for each counted score of a task."""
  tests: dict[str, dict[str, Any]] = {}  # by the label of the evaluation
  rows = []
  for name in second["counted"]:
    label, score = name.split("/", 1)
    if label not in tests:
      tests[label] = {}
      if first["runs"] and second["runs"]:
        first_run = predictions.median_run(first)
        second_run = predictions.median_run(second)
        tests[label] = _test_differences(first_run, second_run, label)
    first_score = first["metrics"].get(name)
    second_score = second["metrics"].get(name)
    difference = None
    if first_score is not None and second_score is not None:
      difference = second_score - first_score
    test = tests[label].get(score) or {}
    rows.append(
      {
        "task": task,
        "metric": score,
        "first": first_score,
        "second": second_score,
        "difference": difference,
        "low": test.get("low"),
        "high": test.get("high"),
        "p_value": test.get("p_value"),
      }
    )
  return rows


def markdown(comparison: dict[str, Any]) -> str:
  """Write a comparison as a Markdown table: scores in percent, differences with 95 % intervals."""
  first, second = comparison["names"]
  lines = [
    f"| task | metric | {first} | {second} | difference (95 % interval) |",
    "|---|---|---|---|---|",
  ]
  for row in comparison["rows"]:
    cells = [
      row["task"],
      row["metric"],
      _format(row["first"], ".1f"),
      _format(row["second"], ".1f"),
    ]
    difference = _format(row["difference"], "+.1f")
    if row["low"] is not None:
      difference += f" ({row['low']:+.1f} to {row['high']:+.1f})"
    lines.append("| " + " | ".join([*cells, difference]) + " |")
  return "\n".join(lines) + "\n"


def _format(number: float | None, format_spec: str) -> str:
  return "–" if number is None else format(number, format_spec)


def _names(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
  """Name two results: by workdir, or by initial weights where only these differ."""
  results = (first, second)
  if first["workdir"] == second["workdir"] and first["from_scratch"] != second["from_scratch"]:
    return ["from scratch" if result["from_scratch"] else "pretrained" for result in results]
  names = []
  for result in results:
    names.append(result["workdir"] + (", from scratch" if result["from_scratch"] else ""))
  return names


def _test_differences(first: str, second: str, label: str) -> dict[str, Any]:
  """Apply `paired_test` to the scores of one evaluation in two runs.

  Args:
    first: the workdir of the first run.
    second: the workdir of the second run.
    label: the label of the evaluation.

  Returns:
    Intervals and p-value by score.
  """
  from t5x_like.saved_model.workdir import read_identity  # imports jax

  identity = read_identity(second)
  evaluator = identity["evals"][label]
  task = identity["task"]

  def read_rows(workdir: str) -> list[dict[str, Any]]:
    rows = predictions.read_predictions(workdir, label)
    return predictions.rows_with_labels(rows, evaluator, task)

  first_rows = read_rows(first)
  second_rows = read_rows(second)
  if [row["input"] for row in first_rows] != [row["input"] for row in second_rows]:
    raise UserError(
      f"--compare: {first} and {second} predicted other examples in {label}.jsonl, "
      "expected the same"
    )
  differences = {}
  for metric, reference, prediction in predictions.metrics_with_readers(evaluator, task):
    references = [reference(row) for row in second_rows]
    first_predictions = [prediction(row) for row in first_rows]
    second_predictions = [prediction(row) for row in second_rows]
    first_NC = np.asarray(metric.compute_rows(references, first_predictions))
    second_NC = np.asarray(metric.compute_rows(references, second_predictions))
    test = paired_test(metric, first_NC, second_NC, samples=_SAMPLES, seed=0)
    differences |= test["differences"]
  return differences
