"""Two tables of a suite side by side: the differences between their runs, on the same examples.

Of each task the run with the median score counts (with an even number of seeds, the lower of the
two in the middle), by its saved predictions. The interval of a difference is by paired bootstrap
over examples, its p-value by approximate randomisation (`metrics/resampling.py`).
"""

import json
import pathlib
from typing import Any

import numpy as np

from t5x_like.benchmarks import predictions
from t5x_like.errors import UserError, one_line
from t5x_like.metrics.resampling import paired_test
from t5x_like.training import workdir as workdirs

_SAMPLES = 1000


def read_results(directory: str) -> dict[str, Any]:
  """Read the `results.json` of a suite's directory; raise UserError if there is none."""
  path = pathlib.Path(directory) / "results.json"
  try:
    return json.loads(path.read_text(encoding="utf-8"))
  except (OSError, ValueError) as error:
    raise UserError(
      f"--compare={directory}: expected the directory of a finished suite ({path}: "
      f"{one_line(error)})"
    ) from None


def compare_results(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
  """Compare the scores that two results of one suite both have.

  Returns:
    `names` of the two and `rows`, each with task, metric, first, second (scores), and difference,
    low, high, p_value: the last three are None where the evaluator's predictions do not tell (SQuAD
    2.0, MLQA, MultiRC).

  Raises:
    UserError: the two are of other suites, or were evaluated on other examples.
  """
  if first["suite"] != second["suite"]:
    raise UserError(
      f"--compare: found a table of suite {first['suite']}, expected one of {second['suite']}"
    )
  rows = []
  for task, other in second["tasks"].items():
    one = first["tasks"].get(task)
    tests: dict[str, dict] = {}
    for name in other["counted"] if one else ():
      label, score = name.split("/", 1)
      if label not in tests:
        tests[label] = (
          _tests(predictions.median_run(one), predictions.median_run(other), label)
          if one["runs"] and other["runs"]
          else {}
        )
      pair = [side["metrics"].get(name) for side in (one, other)]
      found = tests[label].get(score) or {}
      difference = None if None in pair else pair[1] - pair[0]
      numbers = {key: found.get(key) for key in ("low", "high", "p_value")}
      rows.append(
        {
          "task": task,
          "metric": score,
          "first": pair[0],
          "second": pair[1],
          "difference": difference,
        }
        | numbers
      )
  return {"names": _names(first, second), "rows": rows}


def markdown(found: dict[str, Any]) -> str:
  """Write the table: scores in percent, differences with their 95 % intervals."""
  first, second = found["names"]
  lines = [
    f"| task | metric | {first} | {second} | difference (95 % interval) |",
    "|---|---|---|---|---|",
  ]
  for row in found["rows"]:
    scores = [_shown(row[key], ".1f") for key in ("first", "second")]
    interval = "" if row["low"] is None else f" ({row['low']:+.1f} to {row['high']:+.1f})"
    difference = _shown(row["difference"], "+.1f") + interval
    lines.append(f"| {row['task']} | {row['metric']} | {' | '.join(scores)} | {difference} |")
  return "\n".join(lines) + "\n"


def _shown(value: float | None, form: str) -> str:
  return "–" if value is None else format(value, form)


def _names(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
  """Name the two results: by their start, where they differ in nothing else."""
  sides = (first, second)
  if first["workdir"] == second["workdir"] and first["from_scratch"] != second["from_scratch"]:
    return ["from scratch" if side["from_scratch"] else "pretrained" for side in sides]
  return [side["workdir"] + (", from scratch" if side["from_scratch"] else "") for side in sides]


def _tests(first: str, second: str, label: str) -> dict[str, Any]:
  """Return the `paired_test` of an evaluation's scores."""
  saved = workdirs.read_identity(second)
  evaluator = saved["evals"][label]
  task = saved["task"]
  sides = [
    predictions.rows_with_labels(predictions.read_predictions(run, label), evaluator, task)
    for run in (first, second)
  ]
  if [row["input"] for row in sides[0]] != [row["input"] for row in sides[1]]:
    raise UserError(
      f"--compare: {first} and {second} predicted other examples in {label}.jsonl, "
      "expected the same"
    )
  found = {}
  for metric, reference, prediction in predictions.metrics_with_readers(evaluator, task):
    gold = [reference(row) for row in sides[1]]
    rows_2NC = []
    for side in sides:
      rows_2NC.append(metric.checked_rows(gold, [prediction(row) for row in side]))
    found |= paired_test(metric, *map(np.asarray, rows_2NC), samples=_SAMPLES, seed=0)[
      "differences"
    ]
  return found
