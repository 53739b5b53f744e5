"""The published prompts of questions without training."""

import json
import types

import jax
import numpy as np
import pytest

from t5x_like import evaluate, rows, vocabularies
from t5x_like.benchmarks import facts, suite
from t5x_like.errors import UserError
from t5x_like.inference import prompts, questions
from t5x_like.inference.likelihood import ContinuationScore
from t5x_like.library import model as library
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from tools import few_shot

SUBJECT = "abstract_algebra"
ROWS = [
  {
    "subject": SUBJECT,
    "split": "test",
    "question": " Find it. ",
    "choices": ["0", "4", "2", "6"],
    "answer": "B",
  },
  {
    "subject": SUBJECT,
    "split": "dev",
    "question": "Is it?",
    "choices": ["yes", "no"],
    "answer": "A",
  },
  {
    "subject": SUBJECT,
    "split": "dev",
    "question": "Was it?",
    "choices": ["yes", "no"],
    "answer": "B",
  },
  {
    "subject": "law",
    "split": "dev",
    "question": "Another subject's.",
    "choices": ["x", "y"],
    "answer": "A",
  },
]
HEADER = "The following are multiple choice questions (with answers) about abstract algebra.\n\n"
ASKED = "Find it.\nA. 0\nB. 4\nC. 2\nD. 6\nAnswer:"


def asked(folder, rows: list[dict], shots: int = 0):
  (folder / "mmlu.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  file = questions.read_questions(str(folder / "mmlu.jsonl"))
  return questions.build_letter_prompts(file, file, questions.Options(shots=shots))


@pytest.mark.parametrize(
  ("shots", "before"),
  [(0, ""), (1, "Is it?\nA. yes\nB. no\nAnswer: A\n\n")]
  + [(2, "Is it?\nA. yes\nB. no\nAnswer: A\n\nWas it?\nA. yes\nB. no\nAnswer: B\n\n")],
)
def test_mmlu_names_the_subject_and_shows_its_first_examples(shots, before, tmp_path):
  ((_, pairs, right),) = asked(tmp_path, ROWS, shots)
  assert pairs == [(HEADER + before + ASKED, f" {letter}") for letter in "ABCD"] and right == 1


def test_a_question_without_a_subject_has_no_header(tmp_path):
  ((_, pairs, _),) = asked(
    tmp_path, [{key: value for key, value in ROWS[0].items() if key != "subject"}]
  )
  assert pairs[0][0] == ASKED
  with pytest.raises(UserError, match="all rows are of the split dev"):
    asked(tmp_path, ROWS[1:])


def read(folder, name: str, rows: list[dict]):
  (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  return questions.read_questions(str(folder / f"{name}.jsonl"))


def test_examples_that_are_not_there_are_missed(tmp_path):
  rows = [{key: value for key, value in row.items() if key != "split"} for row in ROWS]
  with pytest.raises(
    UserError,
    match="mmlu.jsonl:1: found no examples of the split dev and the subject 'abstract_alg",
  ):
    asked(tmp_path, rows, 1)
  test = read(tmp_path, "test", rows[:1])
  dev = read(tmp_path, "dev", rows[1:])
  ((_, pairs, _),) = questions.build_letter_prompts(test, dev, questions.Options(shots=1))
  assert pairs[0][0] == f"{HEADER}Is it?\nA. yes\nB. no\nAnswer: A\n\n{ASKED}"


class Model:
  """A stand-in for `Prompts` and its likelihood: every continuation has a score, and every context
  an answer."""

  both = False
  longest_answer = None

  def __init__(self, answer: str = "", score=len):
    self.likelihood = self
    self.given = []
    self._answer = answer
    self._score = score

  def encode(self, text, special=True):
    return list(text)

  def encode_pair(self, context, continuation):
    return context, continuation

  def __call__(self, pairs):
    self.given += pairs
    return [ContinuationScore(self._score(text), True) for _, text in pairs]

  longest = 512

  def generate(self, contexts, new):
    self.new = new
    answers = self._answer if isinstance(self._answer, list) else [self._answer] * len(contexts)
    return answers, [False] * len(contexts), [len(answer) >= new for answer in answers]

  def rolling_log_probability(self, ids, start, stride):
    return -float(len(ids))

  start_id = 0


def ask(model, file, examples=None, **options):
  asker = object.__new__(questions.Asker)
  asker._options = questions.Options(**options)
  asker._examples = examples
  asker._prompts = model
  return asker(file)


def test_a_question_is_not_among_its_examples_in_another_file(tmp_path):
  rows = [{"query": f"Q{n}", "choices": ["yes", "no"], "gold": 0} for n in range(3)]
  model = Model()
  ask(model, read(tmp_path, "test", rows), read(tmp_path, "same", rows), shots=2)
  assert all(
    context.count(context[-2:]) == 1 and context.count("yes") == 2 for context, _ in model.given
  )


def test_normalised_accuracy_is_by_the_characters_of_the_choice(tmp_path):
  """-3 / 2 < -11 / 8, as acc_norm of EleutherAI's harness; with the space -3 / 3 > -11 / 9."""
  file = read(tmp_path, "q", [{"query": "Q", "choices": ["äb", "abcdefgh"], "gold": 1}])
  found = ask(Model(score={" äb": -3.0, " abcdefgh": -11.0}.get), file)
  assert (found["accuracy"], found["accuracy_norm"]) == (0, 100)


@pytest.mark.parametrize("answer", [145, 145.0, "145.0", "$145"])
def test_numbers_are_equal_however_they_are_written(answer, tmp_path):
  """SVAMP's answers are 145.0."""
  file = read(tmp_path, "q", [{"context": "How many?", "answer": answer}])
  assert [ask(Model(text), file)["exact_match"] for text in ("So it is 145.", "45")] == [100, 0]


def test_an_answer_in_words_is_not_judged_by_its_number(tmp_path):
  file = read(
    tmp_path, "q", [{"context": "Is it?", "answer": "yes", "chain_of_thought": "It may."}]
  )
  assert [ask(Model(text), file)["exact_match"] for text in ("Yes.", "no number")] == [100, 0]


@pytest.mark.parametrize(
  ("answer", "text"),
  [
    (["Ann Lee", "Lee"], "lee"),
    ({"value": "Onion", "aliases": ["Allium cepa"]}, "allium cepa"),
    ({"text": ["Rome"], "answer_start": [3]}, "Rome."),
    ([18, "19"], "so 19"),
    ("5 + 5 #### 10", "10"),
    ("50%", "It is 50 %"),
    (".5", "0.5"),
    ("C++", "C++"),
    ("?", "?"),
  ],
)
def test_answers_of_several_forms(answer, text, tmp_path):
  file = read(tmp_path, "q", [{"context": "Q", "answer": answer, "aliases": None}])
  assert [ask(Model(given), file)["exact_match"] for given in (text, "5 none", "")] == [100, 0, 0]


@pytest.mark.parametrize(
  "answer", [None, True, [], [None], "", {"id": 1}, ["a", {"x": 1}], [False]]
)
def test_answers_that_are_none_are_refused_by_row(answer, tmp_path):
  with pytest.raises(UserError, match="q.jsonl:2: answer: "):
    read(tmp_path, "q", [{"context": "Q", "answer": "a"}, {"context": "Q", "answer": answer}])


def test_a_text_of_aliases_is_one_alias(tmp_path):
  file = read(tmp_path, "q", [{"context": "Q", "answer": "a", "aliases": "1234567"}])
  assert [ask(Model(text), file)["exact_match"] for text in ("3", "1234567")] == [0, 100]


def test_a_row_is_judged_by_its_own_answer(tmp_path):
  rows = [{"context": f"Q{n}", "answer": n} for n in range(3)] + [
    {"context": "Q", "answer": "18 apples"}
  ]
  found = ask(Model(["it is 0.0", "so 1.00", "$2", "19 apples"]), read(tmp_path, "q", rows))
  assert found["exact_match"] == 75


def test_answers_that_reach_the_limit_are_counted(tmp_path):
  file = read(
    tmp_path, "q", [{"context": f"Q{n}", "answer": text} for n, text in enumerate(("ten", 10, 10))]
  )
  model = Model(["tenth\nQ", "1\n2\n3", "1\n\nQ: 2"])
  # the first line, and the last's paragraph, have ended
  assert ask(model, file, max_new_tokens=5)["unfinished"] == 1
  assert ask(model, file)["unfinished"] == 0 and model.new == 64
  worked = read(tmp_path, "w", [{"context": "Q", "answer": "5 + 5 #### 10"}])
  ask(model, worked)
  assert model.new == 256
  model.longest = 100  # tokens that the model reads
  ask(model, worked)
  assert model.new == 50


@pytest.mark.parametrize("number", [6, 10, 26, 27])
def test_more_options_than_five(number, tmp_path):
  letters = [chr(ord("A") + place) for place in range(number)]
  row = {"question": "?", "choices": [f"option {n}" for n in range(number)], "answer": "F"}
  if number > 26:
    with pytest.raises(UserError, match="mmlu.jsonl:1: found 27 choices, expected at most 26"):
      asked(tmp_path, [row])
    return
  ((_, pairs, right),) = asked(tmp_path, [row])
  assert [letter for _, letter in pairs] == [f" {letter}" for letter in letters] and right == 5
  assert pairs[0][0].count("option ") == number


def test_fewer_rows_than_shots_are_refused(tmp_path):
  rows = [{"context": f"Q{n}", "answer": "a"} for n in range(2)]
  with pytest.raises(
    UserError, match="q.jsonl:1: found 1 other questions in .*q.jsonl, expected 5"
  ):
    ask(Model(), read(tmp_path, "q", rows), shots=5)
  with pytest.raises(
    UserError, match="found 2 examples of the split dev and the subject .* expected 3"
  ):
    asked(tmp_path, ROWS, 3)


def test_a_question_is_not_among_its_examples_with_another_id(tmp_path):
  rows = [{"context": f"Q {n}", "answer": n, "id": n} for n in range(2)]
  copies = [{"id": 9, "answer": 7, "context": f"q  {n} "} for n in (0, 1)]
  model = Model("0")
  contexts = []
  model.encode = lambda text, special=True: contexts.append(text) or list(text)
  ask(model, read(tmp_path, "q", rows), read(tmp_path, "examples", copies), shots=1)
  assert [" ".join(context.split()) for context in contexts] == ["q 1 7 Q 0", "q 0 7 Q 1"]
  dev = [ROWS[1], ROWS[2], ROWS[1] | {"split": "test", "answer": "B", "id": 3}]
  ((_, pairs, _),) = asked(tmp_path, dev, 1)
  assert pairs[0][0].count("Is it?") == 1


@pytest.mark.parametrize("texts", [[""], ["", " \n"]])
def test_texts_without_words_have_no_perplexity(texts, tmp_path):
  with pytest.raises(UserError, match="t.jsonl: holds no text but white space"):
    ask(Model(), read(tmp_path, "t", [{"text": text} for text in texts]))
  found = ask(Model(), read(tmp_path, "t", [{"text": text} for text in [*texts, "ab"]]))
  assert found["words"] == 1


def test_saved_answers_are_of_the_checkpoint_and_the_file(tmp_path, monkeypatch):
  """More pretraining, or another file of the same name, asks again; else `evaluate --questions`
  reads what it has."""
  times = []
  steps = [1]
  monkeypatch.setattr(suite, "form_kind", lambda workdir: "decoder")
  monkeypatch.setattr(facts, "newest_step", lambda workdir: steps)
  monkeypatch.setattr(
    library, "load", lambda *_, **__: types.SimpleNamespace(chat_template=lambda: None)
  )
  monkeypatch.setattr(
    questions, "Asker", lambda *_: lambda file: times.append(file) or scores(len(times))
  )
  named = {
    "from_scratch": False,
    "workdir": "run",
    "step": None,
    "shots": None,
    "max_examples": None,
    "template": None,
  }
  args = types.SimpleNamespace(questions=f"{tmp_path}/test.jsonl", **named)

  def scores(value: int) -> dict[str, float]:
    return {"accuracy": float(value), "examples": 100}

  def found() -> float:
    read(tmp_path, "test", rows)
    return evaluate._QuestionSuite(args, tmp_path / "out", ["run"])()[0]["test"]["score"]

  rows = [{"query": "Q", "choices": ["yes", "no"], "gold": 0}]
  first = found()
  again = found()
  steps = [2]
  later = found()
  rows = [rows[0] | {"gold": 1}]
  assert [first, again, later, found(), found()] == [1, 1, 2, 3, 3]


def test_shares_have_intervals_and_long_files_progress(capsys, monkeypatch):
  scores = {"accuracy": 50.0, "perplexity": 3.0, "examples": 100, "truncated": 0}
  ((low, high),) = (
    interval.values() for interval in questions.confidence_intervals(scores).values()
  )
  assert (round(low, 2), round(high, 2)) == (40.38, 59.62)  # Wilson 1927
  assert questions.format_scores(scores) == (
    "accuracy 50 (40.4 to 59.6), perplexity 3, examples 100, truncated 0"
  )
  monkeypatch.setattr(questions.Progress, "SECONDS", 0.0)
  with rows.report_progress(questions.Progress("arc")):
    rows.run_in_batches(
      lambda batch: (batch["x"],),
      Rules.make(make_mesh({"data": 1}, jax.devices()[:1])),
      2,
      [4, 4, 4],
      lambda numbers, _: {"x": np.zeros(len(numbers), np.int32)},
    )
  assert capsys.readouterr().err == "arc: 2 of 3 rows\narc: 3 of 3 rows\n"


def test_a_chat_template_surrounds_the_context_and_not_the_answer():
  opened = types.SimpleNamespace(
    features={"decoder_target_tokens": [16]},
    run=types.SimpleNamespace(
      model=types.SimpleNamespace(inputs=types.SimpleNamespace(position=None))
    ),
    vocabulary=vocabularies.load("bytes"),
    forced=(None, None),
  )
  context, answer = prompts.Prompts(opened, template="plain").encode_pair("Where?", " Here")
  vocabulary = opened.vocabulary
  assert vocabulary.decode(context) == "User: Where?\n\nAssistant:" and context[
    0
  ] == vocabularies.start_id(vocabulary)
  assert answer == vocabulary.encode("Here")


def test_examples_need_shots(capsys):
  assert few_shot.main(["--workdir=run", "--input=test.jsonl", "--examples=dev.jsonl"]) == 2
  assert "--examples: only with --shots" in capsys.readouterr().err


@pytest.mark.parametrize(
  "flag", ["--epochs=nan", "--epochs=inf", "--rates=1e-5,nan", "--seeds=0", "--shots=-1"]
)
def test_numbers_of_a_suite_are_finite(flag, capsys):
  assert evaluate.main(["--workdir=run", "--suite=glue", "--questions=test.jsonl", flag]) == 2
  assert "expected finite numbers above 0" in capsys.readouterr().err
