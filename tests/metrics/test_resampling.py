"""Intervals and paired tests: seeded, of the right size against theory, and alike for every
metric."""

import numpy as np
import pytest

from t5x_like.metrics.classification import Accuracy, Classification, Correlation
from t5x_like.metrics.resampling import bootstrap, paired_test
from t5x_like.metrics.squad import SquadV1
from t5x_like.metrics.summarization import Rouge
from t5x_like.metrics.tagging import EntityF1
from t5x_like.metrics.translation import Bleu, Chrf


def test_interval_of_a_share_is_the_binomials():
  rows_NC = np.repeat([[True], [False]], [360, 40], axis=0)
  found = bootstrap(Accuracy(), rows_NC, samples=2000, seed=0)
  interval = found["intervals"]["accuracy"]
  error = 100 * (0.9 * 0.1 / 400) ** 0.5
  assert interval["standard_error"] == pytest.approx(error, rel=0.06)
  assert interval["low"] == pytest.approx(90 - 1.96 * error, abs=0.4)
  assert interval["high"] == pytest.approx(90 + 1.96 * error, abs=0.4)
  assert found == bootstrap(Accuracy(), rows_NC, samples=2000, seed=0)
  assert found != bootstrap(Accuracy(), rows_NC, samples=2000, seed=1)


def test_p_value_is_the_sign_tests():
  """Systems that differ on 12 examples, 10 for one and 2 for the other: the two-sided sign test's p
  is 0.0386."""
  first = np.array([[True]] * 2 + [[False]] * 10 + [[True]] * 50)
  second = np.array([[False]] * 2 + [[True]] * 10 + [[True]] * 50)
  found = paired_test(Accuracy(), first, second, samples=4000, seed=0)["differences"]["accuracy"]
  assert found["difference"] == pytest.approx(100 * 8 / 62)
  assert found["p_value"] == pytest.approx(0.0386, abs=0.01)
  assert found["low"] > 0


def test_a_system_does_not_differ_from_itself():
  rows_NC = np.array([[True], [False], [True]])
  found = paired_test(Accuracy(), rows_NC, rows_NC, samples=50, seed=0)["differences"]["accuracy"]
  assert found == {"difference": 0.0, "p_value": 1.0, "low": 0.0, "high": 0.0}


METRICS = [
  (Classification(2, ("f1", "matthews_correlation")), [0, 1] * 5, [0, 1, 1, 1] * 2 + [0, 0]),
  (Correlation(), list(range(10)), [0.0, 2, 1, 3, 5, 4, 7, 6, 9, 8]),
  (SquadV1(), [["x b"], ["c"]] * 5, ["b", "c"] * 5),
  (EntityF1(), [["B-A", "O"]] * 10, [["B-A", "B-B"], ["O", "O"]] * 5),
  (Bleu(), [["the dog bit the man"]] * 10, ["the dog bit a man", "the dog bit the man"] * 5),
  (Chrf(), [["the dog bit the man"]] * 10, ["the dog bit a man", "the dog bit the man"] * 5),
  (Rouge(), [["the dog bit the man"]] * 10, ["the dog bit a man", "the dog bit the man"] * 5),
]


@pytest.mark.parametrize("metric, gold, given", METRICS, ids=lambda value: type(value).__name__)
def test_every_metric_can_be_resampled(metric, gold, given):
  rows_NC = metric.rows(gold, given)
  scores = metric.scores(rows_NC)
  intervals = bootstrap(metric, rows_NC, samples=50, seed=0)["intervals"]
  for name, score in scores.items():
    assert intervals[name]["low"] <= score + 1e-9 and score - 1e-9 <= intervals[name]["high"]
  better_NC = metric.rows(
    gold, [g[0] if isinstance(g, list) and not isinstance(given[0], list) else g for g in gold]
  )
  found = paired_test(metric, rows_NC, better_NC, samples=50, seed=0)["differences"]
  assert all(found[name]["difference"] > 0 for name in scores)


def test_samples_without_the_score_are_counted():
  found = bootstrap(Correlation(), np.array([[0.0, 1.0], [1.0, 0.0]]), samples=200, seed=0)
  assert 50 < found["undefined"]["pearson"] < 150 and found["intervals"]["pearson"][
    "high"
  ] == pytest.approx(-100)
