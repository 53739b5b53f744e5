"""Metrics of answers (SQuAD, MLQA, TriviaQA, final numbers) equal values computed by hand."""

import math

import pytest

from t5x_like.metrics.answers import (
  final_number,
  is_number,
  normalize_mlqa,
  normalize_squad,
  normalize_trivia_qa,
  token_f1,
)
from t5x_like.metrics.squad import SquadV1, SquadV2
from t5x_like.metrics.texts import METRICS


@pytest.mark.parametrize(
  "text, squad_text, trivia_qa_text",
  [
    # TriviaQA splits words at punctuation, so the `a` becomes an article.
    ("The  Dog's a-b", "dogs ab", "dog s b"),
    ("an apple, A pear; the theme", "apple pear theme", "apple pear theme"),
    ("U.S. Army", "us army", "u s army"),
    ("under_score", "underscore", "under score"),
    ("‘quoted’ `this´", "‘quoted’ this´", "quoted this"),
    # Only ASCII punctuation is removed (not the dash), and white space is Unicode's.
    ("Été\u00a0—\u2003ÄÖ", "été — äö", "été — äö"),
    ("the", "", ""),
    ("...", "", ""),
    ("$1,000.50", "100050", "1 000 50"),
  ],
)
def test_answers_are_normalised_as_squad_and_trivia_qa_do(text, squad_text, trivia_qa_text):
  assert normalize_squad(text) == squad_text
  assert normalize_trivia_qa(text) == trivia_qa_text


@pytest.mark.parametrize(
  "language, text, expected",
  [
    ("en", "The “big” dog", "big dog"),
    ("de", "Der Hund, die Katze und eine Maus", "hund katze und maus"),
    ("es", "los años y la noche", "años y noche"),
    ("vi", "những con mèo của tôi", "con mèo tôi"),
    ("ar", "الكتاب", "كتاب"),
    ("hi", "एक किताब।", "एक किताब"),
    ("zh", "北京 2008年，NBA 球队", "北 京 2008 年 nba 球 队"),
    ("ru", "«Москва» — a город", "москва a город"),  # languages outside MLQA have no articles
  ],
)
def test_mlqa_removes_the_articles_of_the_language(language, text, expected):
  assert normalize_mlqa(text, language) == expected


def test_f1_counts_repeated_common_tokens():
  assert token_f1("a a b", "a b b") == pytest.approx(2 / 3)
  assert token_f1("x", "y") == 0
  assert token_f1("", "") == 0


def test_squad_takes_the_best_answer_for_each_score():
  gold_answers = [["Denver Broncos", "the Broncos", "Carolina"], ["1 2 3 4", "5"]]
  precision = 2 / 3  # "1 2 5" against "1 2 3 4"
  recall = 2 / 4
  second_f1 = 2 * precision * recall / (precision + recall)
  scores = SquadV1()(gold_answers, ["broncos!", "1 2 5"])
  assert scores == {"exact_match": 50.0, "f1": pytest.approx(100 * (1 + second_f1) / 2)}


def test_missing_and_empty_predictions_score_zero():
  assert SquadV1()([["x"], ["x"]], [None, ""]) == {"exact_match": 0.0, "f1": 0.0}
  # As in evaluate-v1.1.py, an empty prediction equals an answer that normalises to nothing but
  # shares no word with it.
  assert SquadV1()([["The"]], [""]) == {"exact_match": 100.0, "f1": 0.0}
  assert SquadV1()([["The"]], [None]) == {"exact_match": 0.0, "f1": 0.0}


GOLD_ANSWERS = [["Paris", "the city of Paris"], ["Rome"], [], [], ["a"]]


def test_squad_2_scores_questions_with_and_without_answers():
  predictions = [("paris", 0.1), ("", 0.9), ("", 0.8), ("Berlin", 0.3), ("", 0.2)]
  scores = SquadV2()(GOLD_ANSWERS, predictions)
  # The answer "a" normalises to an empty text, so an empty prediction is right.
  assert scores["exact"] == scores["f1"] == pytest.approx(100 * 3 / 5)
  assert scores["HasAns_exact"] == pytest.approx(100 * 2 / 3)
  assert scores["NoAns_f1"] == 50.0


def test_squad_2_replaces_answers_above_the_threshold_by_none():
  predictions = [("paris", 0.1), ("rome", 0.9), ("", 0.8), ("Berlin", 0.4), ("x", 0.2)]
  scores = SquadV2(threshold=0.3)(GOLD_ANSWERS, predictions)
  assert scores["HasAns_exact"] == pytest.approx(100 / 3)  # "rome" (0.9) is dropped
  assert scores["NoAns_exact"] == 100.0  # "Berlin" (0.4) is dropped too
  metric = SquadV2()
  details = metric.details(metric.rows(GOLD_ANSWERS, predictions), GOLD_ANSWERS, predictions)
  # Right answers as the threshold rises: 2 (all empty), 3 (paris), 3 (x), 2 (Berlin), 2 (empty),
  # 3 (rome). The first maximum is 3 of 5, at paris's 0.1.
  assert details["best_exact"] == pytest.approx(60.0)
  assert details["best_exact_thresh"] == 0.1
  assert details["total"] == 5
  assert details["HasAns_total"] == 3
  assert details["NoAns_total"] == 2


def test_squad_2_ignores_questions_without_a_prediction():
  scores = SquadV2()(GOLD_ANSWERS, [("paris", 0.0), None, None, None, None])
  assert scores["exact"] == 100.0
  assert math.isnan(scores["NoAns_exact"])


@pytest.mark.parametrize(
  "text, number",
  [
    ("She has 3 + 4 = 7 eggs.\n#### 7", "7"),
    ("#### 1,050", "1050"),
    ("so it costs $1,050.00.", "1050"),
    ("it is 16-3", "3"),
    ("it fell to -3.50 degrees", "-3.5"),
    ("#### -0012", "-12"),
    ("-0", "0"),
    ("0.50", "0.5"),
    ("2 of 3, then 4", "4"),
    ("#### 5\nQuestion: 9", "5"),
    ("#### 5\nQuestion: 9\n#### 9", "5"),
    ("none", None),
    ("", None),
    # Other notations of people, countries and LaTeX.
    (".5", "0.5"),
    ("it costs $.25.", "0.25"),
    ("#### -.5 and 7", "-0.5"),
    ("see No.5", "5"),
    ("−5", "-5"),
    ("#### −5", "-5"),
    ("= - 3", "-3"),
    ("16 − 3", "3"),
    ("pages 10–15", "15"),
    ("-€5", "-5"),
    ("$-5", "-5"),
    ("1 000", "1000"),
    ("1\u00a0000", "1000"),
    ("1\u2009000\u2009000", "1000000"),
    ("1\u202f000,50", "1000.5"),
    ("in 2020 100 people", "100"),
    ("1'000", "1000"),
    ("1{,}000", "1000"),
    ("1,000.50", "1000.5"),
    ("1.000,50", "1000.5"),
    ("1,00,000", "100000"),
    ("0,5", "0.5"),
    ("1,2,3", "3"),
    ("50 %", "50"),
    ("2/5", "0.4"),
    ("\\frac{1}{3}", "1/3"),
    ("4/2", "2"),
    ("2½", "2.5"),
    ("3/5/2024", "2024"),
    ("1.5e3", "1500"),
    ("25e-1", "2.5"),
    ("１２３", "123"),
    ("٣٫٥", "3.5"),
    ("18²", "18"),
    ("10²", "100"),
    ("6.02 × 10^23", "602" + 21 * "0"),
    ("1.5 \\times 10^{-3}.", "0.0015"),
    ("2·10⁻³", "0.002"),
    ("10**6", "1000000"),
    ("5 m^2", "5"),
    ("5 cm²", "5"),
    ("4 × 10 = 40", "40"),
    ("2 ½", "2.5"),
    ("\\$18", "18"),
  ],
)
def test_final_number_is_the_last_or_the_one_after_four_hashes(text, number):
  assert final_number(text) == number


@pytest.mark.parametrize("text", ["18", "$18.0", "1 000", "50 %", "−5", "2/5", "18."])
def test_numbers_with_signs_and_units_are_numbers(text):
  assert is_number(text)


@pytest.mark.parametrize("text", ["18 apples", "", "x", "1 2", "####"])
def test_other_texts_are_not_numbers(text):
  assert not is_number(text)


def test_final_number_of_a_long_text_takes_linear_time():
  """A regular expression that backtracks would not return."""
  for part in ("1", "1,", "1 ", ",12", "1 111", "-", " / ", "= - ", "####"):
    final_number(part * 20_000)


@pytest.mark.parametrize(
  ("text", "referent", "is_named"),
  [
    ("potato", "turnip", False),
    ("turnip", "turnip", True),
    ("the cat", "cat", True),
    ("Bob's hat", "Bob", False),
    ("Bob's hat", "Bob's hat", True),
    ("potato", "Potato", True),
    ("a potato", "my potato", True),
    ("fuzzy bunny", "fuzzy hungry bunny", True),
    ("", "cat", None),
    ("a this", "cat", None),
  ],
)
def test_referents_are_compared_by_t5s_rule(text, referent, is_named):
  """If `is_named` is None, the text has no words and is wrong under either label."""
  referent_metric = METRICS["referent"]()

  def score(label):
    return referent_metric.metric(
      [referent_metric.reference([referent, label])], [referent_metric.prediction(text)]
    )["accuracy"]

  assert score("True") == (100 if is_named is True else 0)
  assert score("False") == (100 if is_named is False else 0)
  assert referent_metric.reference([referent, "-1"]) is None


@pytest.mark.parametrize("text", ["asdf", "", "nan", "inf"])
def test_invalid_similarity_counts_as_minus_one(text):
  read_prediction = METRICS["number"]().prediction
  assert read_prediction("10") == read_prediction("10.") == 10.0
  assert read_prediction(text) == -1.0
