"""SQuAD 1.1 and 2.0, MLQA, T5's normalisation and final numbers, on examples worked by hand."""

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
from t5x_like.metrics.squad import MultilingualSquad, SquadV1, SquadV2
from t5x_like.metrics.texts import METRICS


@pytest.mark.parametrize(
  "text, squad, trivia_qa",
  [
    ("The  Dog's a-b", "dogs ab", "dog s b"),  # TriviaQA's a is a word of its own
    ("an apple, A pear; the theme", "apple pear theme", "apple pear theme"),
    ("U.S. Army", "us army", "u s army"),
    ("under_score", "underscore", "under score"),
    ("‘quoted’ `this´", "‘quoted’ this´", "quoted this"),
    # dashes of Unicode are no ASCII punctuation, its spaces are spaces
    ("Été\u00a0—\u2003ÄÖ", "été — äö", "été — äö"),
    ("the", "", ""),
    ("...", "", ""),
    ("$1,000.50", "100050", "1 000 50"),
  ],
)
def test_t5_and_official_normalisation(text, squad, trivia_qa):
  assert normalize_squad(text) == squad
  assert normalize_trivia_qa(text) == trivia_qa


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
    ("ru", "«Москва» — a город", "москва a город"),  # not in MLQA: no articles
  ],
)
def test_mlqa_normalisation(language, text, expected):
  assert normalize_mlqa(text, language) == expected


def test_f1_is_of_multisets():
  assert token_f1("a a b", "a b b") == pytest.approx(2 / 3)
  assert token_f1("x", "y") == 0 and token_f1("", "") == 0


def test_squad_takes_the_best_answer_for_each_score():
  golds = [["Denver Broncos", "the Broncos", "Carolina"], ["1 2 3 4", "5"]]
  assert SquadV1()(golds, ["broncos!", "1 2 5"]) == {
    "exact_match": 50.0,
    "f1": pytest.approx(100 * (1 + 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4)) / 2),
  }


def test_unanswered_and_empty_score_nothing():
  assert SquadV1()([["x"], ["x"]], [None, ""]) == {"exact_match": 0.0, "f1": 0.0}
  # as in evaluate-v1.1.py, nothing equals an answer that normalises to nothing, but shares no word
  # with it
  assert SquadV1()([["The"]], [""]) == {"exact_match": 100.0, "f1": 0.0}
  assert SquadV1()([["The"]], [None]) == {"exact_match": 0.0, "f1": 0.0}


def test_languages_in_one_set():
  metric = MultilingualSquad(normalize_mlqa)
  assert metric([("de", ["der Hund"]), ("en", ["der Hund"])], ["Hund", "Hund"]) == {
    "exact_match": 50.0,
    "f1": pytest.approx(100 * (1 + 2 / 3) / 2),
  }


GOLDS = [["Paris", "the city of Paris"], ["Rome"], [], [], ["a"]]


def test_squad_2():
  given = [("paris", 0.1), ("", 0.9), ("", 0.8), ("Berlin", 0.3), ("", 0.2)]
  found = SquadV2()(GOLDS, given)
  # ["a"] normalises to nothing, so that an empty prediction is right
  assert found["exact"] == found["f1"] == pytest.approx(100 * 3 / 5)
  assert found["HasAns_exact"] == pytest.approx(100 * 2 / 3) and found["NoAns_f1"] == 50.0


def test_squad_2_threshold():
  given = [("paris", 0.1), ("rome", 0.9), ("", 0.8), ("Berlin", 0.4), ("x", 0.2)]
  found = SquadV2(threshold=0.3)(GOLDS, given)
  assert found["HasAns_exact"] == pytest.approx(100 / 3)  # Rome falls
  assert found["NoAns_exact"] == 100.0  # Berlin too
  metric = SquadV2()
  details = metric.details(metric.rows(GOLDS, given), GOLDS, given)
  # from 2 (nothing answered): +1 paris, 0 x, -1 Berlin, 0 (empty), +1 rome: the first best is 3, at
  # 0.1
  assert details["best_exact"] == pytest.approx(60.0) and details["best_exact_thresh"] == 0.1
  assert (details["total"], details["HasAns_total"], details["NoAns_total"]) == (5, 3, 2)


def test_squad_2_leaves_out_what_has_no_prediction():
  found = SquadV2()(GOLDS, [("paris", 0.0), None, None, None, None])
  assert found["exact"] == 100.0 and math.isnan(found["NoAns_exact"])


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
    # Leading points, signs, groups and digits as people, other countries and LaTeX write them.
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
    ("10²", "10"),
    ("\\$18", "18"),
  ],
)
def test_final_number(text, number):
  assert final_number(text) == number


def test_a_text_that_is_a_number():
  numbers = ("18", "$18.0", "1 000", "50 %", "−5", "2/5", "18.")
  assert all(map(is_number, numbers)) and not any(
    map(is_number, ("18 apples", "", "x", "1 2", "####"))
  )


def test_long_texts_of_digits_take_no_time():
  for part in ("1", "1,", "1 ", ",12", "1 111", "-", " / ", "= - ", "####"):
    final_number(part * 20_000)


@pytest.mark.parametrize(
  ("text", "referent", "named"),
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
def test_a_referent_is_named_as_t5_judges(text, referent, named):
  """An empty text is wrong whether the referent is right or not."""
  made = METRICS["referent"]()

  def score(label):
    return made.metric([made.reference([referent, label])], [made.prediction(text)])["accuracy"]

  assert (score("True"), score("False")) == {True: (100, 0), False: (0, 100), None: (0, 0)}[named]
  assert made.reference([referent, "-1"]) is None


def test_similarity_that_is_no_number_counts_as_minus_one():
  read = METRICS["number"]().prediction
  assert [read(text) for text in ("10", "10.", "asdf", "", "nan", "inf")] == [
    10.0,
    10.0,
    -1.0,
    -1.0,
    -1.0,
    -1.0,
  ]
