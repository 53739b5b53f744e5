"""Write predictions for the test sets of GLUE and SuperGLUE in the leaderboards' formats."""

import json
import pathlib
from typing import Any

from t5x_like.benchmarks.suites import Suite
from t5x_like.metrics.answers import names_referent
from t5x_like.metrics.texts import METRICS
from t5x_like.training import workdir as workdirs

_LOWER_CASE_BOOLEANS = {"False": "false", "True": "true"}
_LOWER_CASE_TASKS = ("boolq", "wic")


def write_submission(folder: pathlib.Path, suite: Suite, task: str, run: str) -> None:
  """Write a task's files of a submission, for test splits with predictions.

  Args:
    folder: the directory of the submission.
    run: the workdir of the run with the predictions.
  """
  for file in suite.tasks[task].test:
    path = pathlib.Path(run) / "predictions" / f"{file}.jsonl"
    if not path.exists():
      continue
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if suite.submission == "glue":
      rows.sort(key=lambda row: _sort_key(row["idx"]))
      lines = ["index\tprediction"]
      for row in rows:
        lines.append(f"{row['idx']}\t{_glue_label(suite, task, row['prediction'])}")
      workdirs.write_text(folder, f"{file}.tsv", "\n".join(lines) + "\n")
    elif task == "multirc":
      workdirs.write_lines(folder, f"{file}.jsonl", _nest_multirc(rows))
    else:
      answers = []
      for row in rows:
        label = _superglue_label(suite, task, row)
        answers.append({"idx": _example_number(row["idx"]), "label": label})
      answers.sort(key=lambda answer: _sort_key(answer["idx"]))
      workdirs.write_lines(folder, f"{file}.jsonl", answers)


def _predicted_class(suite: Suite, task: str, prediction: Any) -> Any:
  """Return the predicted class or, if the task's labels are numbered, its number.

  A text that names no class counts as the first class.
  """
  classes = suite.tasks[task].encoder.task.get("labels") or [prediction]
  name = prediction if prediction in classes else classes[0]
  return classes.index(name) if task in suite.numbered else name


def _sort_key(idx: Any) -> tuple[int, str]:
  """Return a key that sorts by number, even where the numbers are strings.

  A whole number with fewer digits is smaller; those with as many sort as strings do.
  """
  return len(str(idx)), str(idx)


def _glue_label(suite: Suite, task: str, prediction: Any) -> str:
  """Return a label as GLUE's leaderboard reads it."""
  if task == "stsb":
    number = METRICS["number"]().prediction(str(prediction))  # -1 for a text that is no number
    return f"{min(5.0, max(0.0, number)):.3f}"
  return str(_predicted_class(suite, task, prediction))


def _example_number(idx: Any) -> int:
  """Return the number of an example on the leaderboard; the query's number for ReCoRD."""
  return idx["query"] if isinstance(idx, dict) else idx


def _superglue_label(suite: Suite, task: str, row: dict[str, Any]) -> Any:
  """Return a label as jiant spells it: Booleans begin with a capital in WSC alone."""
  prediction = row["prediction"]
  if task == "wsc" and "references" in row:  # a generated referent
    return "True" if names_referent(prediction, row["references"][0]) else "False"
  name = _predicted_class(suite, task, prediction)
  return _LOWER_CASE_BOOLEANS[name] if task in _LOWER_CASE_TASKS else name


def _nest_multirc(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
  """Nest labels of answers within questions within passages."""

  def sort_key(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["idx"]["paragraph"], row["idx"]["question"], row["idx"]["answer"]

  passages: dict[int, dict[int, list]] = {}
  for row in sorted(rows, key=sort_key):
    idx = row["idx"]
    answers = passages.setdefault(idx["paragraph"], {}).setdefault(idx["question"], [])
    answers.append({"idx": idx["answer"], "label": int(row["prediction"] == "True")})
  nested = []
  for passage, answers_by_question in passages.items():
    questions = []
    for question, answers in answers_by_question.items():
      questions.append({"idx": question, "answers": answers})
    nested.append({"idx": passage, "passage": {"questions": questions}})
  return nested
