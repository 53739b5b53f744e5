"""BLEU, chrF and ROUGE equal sacrebleu and rouge-score; tags in texts are scored by their words."""

import pytest
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF

from t5x_like.errors import UserError
from t5x_like.metrics.summarization import Rouge, split_sentences
from t5x_like.metrics.texts import METRICS
from t5x_like.metrics.translation import Bleu, Chrf

# From sacrebleu's README.
STREAMS = [
  ["The dog bit the man.", "It was not unexpected.", "The man bit him first."],
  ["The dog had bit the man.", "No one was surprised.", "The man had bitten the dog."],
]
SYSTEM = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]
REFERENCES = [list(sentences) for sentences in zip(*STREAMS)]


@pytest.mark.parametrize(
  "metric, reference, name, signature",
  [
    (Bleu(), BLEU(), "bleu", "|tok:13a"),
    (Bleu(tokenize="char"), BLEU(tokenize="char"), "bleu", "|tok:char"),
    (Bleu(lowercase=True), BLEU(lowercase=True), "bleu", "|case:lc"),
    (Chrf(word_order=2), CHRF(word_order=2), "chrf", "|nw:2"),
  ],
)
def test_scores_of_translations_equal_sacrebleu(metric, reference, name, signature):
  rows = metric.rows(REFERENCES, SYSTEM)
  expected = reference.corpus_score(SYSTEM, STREAMS)
  assert metric.scores(rows)[name] == pytest.approx(expected.score)
  details = metric.details(rows, REFERENCES, SYSTEM)
  assert details["signature"].startswith("nrefs:2|")
  assert signature in details["signature"]
  if name == "bleu":
    assert details["brevity_penalty"] == expected.bp
    assert details["reference_length"] == expected.ref_len


def test_sentences_may_have_different_numbers_of_references():
  uneven = [REFERENCES[0], REFERENCES[1][:1], REFERENCES[2]]
  padded = [REFERENCES[0], [REFERENCES[1][0]] * 2, REFERENCES[2]]
  for metric in (Bleu, Chrf):
    assert metric()(uneven, SYSTEM) == metric()(padded, SYSTEM)


def test_rouge_is_the_mean_over_examples_of_the_best_reference_for_each_type():
  references = [["a b c d", "a c"], ["x y . z"]]
  predictions = ["a b x c", "z . x y"]
  scorer = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"])
  scores = Rouge(use_stemmer=False)(references, predictions)
  for name in ("rouge1", "rouge2", "rougeL", "rougeLsum"):
    first = max(scorer.score(text, predictions[0])[name].fmeasure for text in references[0])
    second = scorer.score("x y .\nz", "z .\nx y")[name].fmeasure
    assert scores[name] == pytest.approx(50 * (first + second))
  assert scores["rougeLsum"] > scores["rougeL"]  # the order of sentences does not count


def test_rouge_of_one_reference_uses_the_reference_of_highest_rouge_1():
  # The first shares all four words with the prediction, the second a pair of adjacent words.
  references = ["c a b x", "x b d e f g"]
  prediction = "x b a c"
  expected = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"]).score(
    references[0], prediction
  )
  scores = Rouge(use_stemmer=False, one_reference=True)([references], [prediction])
  best_scores = Rouge(use_stemmer=False, one_reference=False)([references], [prediction])
  for name, score in scores.items():
    assert score == pytest.approx(100 * expected[name].fmeasure)
  assert scores.keys() == expected.keys()
  assert scores["rouge1"] == best_scores["rouge1"] == 100
  assert scores["rouge2"] < best_scores["rouge2"]


def test_sentences_are_split_at_full_stops():
  assert split_sentences("One . Two . ") == "One .\nTwo .\n"


@pytest.mark.parametrize(
  "name, expected",
  [("tags", {"accuracy": 60.0}), ("entities", {"precision": 50.0, "recall": 50.0, "f1": 50.0})],
)
def test_tags_in_a_text_are_matched_to_words_in_order(name, expected):
  """A word without a tag is wrong; an additional tag counts as a predicted entity."""
  tag_metric = METRICS[name]()
  gold = [tag_metric.reference([text]) for text in ("B-x I-x O", "O B-y")]
  predictions = [tag_metric.prediction(text) for text in (" B-x  I-x O B-y", "")]
  assert tag_metric.metric(gold, predictions) == expected


def test_tags_after_sentinels_are_matched_to_the_numbered_words():
  """Tags may be missing or repeated. Without sentinels they count from the first word."""
  gold = "<extra_id_0> B-x <extra_id_1> O <extra_id_2> B-y"
  for name, score, prediction, expected in (
    ("tags", "accuracy", "<extra_id_2> B-y <extra_id_0> B-x", 200 / 3),
    ("tags", "accuracy", "B-x O B-y", 100.0),
    ("tags", "accuracy", "<extra_id_1> O B-y <extra_id_0> B-z B-z", 100 / 3),
    ("entities", "recall", "<extra_id_2> B-y", 50.0),
  ):
    tag_metric = METRICS[name]()
    scores = tag_metric.metric([tag_metric.reference([gold])], [tag_metric.prediction(prediction)])
    assert scores[score] == pytest.approx(expected)
  assert METRICS["tags"]().prediction("<extra_id_99999999> O") == ["<extra_id_99999999>", "O"]


RUSSIAN = "Быстрая лиса прыгает через ленивую собаку"
TEXTS_IN_OTHER_SCRIPTS = [
  RUSSIAN,
  "η γρήγορη αλεπού πηδά",
  "敏捷的狐狸跳过懒狗。",
  "สุนัขจิ้งจอก",
  "तेज़ लोमड़ी कूदती है",
  "الثعلب السريع",
]


@pytest.mark.parametrize("text", TEXTS_IN_OTHER_SCRIPTS)
def test_rouge_of_other_scripts_needs_unicode_tokens(text):
  with pytest.raises(UserError, match="tokenize=unicode"):
    Rouge()([[text]], [text])
  beginning = text.split()[0] if " " in text else text[: len(text) // 2]
  scores = Rouge(tokenize="unicode")([[text], [text]], [text, beginning])
  assert 50 < scores["rouge1"] < 100
  assert scores["rougeL"] == scores["rouge1"]


def test_text_in_another_script_scores_zero_and_is_reported():
  gold = [["a small dog"], ["über große Hunde"], [RUSSIAN]]
  predictions = ["a small dog", "über große Hunde", RUSSIAN]
  rows_NC = Rouge().compute_rows(gold, predictions)
  assert Rouge().details(rows_NC, gold, predictions) == {"other_scripts": 1}
  assert Rouge().scores(rows_NC)["rouge1"] == pytest.approx(200 / 3)


def test_missing_tokenizer_of_bleu_is_reported_in_one_line(monkeypatch):
  def raise_missing(*_, **__):
    raise RuntimeError("needs\nmecab")

  monkeypatch.setattr("sacrebleu.metrics.BLEU.__init__", raise_missing)
  with pytest.raises(UserError, match="tokenize=ja-mecab: not available .needs mecab."):
    Bleu("ja-mecab")
