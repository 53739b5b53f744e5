"""The facts of a run are its last evaluation, its length, and the score of the commonest label."""

import json

import pytest
from sklearn.metrics import accuracy_score, f1_score

from t5x_like.benchmarks import facts
from t5x_like.saved_model.workdir import IDENTITY_FILE
from t5x_like.training import workdir as workdirs

LABELS = ["no", "yes"]


def describe_run(folder, evaluator, task, rows, counted) -> dict:
  """Write a run with an evaluator `dev` and return its facts."""
  config = {
    "task": {"length": 64} | task,
    "evals": {"dev": evaluator},
    "total_steps": 4,
    "batch_size": 8,
  }
  workdirs.write_json(folder, IDENTITY_FILE, config)
  workdirs.write_lines(folder / "predictions", "dev.jsonl", rows)
  metrics = [
    {"step": 1, "train/seconds_per_step": 2.0},
    {"step": 2, "train/seconds_per_step": 3.0, f"eval/{counted[0]}": 70.0, "eval/dev/examples": 9},
    {"step": 4, "train/seconds_per_step": 4.0, f"eval/{counted[0]}": 60.0, "eval/dev/examples": 9},
  ]
  (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
  return facts.describe_run(folder, counted)


def test_facts_are_read_from_the_metrics_and_the_config(tmp_path):
  rows = [{"input": "x", "target": "y", "prediction": "y"}]
  assert describe_run(tmp_path, {"name": "span_qa"}, {}, rows, ["dev/f1"]) == {
    "evaluations": 2,
    "last": 60.0,
    "examples": 9,
    "steps": 4,
    "batch_size": 8,
    "length": "64",
    "seconds": 12.0,  # 4 steps at the mean of 2, 3 and 4 seconds
    "majority": None,
  }


GOLD = ["yes"] * 5 + ["no"] * 2 + ["-1"]  # the last has no label
CLASS_ROWS = [{"input": "x", "target": label, "prediction": "no"} for label in GOLD]
# The scores of always answering "yes".
F1 = 100 * f1_score([1] * 5 + [0] * 2, [1] * 7)
ACCURACY = 100 * accuracy_score(GOLD[:7], ["yes"] * 7)
SIGN_ROWS = [{"input": "x", "target": sign, "prediction": "1"} for sign in ("-1", "-1", "1")]
TAG_ROWS = [
  {"input": "a b", "target": "O B-X", "tags": ["O", "O"]},
  {"input": "c", "target": "O", "tags": ["O"]},
]
CHOICE_ROWS = [row | {"options": ["p", "q"], "answer": "q"} for row in CLASS_ROWS]
LABELS_METRIC = {"name": "labels", "classes": LABELS, "scores": ["accuracy"]}


@pytest.mark.parametrize(
  ("evaluator", "task", "rows", "counted", "expected"),
  [
    (
      {"name": "classification", "scores": ["accuracy"]},
      {"labels": LABELS},
      CLASS_ROWS,
      ["accuracy"],
      ACCURACY,
    ),
    (
      {"name": "classification", "scores": ["accuracy", "f1"]},
      {"labels": LABELS},
      CLASS_ROWS,
      ["accuracy", "f1"],
      (ACCURACY + F1) / 2,
    ),
    (
      {"name": "multiple_choice", "scores": ["accuracy"]},
      {},
      CHOICE_ROWS,
      ["accuracy"],
      ACCURACY,
    ),
    ({"name": "generation", "metrics": [LABELS_METRIC]}, {}, CLASS_ROWS, ["accuracy"], ACCURACY),
    (
      {"name": "classification", "scores": ["accuracy"]},
      {"labels": [-1, 1]},
      SIGN_ROWS,
      ["accuracy"],
      200 / 3,
    ),
    ({"name": "tagging"}, {"tags": ["O", "B-X"]}, TAG_ROWS, ["accuracy"], 200 / 3),
  ],
)
def test_the_majority_is_the_score_of_the_commonest_label(
  evaluator, task, rows, counted, expected, tmp_path
):
  metrics = [f"dev/{name}" for name in counted]
  majority = describe_run(tmp_path, evaluator, task, rows, metrics)["majority"]
  assert majority == pytest.approx(expected)


def test_numbers_have_no_majority(tmp_path):
  rows = [{"input": "x", "target": n, "prediction": 1.0} for n in range(4)]
  evaluator = {"name": "classification", "scores": ["accuracy"]}
  metrics = ["dev/pearson", "dev/spearman"]
  assert describe_run(tmp_path, evaluator, {}, rows, metrics)["majority"] is None
