"""BLEU, chrF and ROUGE equal what sacrebleu and rouge-score document and answer themselves."""

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
REFERENCES = [list(several) for several in zip(*STREAMS)]


def test_documented_bleu_and_chrf():
  assert Bleu()(REFERENCES, SYSTEM)["bleu"] == pytest.approx(48.530827009929865)
  assert Chrf()(REFERENCES, SYSTEM)["chrf"] == pytest.approx(59.73, abs=0.005)


@pytest.mark.parametrize("options", [{}, {"tokenize": "char"}, {"lowercase": True}])
def test_bleu_equals_sacrebleu(options):
  metric = Bleu(**options)
  rows = metric.rows(REFERENCES, SYSTEM)
  score = BLEU(**options).corpus_score(SYSTEM, STREAMS)
  assert metric.scores(rows)["bleu"] == pytest.approx(score.score)
  details = metric.details(rows, REFERENCES, SYSTEM)
  assert details["signature"].startswith("nrefs:2|case:") and "|tok:" in details["signature"]
  assert (details["brevity_penalty"], details["reference_length"]) == (score.bp, score.ref_len)


def test_chrf_plus_plus_equals_sacrebleu():
  metric = Chrf(word_order=2)
  assert metric(REFERENCES, SYSTEM)["chrf"] == pytest.approx(
    CHRF(word_order=2).corpus_score(SYSTEM, STREAMS).score
  )
  assert "nw:2" in metric.details(metric.rows(REFERENCES, SYSTEM), REFERENCES, SYSTEM)["signature"]


def test_sentences_may_have_different_numbers_of_references():
  uneven = [REFERENCES[0], REFERENCES[1][:1], REFERENCES[2]]
  padded = [REFERENCES[0], [REFERENCES[1][0]] * 2, REFERENCES[2]]
  for metric in (Bleu, Chrf):
    assert metric()(uneven, SYSTEM) == metric()(padded, SYSTEM)


def test_documented_rouge():
  found = Rouge()(
    [["The quick brown fox jumps over the lazy dog"]], ["The quick brown dog jumps on the log."]
  )
  assert found["rouge1"] == pytest.approx(70.588, abs=1e-3) and found["rougeL"] == pytest.approx(
    58.823, abs=1e-3
  )


def test_rouge_takes_the_best_reference_for_each_type_and_means_over_examples():
  references = [["a b c d", "a c"], ["x y . z"]]
  predictions = ["a b x c", "z . x y"]
  scorer = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"])
  found = Rouge(use_stemmer=False)(references, predictions)
  for name in ("rouge1", "rouge2", "rougeL", "rougeLsum"):
    first = max(scorer.score(one, predictions[0])[name].fmeasure for one in references[0])
    second = scorer.score("x y .\nz", "z .\nx y")[name].fmeasure
    assert found[name] == pytest.approx(50 * (first + second))
  assert found["rougeLsum"] > found["rougeL"]  # sentences in another order cost nothing


def test_one_reference_is_that_of_the_highest_rouge_1():
  # one has the words, the other a pair of them
  references = ["c a b x", "x b d e f g"]
  prediction = "x b a c"
  scores = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"]).score(references[0], prediction)
  one, each = (
    Rouge(use_stemmer=False, one_reference=flag)([references], [prediction])
    for flag in (True, False)
  )
  assert one == {name: pytest.approx(100 * score.fmeasure) for name, score in scores.items()}
  assert one["rouge1"] == each["rouge1"] == 100 and one["rouge2"] < each["rouge2"]


def test_stemming_and_sentences():
  assert Rouge()([["the dogs jumped"]], ["the dog jumps"])["rouge1"] == pytest.approx(100.0)
  assert Rouge(use_stemmer=False)([["the dogs jumped"]], ["the dog jumps"])[
    "rouge1"
  ] == pytest.approx(100 / 3)
  assert split_sentences("One . Two . ") == "One .\nTwo .\n"


@pytest.mark.parametrize(
  "name, expected",
  [("tags", {"accuracy": 60.0}), ("entities", {"precision": 50.0, "recall": 50.0, "f1": 50.0})],
)
def test_tags_in_a_text_are_those_of_its_words(name, expected):
  """A word without a tag is wrong; a tag without a word is one that was found."""
  scored = METRICS[name]()
  gold = [scored.reference([text]) for text in ("B-x I-x O", "O B-y")]
  assert (
    scored.metric(gold, [scored.prediction(text) for text in (" B-x  I-x O B-y", "")]) == expected
  )


def test_a_tag_behind_a_sentinel_is_that_of_its_word():
  """Whatever is missing or said twice; without sentinels, tags count from the first word."""
  gold = "<extra_id_0> B-x <extra_id_1> O <extra_id_2> B-y"
  for name, found, expected in (
    ("tags", "<extra_id_2> B-y <extra_id_0> B-x", 200 / 3),
    ("tags", "B-x O B-y", 100.0),
    ("tags", "<extra_id_1> O B-y <extra_id_0> B-z B-z", 100 / 3),
    ("entities", "<extra_id_2> B-y", 50.0),
  ):
    scored = METRICS[name]()
    result = scored.metric([scored.reference([gold])], [scored.prediction(found)])
    assert result["recall" if name == "entities" else "accuracy"] == pytest.approx(expected)
  assert METRICS["tags"]().prediction("<extra_id_99999999> O") == ["<extra_id_99999999>", "O"]


RUSSIAN = "Быстрая лиса прыгает через ленивую собаку"
SCRIPTS = [
  RUSSIAN,
  "η γρήγορη αλεπού πηδά",
  "敏捷的狐狸跳过懒狗。",
  "สุนัขจิ้งจอก",
  "तेज़ लोमड़ी कूदती है",
  "الثعلب السريع",
]


@pytest.mark.parametrize("text", SCRIPTS)
def test_rouge_of_other_scripts(text):
  with pytest.raises(UserError, match="tokenize=unicode"):
    Rouge()([[text]], [text])
  words = text.split() if " " in text else [text[: len(text) // 2], text[len(text) // 2 :]]
  scores = Rouge(tokenize="unicode")([[text], [text]], [text, words[0]])
  assert 50 < scores["rouge1"] < 100 and scores["rougeL"] == scores["rouge1"]


def test_rouge_of_one_row_in_another_script():
  gold = [["a small dog"], ["über große Hunde"], [RUSSIAN]]
  given = ["a small dog", "über große Hunde", RUSSIAN]
  rows_NC = Rouge().compute_rows(gold, given)
  assert Rouge().details(rows_NC, gold, given) == {"other_scripts": 1}
  assert Rouge().scores(rows_NC)["rouge1"] == pytest.approx(200 / 3)


def test_a_tokenizer_of_bleu_that_cannot_be_made(monkeypatch):
  def absent(*_, **__):
    raise RuntimeError("needs\nmecab")

  monkeypatch.setattr("sacrebleu.metrics.BLEU.__init__", absent)
  with pytest.raises(UserError, match="tokenize=ja-mecab: not available .needs mecab."):
    Bleu("ja-mecab")
