"""Files of predictions for the test sets of GLUE and SuperGLUE, as their leaderboards take them."""

import json
import pathlib
from typing import Any

from t5x_like.benchmarks.suites import Suite
from t5x_like.metrics.answers import names_referent
from t5x_like.metrics.texts import METRICS
from t5x_like.training import workdir as workdirs

_BOOLEAN = {"False": "false", "True": "true"}
_LOWER = ("boolq", "wic")


def write_submission(folder: pathlib.Path, suite: Suite, task: str, run: str) -> None:
  """Write a submission's files of a task, from the predictions of a run for its test splits, if it
  made any."""
  for file in suite.tasks[task].test:
    path = pathlib.Path(run) / "predictions" / f"{file}.jsonl"
    if not path.exists():
      continue
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if suite.submission == "glue":
      rows.sort(key=lambda row: _order(row["idx"]))
      lines = [f"{row['idx']}\t{_glue(suite, task, row['prediction'])}" for row in rows]
      workdirs.write_text(folder, f"{file}.tsv", "\n".join(["index\tprediction", *lines]) + "\n")
    elif task == "multirc":
      workdirs.write_lines(folder, f"{file}.jsonl", _multirc(rows))
    else:
      lines = [{"idx": _number(row["idx"]), "label": _superglue(suite, task, row)} for row in rows]
      workdirs.write_lines(
        folder, f"{file}.jsonl", sorted(lines, key=lambda line: _order(line["idx"]))
      )


def _class(suite: Suite, task: str, prediction: Any) -> Any:
  """Return a predicted class or, if the suite numbers them, its number; a text that names none is
  the first class."""
  classes = suite.tasks[task].encoder.task.get("labels") or [prediction]
  named = prediction if prediction in classes else classes[0]
  return classes.index(named) if task in suite.numbered else named


def _order(idx: Any) -> tuple[int, str]:
  """Return a key that sorts whole numbers, spelled as texts too."""
  return len(str(idx)), str(idx)


def _glue(suite: Suite, task: str, prediction: Any) -> str:
  if task == "stsb":
    number = METRICS["number"]().prediction(str(prediction))  # a text that is none counts as -1
    return f"{min(5.0, max(0.0, number)):.3f}"
  return str(_class(suite, task, prediction))


def _number(idx: Any) -> int:
  """Return the number that the leaderboard knows an example by; of ReCoRD's, its query's."""
  return idx["query"] if isinstance(idx, dict) else idx


def _superglue(suite: Suite, task: str, row: dict[str, Any]) -> Any:
  """Return a label as jiant's formatter spells it: WSC's Booleans begin with a capital, the others'
  do not."""
  prediction = row["prediction"]
  if task == "wsc" and "references" in row:  # a generated referent
    return "True" if names_referent(prediction, row["references"][0]) else "False"
  named = _class(suite, task, prediction)
  return _BOOLEAN[named] if task in _LOWER else named


def _multirc(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
  """Nest labels of answers within questions within passages."""
  passages: dict[int, dict[int, list]] = {}
  for row in sorted(
    rows, key=lambda row: tuple(row["idx"][key] for key in ("paragraph", "question", "answer"))
  ):
    idx = row["idx"]
    answers = passages.setdefault(idx["paragraph"], {}).setdefault(idx["question"], [])
    answers.append({"idx": idx["answer"], "label": int(row["prediction"] == "True")})
  return [
    {
      "idx": passage,
      "passage": {
        "questions": [{"idx": q, "answers": answers} for q, answers in questions.items()]
      },
    }
    for passage, questions in passages.items()
  ]
