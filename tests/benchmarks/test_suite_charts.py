"""The charts of a benchmark suite count every row and are drawn for each kind of task."""

import itertools
import json

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from t5x_like.benchmarks import charts as suite_charts
from t5x_like.benchmarks import predictions
from t5x_like.saved_model.workdir import IDENTITY_FILE
from t5x_like.training import workdir as workdirs


def test_confusion_counts_equal_those_of_scikit_learn():
  generator = np.random.default_rng(0)
  names = [f"class {n}" for n in range(5)]
  frequencies = [0.4, 0.3, 0.15, 0.1, 0.05]
  targets = generator.choice(names, 200, p=frequencies).tolist()
  answers = generator.choice(names, 200, p=frequencies).tolist()
  classes, counts = suite_charts.confusions(list(zip(targets, answers)))
  assert sorted(classes) == names
  np.testing.assert_array_equal(counts, confusion_matrix(targets, answers, labels=classes))


def test_rare_classes_and_texts_that_name_no_class_are_pooled():
  """Class n of 20 occurs 20 - n times; the 16 most frequent have a row of their own."""
  pairs = [("class 00", "nonsense")]
  for n in range(20):
    pairs += [(f"class {n:02}", f"class {n:02}")] * (20 - n)
  classes, counts = suite_charts.confusions(pairs)
  assert classes == [*(f"class {n:02}" for n in range(16)), "(other)"]
  assert counts.sum() == len(pairs)
  assert counts[0, -1] == 1
  assert counts[-1, -1] == 4 + 3 + 2 + 1


def test_scores_by_length_put_every_row_into_one_of_ascending_intervals():
  generator = np.random.default_rng(1)
  rows = []
  for number, length in enumerate(generator.integers(1, 9, 100)):
    rows.append({"input": "word " * length, "number": number})

  def list_numbers(part):
    return {"numbers": [row["number"] for row in part]}

  bounds = []
  numbers = []
  for words, scores in suite_charts.scores_by_length(rows, list_numbers).items():
    lengths = {len(rows[n]["input"].split()) for n in scores["numbers"]}
    shortest = min(lengths)
    longest = max(lengths)
    assert words in (f"{shortest}–{longest}", f"{shortest}")
    bounds.append((shortest, longest))
    numbers += scores["numbers"]
  assert sorted(numbers) == list(range(100))
  assert len(bounds) > 2
  for (_, longest), (next_shortest, _) in itertools.pairwise(bounds):
    assert longest < next_shortest


def test_few_rows_have_no_scores_by_length():
  rows = [{"input": "word"}] * 15
  assert suite_charts.scores_by_length(rows, lambda part: {}) == {}


LABELS_METRIC = {"name": "labels", "classes": ["yes", "no"], "scores": ["accuracy"]}


def tag_row(length: int) -> dict:
  """Return a prediction of tags for `length` words."""
  target = " ".join(["O", "B-X"] * length)
  return {"input": "a " * length, "target": target, "tags": ["O"] * 2 * length}


def text_row(length: int) -> dict:
  """Return a prediction of a text, which sometimes names no class."""
  prediction = "yes" if length % 3 else "no idea"
  return {"input": "a " * length, "target": "yes", "prediction": prediction}


def number_row(length: int) -> dict:
  """Return a prediction of a number."""
  return {"input": "a " * length, "target": length, "prediction": length % 5}


@pytest.mark.parametrize(
  "make_row, evaluator, task, score, has_classes",
  [
    (tag_row, {"name": "tagging"}, {"tags": ["O", "B-X"]}, "accuracy", True),
    (text_row, {"name": "generation", "metrics": [LABELS_METRIC]}, {}, "accuracy", True),
    (number_row, {"name": "classification", "scores": ["accuracy"]}, {}, "pearson", False),
  ],
)
def test_tags_texts_and_numbers_have_charts(
  make_row, evaluator, task, score, has_classes, tmp_path
):
  """A task of numbers has no confusion matrix; its config names no labels."""
  rows = [make_row(length) for length in range(1, 41)]
  runs = []
  for seed in range(2):
    run = tmp_path / str(seed)
    workdirs.write_lines(run / "predictions", "dev.jsonl", rows)
    workdirs.write_json(run, IDENTITY_FILE, {"evals": {"dev": evaluator}, "task": task})
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, f"eval/dev/{score}": 50.0}) + "\n")
    result = {"workdir": str(run), "rate": None, "score": 50.0 + seed}
    runs.append(result | {"metrics": {f"dev/{score}": 50.0 + seed}})
  result = {"counted": [f"dev/{score}"], "runs": runs, "metrics": runs[0]["metrics"]}
  charts = suite_charts.draw_task_charts("mine", result)
  confusion_titles = ["targets and predictions"] if has_classes else []
  assert [chart["title"].removeprefix("mine: ") for chart in charts] == [
    f"dev/{score} by step",
    "score of every seed, by rate",
    *confusion_titles,
    f"dev/{score} by words of input",
  ]
  for chart in charts:
    assert chart["svg"].startswith("<svg")
  assert predictions.median_run(result) == runs[0]["workdir"]
