"""What a table tells of a run besides its score."""

import json

import pytest
from sklearn.metrics import accuracy_score, f1_score

from t5x_like.benchmarks import facts
from t5x_like.training import workdir as workdirs

LABELS = ["no", "yes"]


def of(folder, evaluator, task, rows, counted) -> dict:
  config = {
    "task": {"length": 64} | task,
    "evals": {"dev": evaluator},
    "total_steps": 4,
    "batch_size": 8,
  }
  workdirs.write_json(folder, workdirs.IDENTITY_FILE, config)
  workdirs.write_lines(folder / "predictions", "dev.jsonl", rows)
  metrics = [
    {"step": 1, "train/seconds_per_step": 2.0},
    {"step": 2, "train/seconds_per_step": 3.0, f"eval/{counted[0]}": 70.0, "eval/dev/examples": 9},
    {"step": 4, "train/seconds_per_step": 4.0, f"eval/{counted[0]}": 60.0, "eval/dev/examples": 9},
  ]
  (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
  return facts.describe_run(folder, counted)


def test_the_last_evaluation_and_how_the_run_was_made(tmp_path):
  found = of(
    tmp_path,
    {"name": "span_qa"},
    {},
    [{"input": "x", "target": "y", "prediction": "y"}],
    ["dev/f1"],
  )
  expected = {
    "evaluations": 2,
    "last": 60.0,
    "examples": 9,
    "steps": 4,
    "batch_size": 8,
    "length": "64",
  }
  assert found == expected | {"seconds": 12.0, "majority": None}


GOLD = ["yes"] * 5 + ["no"] * 2 + ["-1"]  # the last has no label
CLASSES = [{"input": "x", "target": label, "prediction": "no"} for label in GOLD]
F1 = 100 * f1_score([1] * 5 + [0] * 2, [1] * 7)
SAME = 100 * accuracy_score(GOLD[:7], ["yes"] * 7)
SIGNS = [{"input": "x", "target": sign, "prediction": "1"} for sign in ("-1", "-1", "1")]
WORDS = [
  {"input": "a b", "target": "O B-X", "tags": ["O", "O"]},
  {"input": "c", "target": "O", "tags": ["O"]},
]
CHOICE = {"options": ["p", "q"], "answer": "q"}


@pytest.mark.parametrize(
  ("evaluator", "task", "rows", "counted", "expected"),
  [
    (
      {"name": "classification", "scores": ["accuracy"]},
      {"labels": LABELS},
      CLASSES,
      ["accuracy"],
      SAME,
    ),
    (
      {"name": "classification", "scores": ["accuracy", "f1"]},
      {"labels": LABELS},
      CLASSES,
      ["accuracy", "f1"],
      None,
    ),
    (
      {"name": "multiple_choice", "scores": ["accuracy"]},
      {},
      [r | CHOICE for r in CLASSES],
      ["accuracy"],
      SAME,
    ),
    (
      {
        "name": "generation",
        "metrics": [{"name": "labels", "classes": LABELS, "scores": ["accuracy"]}],
      },
      {},
      CLASSES,
      ["accuracy"],
      SAME,
    ),
    (
      {"name": "classification", "scores": ["accuracy"]},
      {"labels": [-1, 1]},
      SIGNS,
      ["accuracy"],
      200 / 3,
    ),
    ({"name": "tagging"}, {"tags": ["O", "B-X"]}, WORDS, ["accuracy"], 200 / 3),
  ],
)
def test_the_majority_is_the_score_of_the_commonest_label(
  evaluator, task, rows, counted, expected, tmp_path
):
  found = of(tmp_path, evaluator, task, rows, [f"dev/{name}" for name in counted])["majority"]
  assert found == pytest.approx((SAME + F1) / 2 if expected is None else expected)


def test_numbers_have_no_majority(tmp_path):
  rows = [{"input": "x", "target": n, "prediction": 1.0} for n in range(4)]
  evaluator = {"name": "classification", "scores": ["accuracy"]}
  assert of(tmp_path, evaluator, {}, rows, ["dev/pearson", "dev/spearman"])["majority"] is None
