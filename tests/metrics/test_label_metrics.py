"""Scores of labels and tags equal scikit-learn, scipy and seqeval."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import seqeval.metrics
import sklearn.metrics

from t5x_like.errors import UserError
from t5x_like.metrics.classification import SCORES, Accuracy, Classification, Correlation, MultiRc
from t5x_like.metrics.tagging import EntityF1, TagAccuracy


@pytest.mark.parametrize("classes", [2, 3])
def test_classification_equals_scikit_learn_on_random_labels(classes):
  rng = np.random.default_rng(classes)
  gold = rng.integers(classes, size=300).tolist()
  predictions = []
  for label in gold:
    is_right = rng.random() < 0.6
    predictions.append(label if is_right else int(rng.integers(classes)))
  expected = {
    "accuracy": sklearn.metrics.accuracy_score(gold, predictions),
    "matthews_correlation": sklearn.metrics.matthews_corrcoef(gold, predictions),
    "macro_f1": sklearn.metrics.f1_score(gold, predictions, average="macro"),
  }
  if classes == 2:
    expected["f1"] = sklearn.metrics.f1_score(gold, predictions)
  scores = Classification(classes, tuple(SCORES))(gold, predictions)
  for name, share in expected.items():
    assert scores[name] == pytest.approx(100 * share)


def test_macro_f1_includes_classes_that_do_not_occur():
  assert Classification(3, ("macro_f1",))([0, 1], [0, 1])["macro_f1"] == pytest.approx(200 / 3)


def test_prediction_without_a_label_is_wrong():
  binary = Classification(2, ("accuracy", "f1"))
  # In T5's f1_score_with_invalid, None counts as the wrong label.
  assert binary([1, 0, 1], [1, None, None]) == binary([1, 0, 1], [1, 1, 0])
  scores = Classification(3, ("accuracy", "macro_f1"))([0, 1, 2, 2], [0, 1, 2, None])
  assert scores == {"accuracy": 75.0, "macro_f1": pytest.approx(100 * (1 + 1 + 2 / 3) / 3)}


def test_matthews_correlation_treats_a_missing_label_as_a_third_class():
  """T5 passes -1 for no label to scikit-learn."""
  gold = [1, 1, 0, 0, 1]
  expected = sklearn.metrics.matthews_corrcoef(gold, [1, -1, 0, -1, 0])
  metric = Classification(2, ("matthews_correlation",))
  scores = metric(gold, [1, None, 0, None, 0])
  assert scores["matthews_correlation"] == pytest.approx(100 * expected)


@pytest.mark.parametrize(
  "gold, predictions", [([1, 2, 3], [2, 2, 2]), ([2, 2, 2], [1, 2, 3]), ([1], [1])]
)
def test_correlation_of_a_constant_is_nan(gold, predictions):
  for score in Correlation()(gold, predictions).values():
    assert math.isnan(score)


def test_correlations_equal_scipy_with_ties():
  rng = np.random.default_rng(0)
  gold = rng.integers(6, size=100).astype(float)
  predictions = rng.integers(6, size=100).astype(float)
  scores = Correlation()(gold.tolist(), predictions.tolist())
  assert scores["pearson"] == pytest.approx(100 * scipy.stats.pearsonr(gold, predictions)[0])
  assert scores["spearman"] == pytest.approx(100 * scipy.stats.spearmanr(gold, predictions)[0])


def test_entities_equal_seqeval_on_random_tags():
  rng = np.random.default_rng(1)
  tags = ["O", "B-A", "I-A", "B-B", "I-B", "O"]
  gold = []
  predictions = []
  for length in rng.integers(1, 12, size=200):
    sentence = [tags[i] for i in rng.integers(6, size=length)]
    gold.append(sentence)
    predictions.append([tag if rng.random() < 0.7 else tags[rng.integers(6)] for tag in sentence])
  scores = EntityF1()(gold, predictions)
  assert scores["f1"] == pytest.approx(100 * seqeval.metrics.f1_score(gold, predictions))
  precision = seqeval.metrics.precision_score(gold, predictions)
  assert scores["precision"] == pytest.approx(100 * precision)
  assert scores["recall"] == pytest.approx(100 * seqeval.metrics.recall_score(gold, predictions))
  accuracy = seqeval.metrics.accuracy_score(gold, predictions)
  assert TagAccuracy()(gold, predictions)["accuracy"] == pytest.approx(100 * accuracy)


def test_sentences_without_a_right_entity_score_zero():
  assert EntityF1()([["O"]], [["O"]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
  # A word that truncation removed from the row has an empty tag.
  assert EntityF1()([["B-X", "I-X"]], [["B-X", ""]])["f1"] == 0.0


def test_multirc_equals_sklearn_over_all_answers():
  gold = [[1, 0, 1], [0, 0], [1, 1, 0, 0]]
  predictions = [[1, 0, 1], [0, 1], [1, 0, 0, 0]]
  scores = MultiRc()(gold, predictions)
  all_gold = list(itertools.chain.from_iterable(gold))
  all_predictions = list(itertools.chain.from_iterable(predictions))
  f1 = sklearn.metrics.f1_score(all_gold, all_predictions)
  assert scores == {"f1a": pytest.approx(100 * f1), "exact_match": pytest.approx(100 / 3)}
  assert MultiRc()([[0]], [[0]]) == {"f1a": 0.0, "exact_match": 100.0}


def test_unequal_lengths_and_zero_examples_are_refused():
  with pytest.raises(UserError, match="2 predictions for 1 references"):
    Accuracy()(["a"], ["a", "b"])
  with pytest.raises(UserError, match="zero examples"):
    Accuracy()([], [])
