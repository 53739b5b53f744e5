"""The charts of a suite's page: what is counted in them, and that they can be drawn."""

import json

import numpy as np
from sklearn.metrics import confusion_matrix

from t5x_like.benchmarks import charts as suite_charts
from t5x_like.benchmarks import predictions
from t5x_like.training import workdir as workdirs


def test_confusions_are_those_of_scikit_learn():
  draw = np.random.default_rng(0)
  names = [f"class {n}" for n in range(5)]
  gold, given = (draw.choice(names, 200, p=[0.4, 0.3, 0.15, 0.1, 0.05]).tolist() for _ in range(2))
  classes, counts = suite_charts.confusions(list(zip(gold, given)))
  assert sorted(classes) == names
  np.testing.assert_array_equal(counts, confusion_matrix(gold, given, labels=classes))


def test_rare_classes_and_texts_that_name_none_are_one():
  pairs = [(f"class {n:02}", f"class {n:02}") for n in range(20) for _ in range(20 - n)] + [
    ("class 00", "nonsense")
  ]
  classes, counts = suite_charts.confusions(pairs)
  assert classes == [*(f"class {n:02}" for n in range(16)), "(other)"]
  assert (
    counts.sum() == len(pairs)
    and counts[0, -1] == 1
    and counts[-1, -1] == sum(20 - n for n in range(16, 20))
  )


def test_every_row_is_in_one_part_and_parts_follow_each_other_in_length():
  draw = np.random.default_rng(1)
  rows = [{"input": "word " * n, "number": i} for i, n in enumerate(draw.integers(1, 9, 100))]
  seen = []
  spans = suite_charts.scores_by_length(
    rows, lambda part: {"numbers": [row["number"] for row in part]}
  )
  for words, found in spans.items():
    lengths = {len(rows[n]["input"].split()) for n in found["numbers"]}
    assert words in (f"{min(lengths)}–{max(lengths)}", f"{min(lengths)}")
    seen.append((min(lengths), max(lengths)))
  assert (
    sorted(n for found in spans.values() for n in found["numbers"]) == list(range(100))
    and len(seen) > 2
  )
  assert all(last < first for (_, last), (first, _) in zip(seen, seen[1:]))
  assert suite_charts.scores_by_length(rows[:15], lambda part: {}) == {}


def test_tags_generated_labels_and_numbers_are_drawn_too(tmp_path):
  """A task of numbers has no classes to confuse; its config names no labels."""
  numbers = [{"input": "a " * n, "target": n, "prediction": n % 5} for n in range(1, 41)]
  tags = [
    {"input": "a " * n, "target": " ".join(["O", "B-X"] * n), "tags": ["O"] * 2 * n}
    for n in range(1, 25)
  ]
  texts = [
    {"input": "a " * n, "target": "yes", "prediction": "yes" if n % 3 else "no idea"}
    for n in range(1, 25)
  ]
  labels = {"name": "labels", "classes": ["yes", "no"], "scores": ["accuracy"]}
  for name, rows, evaluator, task in (
    ("tags", tags, {"name": "tagging"}, {"tags": ["O", "B-X"]}),
    ("texts", texts, {"name": "generation", "metrics": [labels]}, {}),
    ("numbers", numbers, {"name": "classification", "scores": ["accuracy"]}, {}),
  ):
    runs = []
    score = "pearson" if name == "numbers" else "accuracy"
    for seed in range(2):
      run = tmp_path / name / str(seed)
      workdirs.write_lines(run / "predictions", "dev.jsonl", rows)
      workdirs.write_json(run, workdirs.IDENTITY_FILE, {"evals": {"dev": evaluator}, "task": task})
      (run / "metrics.jsonl").write_text(json.dumps({"step": 1, f"eval/dev/{score}": 50.0}) + "\n")
      runs.append(
        {
          "workdir": str(run),
          "rate": None,
          "score": 50.0 + seed,
          "metrics": {f"dev/{score}": 50.0 + seed},
        }
      )
    result = {"counted": [f"dev/{score}"], "runs": runs, "metrics": runs[0]["metrics"]}
    drawn = suite_charts.draw_task_charts(name, result)
    assert [one["title"].removeprefix(f"{name}: ") for one in drawn] == [
      f"dev/{score} by step",
      "score of every seed, by rate",
      *(["targets and predictions"] if name != "numbers" else []),
      f"dev/{score} by words of input",
    ]
    assert all(one["svg"].startswith("<svg") for one in drawn)
  assert predictions.median_run(result) == runs[0]["workdir"]
