"""Benchmarks' records are rewritten to texts as T5's published preprocessors rewrite them."""

import pytest

import json_lines
from refusals import refuses
from t5x_like import slots
from t5x_like.benchmarks import suites
from t5x_like.corpora.sources import Skip, field_value, open_source
from t5x_like.data.supervised.templates import Template
from t5x_like.errors import UserError
from t5x_like.metrics.texts import METRICS, reference_texts


def rewrite(form: str, rows: list[dict], folder, split: str = "validation") -> list[dict]:
  """Rewrite records through the source, as a task reads them."""
  json_lines.write(folder / "rows.jsonl", rows)
  source = open_source(f"t5:{form}:jsonl:{split}={folder}/rows.jsonl")
  return [row for _, row in source.records(split)]


@pytest.mark.parametrize(
  ("label", "expected"),
  [
    (2.8, "2.8"),
    (1.66, "1.6"),
    (3.799999952316284, "3.8"),
    ("3.800", "3.8"),
    (0.0, "0.0"),
    ("0", "0.0"),
    (5, "5.0"),
    (0.1, "0.0"),
    (0.3, "0.4"),
    (0.5, "0.4"),
    (4.75, "4.8"),
    ("3.25", "3.2"),
    ("-1", "-1"),
    (-1.0, "-1"),
  ],
)
def test_similarity_is_rounded_to_the_nearest_fifth(label, expected, tmp_path):
  row = {"sentence1": "Big news.", "sentence2": "No idea.", "label": label, "idx": 4}
  assert rewrite("stsb", [row], tmp_path) == [
    {"inputs": "stsb sentence1: Big news. sentence2: No idea.", "targets": expected, "idx": 4}
  ]


def test_multirc_is_rewritten_without_markup_and_with_the_label_in_words(tmp_path):
  idx = {"paragraph": 5, "question": 1, "answer": 3}
  row = {
    "paragraph": "<b>Sent 1: </b>Once upon a time, Joey woke.<br><b>Sent 2: </b>He loved pie.",
    "question": "Why was Joey surprised?",
    "answer": "There was only pie to eat",
    "idx": idx,
  }
  text = (
    "multirc question: Why was Joey surprised? answer: There was only pie to eat paragraph: Sent "
    "1: Once upon a time, Joey woke. Sent 2: He loved pie."
  )
  rows = rewrite("multirc", [row | {"label": label} for label in (1, "False", -1)], tmp_path)
  assert [row["targets"] for row in rows] == ["True", "False", "-1"]
  for rewritten in rows:
    assert rewritten["inputs"] == text
    assert rewritten["idx"] == idx


ANSWERED = {
  "query": "It was @placeholder.",
  "entities": ["A", "B", "C"],
  "passage": "This is the passage\n@highlight\nAnother sentence.\n@highlight\nThird "
  '"one"\n@highlight\nEnd',
  "answers": ["A", "C"],
  "idx": {"passage": 1, "query": 2},
}
CLOZE = (
  "record query: It was @placeholder. entities: A, B, C passage: This is the passage. Another "
  'sentence. Third "one" End'
)


def test_record_has_an_example_for_each_answer_in_training_only(tmp_path):
  record = {"inputs": CLOZE, "answers": ["A", "C"], "idx": ANSWERED["idx"]}
  assert rewrite("record", [ANSWERED], tmp_path, "train") == [
    record | {"targets": answer} for answer in ("A", "C")
  ]
  assert rewrite("record", [ANSWERED], tmp_path) == [record | {"targets": "A"}]
  (unlabelled,) = rewrite("record", [ANSWERED | {"answers": []}], tmp_path, "test")
  assert unlabelled["targets"] == "-1"
  assert unlabelled["answers"] == []


def test_punctuation_of_squad_is_separated_by_spaces(tmp_path):
  row = {"id": "i", "context": '"This  is a\nstring (1845-1986)".', "question": "A vídeo?"}
  row["answers"] = {"text": ["The answer.", "$5"], "answer_start": [0, 0]}
  (rewritten,) = rewrite("squad", [row], tmp_path)
  assert rewritten == {
    "id": "i",
    "inputs": 'question: A vídeo ? context: " This is a string ( 1845 - 1986 ) " . ',
    "targets": "The answer . ",
    "answers": ["The answer . ", " $ 5"],
  }
  (context_free,) = rewrite("squad_context_free", [row], tmp_path)
  assert context_free["inputs"] == "squad trivia question: A vídeo ? "
  # The official files have a list of objects.
  row["answers"] = [{"text": text, "answer_start": 0} for text in ("The answer.", "$5")]
  assert rewrite("squad", [row], tmp_path) == [rewritten]


LENT = {
  "text": "Mitchell asked Tom if he could lend some money.",
  "span2_text": "he",
  "span2_index": 4,
}
WHIPPED = (
  "The boy continued to whip the pony , and eventually the pony threw him over. John laughed out "
  "quite loud. "
  '"Good for him," he said. '
)
CALMED = (
  "When they had eventually calmed down a bit , and had gotten home, Mr. Farley put the magic "
  "pebble in an iron safe . Some day they might want to use it , but really for now, what more "
  "could they wish for?"
)


def test_wsc_marks_the_pronoun_and_its_target_is_the_referent(tmp_path):
  rows = [
    LENT | {"span1_text": name, "label": name == "Tom", "idx": n}
    for n, name in enumerate(["Tom", "Mitchell"])
  ]
  text = "wsc: Mitchell asked Tom if *he* could lend some money."
  first, second = rewrite("wsc", rows, tmp_path)
  assert first == {"inputs": text, "targets": "Tom", "judged": ["Tom", "True"], "idx": 0}
  assert second == {
    "inputs": text,
    "targets": "Mitchell",
    "judged": ["Mitchell", "False"],
    "idx": 1,
  }
  assert rewrite("wsc", rows, tmp_path, "train") == [first]
  (test,) = rewrite("wsc", [rows[0] | {"label": None}], tmp_path, "test")
  assert test["judged"] == ["Tom", "-1"]


@pytest.mark.parametrize(
  "text, pronoun, index, expected",
  [
    (WHIPPED, "him", 23, WHIPPED.replace('him," he said. ', '*him* ," he said.')),
    (CALMED, "it", 34, CALMED.replace("use it ,", "use *it* ,")),
  ],
)
def test_wsc_corrects_two_sentences_with_a_wrong_index(text, pronoun, index, expected, tmp_path):
  assert text.split(" ")[index] != pronoun
  span = {"span2_text": pronoun, "span2_index": index}
  rows = [VALID_ROWS["wsc"] | {"text": text} | span]
  assert rewrite("wsc", rows, tmp_path)[0]["inputs"] == f"wsc: {expected}"


@pytest.mark.parametrize(
  ("sentence", "pronoun", "expected"),
  [
    (
      "Mitchell asked Tom if he could lend some money.",
      "he",
      "Mitchell asked Tom if *he* could lend some money.",
    ),
    (
      "Bill beat Tom because that newbie had luck.",
      "that newbie",
      "Bill beat Tom because *that newbie* had luck.",
    ),
    (
      "Carl thought the book unreadable to him.",
      "him",
      "Carl thought the book unreadable to *him*.",
    ),
  ],
)
def test_definite_pronouns_are_marked_as_in_wsc(sentence, pronoun, expected, tmp_path):
  row = {"sentence": sentence, "pronoun": pronoun, "candidates": ["Bill", "Tom"], "label": "1"}
  assert rewrite("dpr", [row], tmp_path, "train") == [
    {"inputs": f"wsc: {expected}", "targets": "Tom"}
  ]


@pytest.mark.parametrize(
  ("premise", "hypothesis", "marked", "target"),
  [
    (
      "Lily spoke to Donna breaking her silence.",
      "Lily spoke to Donna breaking Donna's silence.",
      "Lily spoke to Donna breaking *her* silence.",
      "Donna",
    ),
    (
      "The fish ate the worm. It was tasty.",
      "The worm was tasty.",
      "The fish ate the worm. *It* was tasty.",
      "The worm",
    ),
    (
      "Edward dropped adhesive tape onto his window sill, and when he pulled the tape off, some "
      "of the glue was stuck on it.",
      "Some of the glue was stuck on the window sill.",
      "Edward dropped adhesive tape onto his window sill, and when he pulled the tape off, some "
      "of the glue was stuck on *it* .",
      "the window sill",
    ),
    (
      "Al stole Bob's wallet and car, and then he was driving it really fast to get away.",
      "He was driving the car really fast to get away.",
      "Al stole Bob's wallet and car, and then he was driving *it* really fast to get away.",
      "the car",
    ),
  ],
)
def test_wnli_finds_the_referent_that_replaces_the_pronoun(
  premise, hypothesis, marked, target, tmp_path
):
  row = {"sentence1": premise, "sentence2": hypothesis, "label": "entailment", "idx": 1}
  expected = {"inputs": f"wsc: {marked}", "targets": target, "judged": [target, "True"], "idx": 1}
  assert rewrite("wnli", [row], tmp_path) == [expected]
  (without_pronoun,) = rewrite("wnli", [row | {"sentence1": "No pronoun."}], tmp_path)
  assert isinstance(without_pronoun, Skip)


def test_wnli_hypothesis_without_common_words_has_an_empty_referent(tmp_path):
  row = {"sentence1": "You can see it there.", "sentence2": "Gaps are visible."}
  (rewritten,) = rewrite("wnli", [row | {"label": "entailment", "idx": 2}], tmp_path)
  assert rewritten["inputs"] == "wsc: You can see *it* there."
  assert rewritten["targets"] == "-1"
  assert rewritten["judged"] == ["", "True"]
  judge = METRICS["referent"]()
  references = [judge.reference(rewritten["judged"])]
  assert judge.metric(references, [judge.prediction("the gap")])["accuracy"] == 0


# The tasks that are written by templates only: (the text of FIELDS, the names of the labels).
TEMPLATES = {
  "glue/cola": ("cola sentence: S", ("unacceptable", "acceptable")),
  "glue/sst2": ("sst2 sentence: S", ("negative", "positive")),
  "glue/mrpc": ("mrpc sentence1: S1 sentence2: S2", ("not_equivalent", "equivalent")),
  "glue/qqp": ("qqp question1: Q1 question2: Q2", ("not_duplicate", "duplicate")),
  "glue/mnli": ("mnli hypothesis: H premise: P", ("entailment", "neutral", "contradiction")),
  "glue/qnli": ("qnli question: Q sentence: S", ("entailment", "not_entailment")),
  "glue/rte": ("rte sentence1: S1 sentence2: S2", ("entailment", "not_entailment")),
  "glue/wnli": ("wnli sentence1: S1 sentence2: S2", ("not_entailment", "entailment")),
  "superglue/boolq": ("boolq passage: G question: Q", ("False", "True")),
  "superglue/cb": ("cb hypothesis: H premise: P", ("entailment", "contradiction", "neutral")),
  "superglue/copa": ("copa choice1: C1 choice2: C2 premise: P question: Q", ("choice1", "choice2")),
  "superglue/rte": ("rte hypothesis: H premise: P", ("entailment", "not_entailment")),
  "superglue/wic": ("wic sentence1: S1 sentence2: S2 word: W", ("False", "True")),
}
FIELDS = {
  "sentence": "S",
  "sentence1": "S1",
  "sentence2": "S2",
  "question": "Q",
  "question1": "Q1",
  "question2": "Q2",
  "premise": "P",
  "hypothesis": "H",
  "passage": "G",
  "choice1": "C1",
  "choice2": "C2",
  "word": "W",
}


def find_benchmarks() -> dict:
  """Return the tasks of GLUE, SuperGLUE and SQuAD by suite and name."""
  tasks = {}
  for suite in ("glue", "superglue", "squad"):
    for name, benchmark in slots.find("suite", suite, suites, "SUITE").tasks.items():
      tasks[f"{suite}/{name}"] = benchmark
  return tasks


QUESTION = {"question": "who?", "answers": ["Ann", "Al"], "answer": ["Ann", "Al"]}
TRIVIA = {"question": "who?", "answer": {"value": "Ann", "aliases": ["Ann", "The Al"]}}


@pytest.mark.parametrize(
  ("name", "prefix", "row", "prediction"),
  [
    ("web_questions", "wq", QUESTION, "the al"),
    ("natural_questions", "nq", QUESTION, "AL."),
    ("trivia_qa", "trivia_qa", TRIVIA, "al"),
  ],
)
def test_closed_book_questions_have_their_prefix_and_every_answer(name, prefix, row, prediction):
  form = slots.find("suite", "text", suites, "SUITE").tasks[name].text
  assert Template(form.task["inputs"], "inputs")(row, "") == f"{prefix} question: who?"
  assert Template(form.task["targets"], "targets")(row, "") == "Ann"
  (arguments,) = form.evaluator["metrics"]
  metric = slots.make("metric", arguments, METRICS)
  answers = reference_texts(field_value(row, form.evaluator["references"], ""))
  scores = metric.metric([metric.reference(list(answers))], [prediction])
  assert scores["exact_match"] == 100


def test_every_task_of_glue_superglue_and_squad_has_t5s_text():
  texts = {name: task.text for name, task in find_benchmarks().items() if task.text}
  assert texts.keys() == find_benchmarks().keys() - {"squad/squad_v2"}
  rewritten = {name: text.t5_form for name, text in texts.items() if text.t5_form}
  assert rewritten == {
    "glue/stsb": "stsb",
    "superglue/multirc": "multirc",
    "superglue/record": "record",
    "superglue/wsc": "wsc",
    "squad/squad": "squad",
  }
  assert texts.keys() - rewritten.keys() == TEMPLATES.keys()
  for name, (expected, labels) in TEMPLATES.items():
    text = texts[name]
    assert Template(text.task["inputs"], "inputs")(FIELDS, "") == expected, name
    assert text.task["targets"] == "{label}", name
    (metric,) = text.evaluator["metrics"]
    assert metric["classes"] == list(labels), name


@pytest.mark.parametrize(
  "source, name",
  [
    ("t5:stbs:builtin", "found the form 'stbs', expected t5:FORM:SOURCE with one of stsb, "),
    ("t5:stsb", "expected t5:FORM:SOURCE"),
  ],
)
def test_an_unknown_form_is_refused(source, name):
  with refuses(name):
    open_source(source)


# A valid record for each form.
VALID_ROWS = {
  "stsb": {"sentence1": "a", "sentence2": "b", "label": 1.0, "idx": 0},
  "multirc": {"question": "a", "answer": "b", "paragraph": "c", "label": 1, "idx": {"answer": 0}},
  "record": {
    "passage": "a",
    "query": "b",
    "entities": ["c"],
    "answers": ["c"],
    "idx": {"query": 0},
  },
  "squad": {"id": "a", "question": "b", "context": "c", "answers": {"text": ["c"]}},
  "squad_context_free": {"id": "a", "question": "b", "context": "c", "answers": {"text": ["c"]}},
  "wsc": {
    "text": "he is",
    "span1_text": "a",
    "span2_text": "he",
    "span2_index": 0,
    "label": 1,
    "idx": 0,
  },
  "wnli": {
    "sentence1": "Ann said it fell.",
    "sentence2": "Ann said the cup fell.",
    "label": 1,
    "idx": 0,
  },
  "dpr": {"sentence": "So he is.", "pronoun": "he", "candidates": ["a", "b"], "label": 0},
}


@pytest.mark.parametrize("form", VALID_ROWS)
def test_records_without_a_field_are_refused(form, tmp_path):
  assert len(rewrite(form, [VALID_ROWS[form]], tmp_path)) == 1
  for field in VALID_ROWS[form].keys() - {"idx"}:
    row = dict(VALID_ROWS[form])
    del row[field]
    with refuses(f"rows.jsonl:1: found no field '{field}' among ", f"t5:{form} needs"):
      rewrite(form, [row], tmp_path)


@pytest.mark.parametrize("form", VALID_ROWS)
def test_fields_of_other_types_are_read_or_refused_in_one_line(form, tmp_path):
  for field in VALID_ROWS[form].keys() - {"idx"}:
    for value in (None, 7, [1], {"x": 1}):
      try:
        rewrite(form, [VALID_ROWS[form] | {field: value}], tmp_path)
      except UserError as error:
        assert "rows.jsonl:1: found" in str(error)
        assert "\n" not in str(error)


@pytest.mark.parametrize(
  "form, changes, name",
  [
    ("stsb", {"label": "high"}, "found the score 'high', expected a number"),
    ("stsb", {"label": float("nan")}, "found the score 'nan'"),
    ("stsb", {"label": "inf"}, "found the score 'inf'"),
    ("wsc", {"span2_text": "she"}, "found no word 'she' in 'he is'"),
    ("dpr", {"label": 7}, "found the label 7, expected the number of a candidate"),
  ],
)
def test_bad_labels_and_words_are_refused(form, changes, name, tmp_path):
  with refuses(name):
    rewrite(form, [VALID_ROWS[form] | changes], tmp_path)


@pytest.mark.parametrize(
  "sentences, referent",
  [
    (("(x+x+)+y it end", "(x+x+)+y " + "x" * 40), "x" * 40),
    (("Ann (2 said it fell.", "Ann (2 said the cup fell."), ""),
  ],
)
def test_words_of_wnli_are_not_used_as_regular_expressions(sentences, referent, tmp_path):
  """As an expression, the first would take exponential time, and the second would be invalid."""
  row = {"sentence1": sentences[0], "sentence2": sentences[1], "label": 1, "idx": 0}
  assert rewrite("wnli", [row], tmp_path)[0]["judged"] == [referent, "True"]
