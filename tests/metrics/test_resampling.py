"""Bootstrap intervals and paired tests agree with theory and are determined by a seed."""

import numpy as np
import pytest

from t5x_like.metrics.classification import Accuracy, Classification, Correlation
from t5x_like.metrics.resampling import bootstrap, difference_interval, paired_test
from t5x_like.metrics.squad import SquadV1
from t5x_like.metrics.summarization import Rouge
from t5x_like.metrics.tagging import EntityF1
from t5x_like.metrics.translation import Bleu, Chrf


def test_interval_of_an_accuracy_equals_the_binomial_interval():
  rows_NC = np.repeat([[True], [False]], [360, 40], axis=0)
  record = bootstrap(Accuracy(), rows_NC, samples=2000, seed=0)
  interval = record["intervals"]["accuracy"]
  error = 100 * (0.9 * 0.1 / 400) ** 0.5
  assert interval["standard_error"] == pytest.approx(error, rel=0.06)
  assert interval["low"] == pytest.approx(90 - 1.96 * error, abs=0.4)
  assert interval["high"] == pytest.approx(90 + 1.96 * error, abs=0.4)
  assert record == bootstrap(Accuracy(), rows_NC, samples=2000, seed=0)
  assert record != bootstrap(Accuracy(), rows_NC, samples=2000, seed=1)


def test_p_value_equals_the_sign_test():
  """Of 12 examples that differ, the second system wins 10; the two-sided p value is 0.0386."""
  first = np.array([[True]] * 2 + [[False]] * 10 + [[True]] * 50)
  second = np.array([[False]] * 2 + [[True]] * 10 + [[True]] * 50)
  record = paired_test(Accuracy(), first, second, samples=4000, seed=0)
  difference = record["differences"]["accuracy"]
  assert difference["difference"] == pytest.approx(100 * 8 / 62)
  assert difference["p_value"] == pytest.approx(0.0386, abs=0.01)
  assert difference["low"] > 0


def test_difference_of_a_system_to_itself_is_zero():
  rows_NC = np.array([[True], [False], [True]])
  record = paired_test(Accuracy(), rows_NC, rows_NC, samples=50, seed=0)
  assert record["differences"]["accuracy"] == {
    "difference": 0.0,
    "p_value": 1.0,
    "low": 0.0,
    "high": 0.0,
  }


def test_models_that_score_alike_on_few_questions_may_still_differ():
  no_difference_S = np.zeros(1000)
  assert difference_interval(no_difference_S, 25)["high"] == pytest.approx(13.3, abs=0.05)
  assert difference_interval(no_difference_S, 25)["low"] == pytest.approx(-13.3, abs=0.05)
  assert difference_interval(no_difference_S, 1000)["high"] == pytest.approx(0.383, abs=0.005)


def test_the_interval_of_a_difference_has_the_percentiles_of_its_samples():
  differences_S = np.arange(-10.0, 91.0)
  assert difference_interval(differences_S, 25) == {"low": -7.5, "high": 87.5}


TEXTS = [["the dog bit the man"]] * 10
TRANSLATIONS = ["the dog bit a man", "the dog bit the man"] * 5
METRICS = [
  (Classification(2, ("f1", "matthews_correlation")), [0, 1] * 5, [0, 1, 1, 1] * 2 + [0, 0]),
  (Correlation(), list(range(10)), [0.0, 2, 1, 3, 5, 4, 7, 6, 9, 8]),
  (SquadV1(), [["x b"], ["c"]] * 5, ["b", "c"] * 5),
  (EntityF1(), [["B-A", "O"]] * 10, [["B-A", "B-B"], ["O", "O"]] * 5),
  (Bleu(), TEXTS, TRANSLATIONS),
  (Chrf(), TEXTS, TRANSLATIONS),
  (Rouge(), TEXTS, TRANSLATIONS),
]


@pytest.mark.parametrize(
  "metric, gold, predictions", METRICS, ids=lambda value: type(value).__name__
)
def test_every_metric_can_be_resampled(metric, gold, predictions):
  rows_NC = metric.rows(gold, predictions)
  scores = metric.scores(rows_NC)
  intervals = bootstrap(metric, rows_NC, samples=50, seed=0)["intervals"]
  for name, score in scores.items():
    assert intervals[name]["low"] - 1e-9 <= score <= intervals[name]["high"] + 1e-9
  has_several_references = isinstance(gold[0], list) and not isinstance(predictions[0], list)
  perfect = [references[0] for references in gold] if has_several_references else gold
  perfect_NC = metric.rows(gold, perfect)
  differences = paired_test(metric, rows_NC, perfect_NC, samples=50, seed=0)["differences"]
  for name in scores:
    assert differences[name]["difference"] > 0


def test_samples_whose_score_is_undefined_are_counted():
  """Half of the samples of two rows have the same row twice, and thus no correlation."""
  rows_NC = np.array([[0.0, 1.0], [1.0, 0.0]])
  record = bootstrap(Correlation(), rows_NC, samples=200, seed=0)
  assert 50 < record["undefined"]["pearson"] < 150
  assert record["intervals"]["pearson"]["high"] == pytest.approx(-100)
