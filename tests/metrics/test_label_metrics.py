"""Scores of labels and tags equal the values that scikit-learn, scipy and seqeval document, and
their own answers."""

import math

import numpy as np
import pytest
import scipy.stats
import seqeval.metrics
import sklearn.metrics

from t5x_like.errors import UserError
from t5x_like.metrics.classification import SCORES, Accuracy, Classification, Correlation, MultiRc
from t5x_like.metrics.tagging import EntityF1, TagAccuracy


def test_documented_values():
  # of +1 and -1 there
  matthews = Classification(2, ("matthews_correlation",))([1, 1, 1, 0], [1, 0, 1, 1])
  assert matthews["matthews_correlation"] == pytest.approx(-100 / 3)
  assert Classification(4)([0, 1, 2, 3], [0, 2, 1, 3]) == {"accuracy": 50.0}
  macro = Classification(3, ("macro_f1",))([0, 1, 2, 0, 1, 2], [0, 2, 1, 0, 0, 1])
  assert macro["macro_f1"] == pytest.approx(26.6666, abs=1e-3)
  assert Correlation()([1, 2, 3, 4, 5], [5, 6, 7, 8, 7])["spearman"] == pytest.approx(
    82.07826816681233
  )
  assert Correlation()(list(range(1, 8)), [10, 9, 2.5, 6, 4, 3, 2])["pearson"] == pytest.approx(
    -82.85038835884279
  )
  gold = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
  given = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
  assert EntityF1()(gold, given) == {"precision": 50.0, "recall": 50.0, "f1": 50.0}
  types = EntityF1().details(EntityF1().rows(gold, given), gold, given)["types"]
  assert types["PER"] == {"precision": 100.0, "recall": 100.0, "f1": 100.0, "entities": 1}
  assert types["MISC"]["f1"] == 0.0


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_of_counted_pairs_equal_those_of_all_examples(classes):
  rng = np.random.default_rng(classes)
  gold = rng.integers(classes, size=300).tolist()
  given = [g if rng.random() < 0.6 else int(rng.integers(classes)) for g in gold]
  found = Classification(classes, tuple(SCORES))(gold, given)
  assert found["accuracy"] == pytest.approx(100 * sklearn.metrics.accuracy_score(gold, given))
  assert found["matthews_correlation"] == pytest.approx(
    100 * sklearn.metrics.matthews_corrcoef(gold, given)
  )
  assert found["macro_f1"] == pytest.approx(
    100 * sklearn.metrics.f1_score(gold, given, average="macro")
  )
  if classes == 2:
    assert found["f1"] == pytest.approx(100 * sklearn.metrics.f1_score(gold, given))


def test_macro_f1_counts_a_class_that_does_not_occur():
  assert Classification(3, ("macro_f1",))([0, 1], [0, 1])["macro_f1"] == pytest.approx(200 / 3)


def test_no_label_is_wrong():
  both = Classification(2, ("accuracy", "f1"))
  # T5's f1_score_with_invalid
  assert both([1, 0, 1], [1, None, None]) == both([1, 0, 1], [1, 1, 0])
  three = Classification(3, ("accuracy", "macro_f1"))([0, 1, 2, 2], [0, 1, 2, None])
  assert three == {"accuracy": 75.0, "macro_f1": pytest.approx(100 * (1 + 1 + 2 / 3) / 3)}
  # T5 passes -1 for no label to scikit-learn
  gold = [1, 1, 0, 0, 1]
  given = [1, None, 0, None, 0]
  matthews = sklearn.metrics.matthews_corrcoef(gold, [1, -1, 0, -1, 0])
  assert Classification(2, ("matthews_correlation",))(gold, given)[
    "matthews_correlation"
  ] == pytest.approx(100 * matthews)


def test_correlation_of_what_does_not_vary_is_not_defined():
  for gold, given in (([1, 2, 3], [2, 2, 2]), ([2, 2, 2], [1, 2, 3]), ([1], [1])):
    assert all(math.isnan(score) for score in Correlation()(gold, given).values())


def test_correlations_equal_scipy_with_ties():
  rng = np.random.default_rng(0)
  gold, given = rng.integers(6, size=(2, 100)).astype(float)
  found = Correlation()(gold.tolist(), given.tolist())
  assert found["pearson"] == pytest.approx(100 * scipy.stats.pearsonr(gold, given)[0])
  assert found["spearman"] == pytest.approx(100 * scipy.stats.spearmanr(gold, given)[0])


def test_entities_equal_seqeval_on_random_tags():
  rng = np.random.default_rng(1)
  tags = ["O", "B-A", "I-A", "B-B", "I-B", "O"]
  lengths = rng.integers(1, 12, size=200)
  gold = [[tags[i] for i in rng.integers(6, size=n)] for n in lengths]
  given = [
    [tag if rng.random() < 0.7 else tags[rng.integers(6)] for tag in sentence] for sentence in gold
  ]
  found = EntityF1()(gold, given)
  for name, score in (
    ("f1", "f1_score"),
    ("precision", "precision_score"),
    ("recall", "recall_score"),
  ):
    assert found[name] == pytest.approx(100 * getattr(seqeval.metrics, score)(gold, given))
  assert TagAccuracy()(gold, given)["accuracy"] == pytest.approx(
    100 * seqeval.metrics.accuracy_score(gold, given)
  )


def test_no_entities_anywhere_scores_zero():
  assert EntityF1()([["O"]], [["O"]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
  # a word beyond the row, of tags without O
  assert EntityF1()([["B-X", "I-X"]], [["B-X", ""]])["f1"] == 0.0


def test_multirc_equals_sklearn_over_all_answers():
  gold = [[1, 0, 1], [0, 0], [1, 1, 0, 0]]
  given = [[1, 0, 1], [0, 1], [1, 0, 0, 0]]
  found = MultiRc()(gold, given)
  flat = sklearn.metrics.f1_score(sum(gold, []), sum(given, []))
  assert found == {"f1a": pytest.approx(100 * flat), "exact_match": pytest.approx(100 / 3)}
  assert MultiRc()([[0]], [[0]]) == {"f1a": 0.0, "exact_match": 100.0}


def test_lengths_and_zero_examples_are_refused():
  with pytest.raises(UserError, match="2 predictions for 1 references"):
    Accuracy()(["a"], ["a", "b"])
  with pytest.raises(UserError, match="zero examples"):
    Accuracy()([], [])
