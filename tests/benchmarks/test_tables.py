"""The average of a suite's table is the leaderboard's, and exists only if every score does."""

import types

import pytest

from t5x_like import slots
from t5x_like.benchmarks import suites, tables

GLUE = {  # BERT-large's row of the leaderboard: 80.5
  "cola": {"dev/matthews_correlation": 60.5},
  "sst2": {"dev/accuracy": 94.9},
  "mrpc": {"dev/f1": 89.3, "dev/accuracy": 85.4},
  "stsb": {"dev/pearson": 87.6, "dev/spearman": 86.5},
  "qqp": {"dev/f1": 72.1, "dev/accuracy": 89.3},
  "mnli": {"matched/accuracy": 86.7, "mismatched/accuracy": 85.9},
  "qnli": {"dev/accuracy": 92.7},
  "rte": {"dev/accuracy": 70.1},
  "wnli": {"dev/accuracy": 65.1},
}
SUPERGLUE = {  # T5-11B's row: 89.3
  "boolq": {"dev/accuracy": 91.2},
  "cb": {"dev/macro_f1": 93.9, "dev/accuracy": 96.8},
  "copa": {"dev/accuracy": 94.8},
  "multirc": {"dev/f1a": 88.1, "dev/exact_match": 63.3},
  "record": {"dev/f1": 94.1, "dev/exact_match": 93.4},
  "rte": {"dev/accuracy": 92.5},
  "wic": {"dev/accuracy": 76.9},
  "wsc": {"dev/accuracy": 93.8},
}


def average(suite: str, row: dict, missing=(), tasks=None) -> float | None:
  """Return the average of a suite from the metrics of each task."""
  results = {}
  for task, metrics in row.items():
    counted = slots.find("suite", suite, suites, "SUITE").tasks[task].encoder.counted
    results[task] = {
      "score": suites.mean_score(metrics, counted),
      "metrics": metrics,
      "counted": counted,
      "runs": ["a run"],
    }
  options = types.SimpleNamespace(workdirs=["w"], from_scratch=False, seeds=1, tasks=tasks)
  return tables.build_results(suite, options, results, dict.fromkeys(missing, "no data"))["average"]


@pytest.mark.parametrize(
  ("suite", "row", "published"), [("glue", GLUE, 80.5), ("superglue", SUPERGLUE, 89.3)]
)
def test_the_average_is_the_leaderboards(suite, row, published):
  # The published scores are rounded to 0.1.
  assert average(suite, row) == pytest.approx(published, abs=0.051)


def test_there_is_no_average_without_every_score():
  assert average("glue", GLUE, missing=["rte"]) is None
  assert average("glue", GLUE, tasks=["rte"]) is None
  assert average("glue", GLUE | {"stsb": {"dev/pearson": None, "dev/spearman": 1.0}}) is None
  assert average("tags", {}) is None
