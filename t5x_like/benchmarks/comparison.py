"""Compare two results of one suite: the differences between scores on the same examples.

A task is compared by the saved predictions of its run with the median score (of an even number of
seeds, the lower of the two middle runs). Intervals of differences come from the paired bootstrap
over examples, p-values from approximate randomisation (`metrics/resampling.py`).
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5x_like import slots
from t5x_like.benchmarks import predictions, question_runs, suites
from t5x_like.errors import UserError, one_line
from t5x_like.files.checked_json import json_type_name
from t5x_like.metrics import resampling
from t5x_like.metrics.resampling import paired_test

_NO_INTERVAL = {"low": None, "high": None, "p_value": None}  # the cells of a difference alone


def read_results(directory: str) -> dict[str, Any]:
  """Read the `results.json` of a suite's directory, and add the `directory`.

  Raises:
    UserError: there is none, or it is damaged.
  """
  path = pathlib.Path(directory) / "results.json"
  try:
    results = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(results, dict):
      raise ValueError(f"found a JSON {json_type_name(results)}, expected an object")
    return results | {"directory": directory}
  except (OSError, ValueError) as error:
    raise UserError(
      f"--compare={directory}: expected the directory of a finished suite ({path}: "
      f"{one_line(error)})"
    ) from None


def compare_results(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
  """Compare the scores that two results of one suite have in common.

  Args:
    first, second: the contents of two `results.json`, with their `directory`.

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
  _check_versions(first, second)
  rows = []
  draws: dict[str, dict[str, np.ndarray]] = {}  # by suite of questions and task
  for task, second_result in second["tasks"].items():
    first_result = first["tasks"].get(task)
    if not first_result:
      continue
    if second_result["runs"] or first_result["runs"]:
      rows += _compare_task(task, first_result, second_result)
      continue
    suite, short_task = _split_task(second["suite"], task)
    row, draws_S = _compare_answers(suite, short_task, first, second, task)
    rows.append(row)
    draws.setdefault(suite, {})[short_task] = draws_S
  for suite, draws_by_task in draws.items():
    rows += _compare_summaries(suite, first, second, draws_by_task)
  return {"names": _names(first, second), "rows": rows}


def _check_versions(first: dict[str, Any], second: dict[str, Any]) -> None:
  """Raise UserError if the results come from two versions of a suite of questions."""
  first_suites = first.get("question_suites", {})
  for name, suite in second.get("question_suites", {}).items():
    version = first_suites.get(name, suite)["version"]
    if version != suite["version"]:
      raise UserError(
        f"--compare: found {name} version {version}, expected {suite['version']}; evaluate both "
        "with one version of t5x_like"
      )


def _split_task(suites: str, task: str) -> tuple[str, str]:
  """Return the suite of a task, and the task's name in it."""
  if "," not in suites:
    return suites, task
  suite, _, short_task = task.partition("/")
  return suite, short_task


def _answers_directory(results: dict[str, Any], suite: str) -> pathlib.Path:
  """Return the directory of a suite's answers."""
  directory = pathlib.Path(results["directory"])
  return directory / suite if "," in results["suite"] else directory


def _compare_answers(
  suite: str, short_task: str, first: dict[str, Any], second: dict[str, Any], task: str
) -> tuple[dict[str, Any], np.ndarray]:
  """Compare the judgements of the same questions, each in its model's best formulation.

  Returns:
    The row of the comparison, and the differences of samples of the questions, [S].

  Raises:
    UserError: the judgements cannot be read, or are of other questions.
  """
  scores = []
  draws = []
  ids = []
  for results in (first, second):
    result = results["tasks"][task]
    directory = _answers_directory(results, suite)
    results_by_set, question_ids = question_runs.read_results(directory, short_task, result)
    score_name = result["counted"][0].rpartition("/")[2]
    named_sets = {f"{short_task}/{name}": answers for name, answers in results_by_set.items()}
    draws.append(question_runs.draw_mean_score(named_sets, score_name))
    scores.append(result["score"])
    ids.append(question_ids)
  if ids[0] != ids[1]:
    raise UserError(
      f"--compare: {first['directory']} and {second['directory']} answered other questions of "
      f"{task}, expected the same; evaluate both on the same files with the same flags"
    )
  draws_S = draws[1] - draws[0]
  row = {
    "task": task,
    "metric": second["tasks"][task]["counted"][0],
    "first": scores[0],
    "second": scores[1],
    "difference": scores[1] - scores[0],
    **_NO_INTERVAL,
  }
  interval = resampling.difference_interval(draws_S, len(ids[0]))
  return row | (interval or {}), draws_S


def _compare_summaries(
  suite: str,
  first: dict[str, Any],
  second: dict[str, Any],
  draws_by_task: dict[str, np.ndarray],
) -> list[dict[str, Any]]:
  """Return the row of a suite's summary, if both results have it."""
  summaries = []
  for results in (first, second):
    summaries.append(results.get("question_suites", {}).get(suite, {}).get("summary"))
  if None in summaries:
    return []
  question_suite = slots.find("--compare", suite, suites, "SUITE")
  task_results = {}
  for task in draws_by_task:
    name = f"{suite}/{task}" if "," in second["suite"] else task
    task_results[task] = second["tasks"][name]
  draws_S = question_runs.summary_difference(question_suite, task_results, draws_by_task)
  first_score, second_score = (summary["score"] for summary in summaries)
  row = {
    "task": summaries[1]["name"],
    "metric": f"{suite} version {question_suite.version}",
    "first": first_score,
    "second": second_score,
    "difference": second_score - first_score,
    **_NO_INTERVAL,
  }
  interval = resampling.percentile_interval(draws_S)
  if interval and interval["low"] < interval["high"]:
    row |= {"low": interval["low"], "high": interval["high"]}
  return [row]


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
    if test.get("low") == test.get("high"):  # the runs predict alike, and no width says how surely
      test = {"p_value": test.get("p_value")}
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


def compare_directories(directories: Sequence[str]) -> dict[str, Any]:
  """Compare two finished tables of one suite, without a model; see `compare_results`.

  Raises:
    UserError: there are not two directories, one has no table, or they do not fit.
  """
  if len(directories) != 2:
    raise UserError(
      f"--compare={','.join(directories)}: found {len(directories)} directories, expected two"
    )
  first, second = (read_results(directory) for directory in directories)
  return compare_results(first, second)


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
      _format_number(row["first"], ".1f"),
      _format_number(row["second"], ".1f"),
    ]
    difference = _format_number(row["difference"], "+.1f")
    if row["low"] is not None:
      difference += f" ({row['low']:+.1f} to {row['high']:+.1f})"
    lines.append("| " + " | ".join([*cells, difference]) + " |")
  return "\n".join(lines) + "\n"


def _format_number(number: float | None, format_spec: str) -> str:
  """Format a number; None is a dash."""
  return "–" if number is None else format(number, format_spec)


def _names(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
  """Name two results: by workdir, or by initial weights where only these differ."""
  results = (first, second)
  if first["workdir"] == second["workdir"] and first["from_scratch"] != second["from_scratch"]:
    return ["from scratch" if result["from_scratch"] else "pretrained" for result in results]
  names = []
  for result in results:
    names.append(result["workdir"] + (", from scratch" if result["from_scratch"] else ""))
  if names[0] == names[1]:
    return [result.get("directory", name) for result, name in zip(results, names)]
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
    test = paired_test(metric, first_NC, second_NC, samples=resampling.SAMPLES, seed=0)
    differences |= test["differences"]
  return differences
