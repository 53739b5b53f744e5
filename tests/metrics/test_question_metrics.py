"""Intervals of questions cover the true score as often as they say, also those of differences."""

import numpy as np
import pytest

from t5x_like.metrics import questions, resampling
from t5x_like.metrics.metric import AdditiveMetric

TABLES = 1_000
QUESTIONS = 300


class ManyTables(AdditiveMetric):
  """The accuracy of each of many tables, whose questions are in the columns."""

  def __init__(self, number: int):
    self.names = tuple(f"table {index}" for index in range(number))

  def rows(self, references, predictions):
    raise NotImplementedError

  def scores_of_sums(self, sums_XC):
    return {name: sums_XC[..., index] for index, name in enumerate(self.names)}


def coverage(intervals, true_score: float) -> float:
  """Return the share of intervals, in percent, that hold the true score."""
  hits = [interval["low"] <= true_score <= interval["high"] for interval in intervals.values()]
  return 100.0 * np.mean(hits)


@pytest.mark.parametrize("accuracy", [0.3, 0.5, 0.85])
def test_intervals_of_1000_tables_have_the_stated_coverage(accuracy):
  rng = np.random.default_rng(1)
  right_NT = rng.random((QUESTIONS, TABLES)) < accuracy
  record = resampling.bootstrap(
    ManyTables(TABLES), right_NT / QUESTIONS, resampling.SAMPLES, seed=0
  )
  assert len(record["intervals"]) == TABLES
  assert 93.0 <= coverage(record["intervals"], accuracy) <= 97.0


def test_intervals_of_1000_paired_differences_have_the_stated_coverage():
  """Both models answer most questions alike, so that unpaired intervals would be far too wide."""
  rng = np.random.default_rng(2)
  easy_NT = rng.random((QUESTIONS, TABLES))
  noise_2NT = rng.random((2, QUESTIONS, TABLES))
  first_NT = np.where(noise_2NT[0] < 0.8, easy_NT < 0.5, noise_2NT[0] < 0.9)
  second_NT = np.where(noise_2NT[1] < 0.8, easy_NT < 0.5, noise_2NT[1] < 0.95)
  true_difference = 0.05
  metric = ManyTables(TABLES)
  draws = [
    resampling.draw_scores(metric, right_NT / QUESTIONS, resampling.SAMPLES, seed=3)
    for right_NT in (first_NT, second_NT)
  ]
  intervals = {}
  for name in metric.names:
    intervals[name] = resampling.percentile_interval(draws[1][name] - draws[0][name])
  assert 93.0 <= coverage(intervals, true_difference) <= 97.0


def test_additive_scores_of_samples_equal_the_scores_of_drawn_rows():
  metric = questions.Words()
  rng = np.random.default_rng(0)
  rows_NC = metric.rows((), [(rng.random() < 0.5, 3 * rng.random(), 0) for _ in range(40)])
  draws = resampling.draw_scores(metric, rows_NC, samples=5, seed=7)
  rng = np.random.default_rng(7)
  for sample in range(5):
    scores = metric.scores(rows_NC[rng.integers(40, size=40)])
    for name, score in scores.items():
      assert draws[name][sample] == pytest.approx(score, rel=1e-12)


def test_a_perfect_score_has_an_interval_below_it():
  metric = questions.Choices()
  intervals = resampling.score_intervals(metric, metric.rows((), [(1, 0, 0)] * 20))
  assert intervals["accuracy"]["low"] == pytest.approx(83.9, abs=0.1)  # Wilson 1927
  assert intervals["accuracy"]["high"] == 100.0
  assert intervals["accuracy_norm"]["high"] == pytest.approx(16.1, abs=0.1)


def test_counts_are_no_scores_and_have_no_intervals():
  metric = questions.Answers()
  rows_NC = metric.rows((), [(1, 0, 0, 1), (0, 1, 1, 0), (1, 0, 0, 1)])
  assert metric.counts(rows_NC) == {"examples": 3, "truncated": 1, "empty": 1, "unfinished": 2}
  assert resampling.score_intervals(metric, rows_NC).keys() == {"exact_match"}


def test_texts_are_weighted_by_their_length():
  metric = questions.Texts()
  rows_NC = metric.rows((), [(8 * np.log(2), 4, 2, 8), (0.0, 12, 6, 24)])
  assert metric.scores(rows_NC)["bits_per_byte"] == pytest.approx(0.25)
