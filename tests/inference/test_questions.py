"""Questions are put to models in their published prompts and judged as their authors judge."""

import string
import types

import jax
import numpy as np
import pytest

import json_lines
from t5x_like import evaluate, rows, vocabularies
from t5x_like.errors import UserError
from t5x_like.inference import asking, prompts, questions
from t5x_like.inference.likelihood import ContinuationScore
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from tools import few_shot

SUBJECT = "abstract_algebra"


def mmlu_row(question: str, choices: list[str], answer: str, subject: str = SUBJECT) -> dict:
  row = {"subject": subject, "split": "dev", "question": question}
  return row | {"choices": choices, "answer": answer}


ROWS = [
  mmlu_row(" Find it. ", ["0", "4", "2", "6"], "B") | {"split": "test"},
  mmlu_row("Is it?", ["yes", "no"], "A"),
  mmlu_row("Was it?", ["yes", "no"], "B"),
  mmlu_row("Another subject's.", ["x", "y"], "A", subject="law"),
]
HEADER = "The following are multiple choice questions (with answers) about abstract algebra.\n\n"
FIRST_EXAMPLE = "Is it?\nA. yes\nB. no\nAnswer: A\n\n"
SECOND_EXAMPLE = "Was it?\nA. yes\nB. no\nAnswer: B\n\n"
QUESTION = "Find it.\nA. 0\nB. 4\nC. 2\nD. 6\nAnswer:"


def without(row: dict, key: str) -> dict:
  return {name: value for name, value in row.items() if name != key}


def write_and_read_questions(folder, name: str, rows: list[dict]):
  json_lines.write(folder / f"{name}.jsonl", rows)
  return questions.read_questions(str(folder / f"{name}.jsonl"))


def build_mmlu_prompts(folder, rows: list[dict], shots: int = 0):
  file = write_and_read_questions(folder, "mmlu", rows)
  return questions.build_letter_prompts(file, file, questions.Options(shots=shots))


@pytest.mark.parametrize(
  ("shots", "shown_examples"),
  [(0, ""), (1, FIRST_EXAMPLE), (2, FIRST_EXAMPLE + SECOND_EXAMPLE)],
)
def test_mmlu_names_the_subject_and_shows_its_first_examples(shots, shown_examples, tmp_path):
  ((_, pairs, right_index, *_),) = build_mmlu_prompts(tmp_path, ROWS, shots)
  context = HEADER + shown_examples + QUESTION
  assert pairs == [(context, f" {letter}") for letter in "ABCD"]
  assert right_index == 1


def test_a_question_without_a_subject_has_no_header(tmp_path):
  ((_, pairs, *_),) = build_mmlu_prompts(tmp_path, [without(ROWS[0], "subject")])
  assert pairs[0][0] == QUESTION


def test_a_file_without_test_rows_is_refused(tmp_path):
  with pytest.raises(UserError, match="all rows are of the split dev"):
    build_mmlu_prompts(tmp_path, ROWS[1:])


def test_examples_come_from_the_split_dev_or_another_file(tmp_path):
  rows = [without(row, "split") for row in ROWS]
  words = "mmlu.jsonl:1: found no examples of the split dev and the subject 'abstract_alg"
  with pytest.raises(UserError, match=words):
    build_mmlu_prompts(tmp_path, rows, 1)
  test = write_and_read_questions(tmp_path, "test", rows[:1])
  dev = write_and_read_questions(tmp_path, "dev", rows[1:])
  ((_, pairs, *_),) = questions.build_letter_prompts(test, dev, questions.Options(shots=1))
  assert pairs[0][0] == HEADER + FIRST_EXAMPLE + QUESTION


class Model:
  """Stands in for `Prompts` and its likelihood, with fixed scores and answers.

  Attributes:
    pairs: the contexts and continuations that were scored.
    new: the limit of tokens of the last generation.
  """

  start_id = 0
  longest = 512

  is_encoder_decoder = False
  longest_answer = None

  def __init__(self, answer: str = "", score=len):
    self.likelihood = self
    self.pairs = []
    self._answer = answer
    self._score = score

  def encode(self, text, special=True):
    return [ord(character) for character in text]

  def encode_pair(self, context, continuation):
    return self.encode(context), self.encode(continuation)

  def padded_length(self, context, continuation):
    return len(context) + len(continuation)

  def __call__(self, pairs, row_length):
    texts = [("".join(map(chr, context)), "".join(map(chr, ids))) for context, ids in pairs]
    self.pairs += texts
    return [ContinuationScore(self._score(text), True) for _, text in texts]

  def generate(self, contexts, new):
    self.new = new
    answers = self._answer if isinstance(self._answer, list) else [self._answer] * len(contexts)
    return answers, [False] * len(contexts), [len(answer) >= new for answer in answers]

  def windows(self, ids, start, stride):
    return [([start], ids)]


def ask(model, file, examples=None, **options):
  """Return the scores of a model on the questions of a file."""
  asker = object.__new__(asking.Asker)
  asker._prompts = model
  asker._block_rows = 4
  asker._log = None
  asker._fingerprint = ""
  return asker(questions.build_prompts(file, questions.Options(**options), examples)).metrics


def test_a_question_is_not_among_its_examples_in_another_file(tmp_path):
  rows = [{"query": f"Q{n}", "choices": ["yes", "no"], "gold": 0} for n in range(3)]
  model = Model()
  test = write_and_read_questions(tmp_path, "test", rows)
  copy = write_and_read_questions(tmp_path, "copy", rows)
  ask(model, test, copy, shots=2)
  for context, _ in model.pairs:
    question = context[-2:]
    assert context.count(question) == 1
    assert context.count("yes") == 2


def test_normalised_accuracy_is_by_the_characters_of_the_choice(tmp_path):
  """-3 / 2 < -11 / 8, as acc_norm of EleutherAI's harness; with the space -3 / 3 > -11 / 9."""
  row = {"query": "Q", "choices": ["äb", "abcdefgh"], "gold": 1}
  file = write_and_read_questions(tmp_path, "q", [row])
  scores = ask(Model(score={" äb": -3.0, " abcdefgh": -11.0}.get), file)
  assert scores["accuracy"] == 0
  assert scores["accuracy_norm"] == 100


def judge(folder, row: dict, answer: str) -> float:
  """Return the percentage of exact matches of an answer to one question."""
  file = write_and_read_questions(folder, "q", [{"context": "Q"} | row])
  return ask(Model(answer), file)["exact_match"]


@pytest.mark.parametrize("answer", [145, 145.0, "145.0", "$145"])
def test_numbers_are_equal_however_they_are_written(answer, tmp_path):
  """SVAMP's answers are written 145.0."""
  assert judge(tmp_path, {"answer": answer}, "So it is 145.") == 100
  assert judge(tmp_path, {"answer": answer}, "45") == 0


def test_an_answer_in_words_is_not_judged_by_its_number(tmp_path):
  row = {"answer": "yes", "chain_of_thought": "It may."}
  assert judge(tmp_path, row, "Yes.") == 100
  assert judge(tmp_path, row, "no number") == 0


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
def test_any_form_of_an_answer_is_right(answer, text, tmp_path):
  row = {"answer": answer, "aliases": None}
  assert judge(tmp_path, row, text) == 100
  assert judge(tmp_path, row, "5 none") == 0
  assert judge(tmp_path, row, "") == 0


@pytest.mark.parametrize(
  "answer", [None, True, [], [None], "", {"id": 1}, ["a", {"x": 1}], [False], [None, "a"]]
)
def test_an_unusable_answer_is_named_by_its_line(answer, tmp_path):
  rows = [{"context": "Q", "answer": "a"}, {"context": "Q", "answer": answer}]
  with pytest.raises(UserError, match="q.jsonl:2: answer: "):
    write_and_read_questions(tmp_path, "q", rows)


def test_a_string_of_aliases_is_one_alias(tmp_path):
  row = {"answer": "a", "aliases": "1234567"}
  assert judge(tmp_path, row, "1234567") == 100
  assert judge(tmp_path, row, "3") == 0


def test_each_row_is_judged_by_the_form_of_its_answer(tmp_path):
  rows = [{"context": f"Q{n}", "answer": n} for n in range(3)]
  rows.append({"context": "Q", "answer": "18 apples"})
  model = Model(["it is 0.0", "so 1.00", "$2", "19 apples"])
  scores = ask(model, write_and_read_questions(tmp_path, "q", rows))
  assert scores["exact_match"] == 75


def test_answers_that_reach_the_limit_are_counted(tmp_path):
  rows = [{"context": f"Q{n}", "answer": answer} for n, answer in enumerate(("ten", 10, 10))]
  file = write_and_read_questions(tmp_path, "q", rows)
  model = Model(["tenth\nQ", "1\n2\n3", "1\n\nQ: 2"])
  # The first answer ends with its line and the last with its paragraph.
  assert ask(model, file, max_new_tokens=5)["unfinished"] == 1
  assert ask(model, file)["unfinished"] == 0


def test_the_limit_of_new_tokens_follows_the_answers_and_the_model(tmp_path):
  short = write_and_read_questions(tmp_path, "short", [{"context": "Q", "answer": "ten"}])
  solution = {"context": "Q", "answer": "5 + 5 #### 10"}
  worked_example = write_and_read_questions(tmp_path, "worked", [solution])
  model = Model()
  ask(model, short)
  assert model.new == 64
  ask(model, worked_example)
  assert model.new == 256
  model.longest = 100  # tokens that the model reads
  ask(model, worked_example)
  assert model.new == 50


@pytest.mark.parametrize("number", [6, 10, 26])
def test_a_question_may_have_26_choices(number, tmp_path):
  row = {"question": "?", "choices": [f"option {n}" for n in range(number)], "answer": "F"}
  ((_, pairs, right_index, *_),) = build_mmlu_prompts(tmp_path, [row])
  letters = string.ascii_uppercase[:number]
  assert [continuation for _, continuation in pairs] == [f" {letter}" for letter in letters]
  assert right_index == 5
  assert pairs[0][0].count("option ") == number


def test_more_than_26_choices_are_refused(tmp_path):
  row = {"question": "?", "choices": [f"option {n}" for n in range(27)], "answer": "F"}
  with pytest.raises(UserError, match="mmlu.jsonl:1: found 27 choices, expected at most 26"):
    build_mmlu_prompts(tmp_path, [row])


def test_fewer_rows_than_shots_are_refused(tmp_path):
  rows = [{"context": f"Q{n}", "answer": "a"} for n in range(2)]
  file = write_and_read_questions(tmp_path, "q", rows)
  words = "q.jsonl:1: found 1 other questions in .*q.jsonl, expected 5"
  with pytest.raises(UserError, match=words):
    ask(Model(), file, shots=5)
  words = "found 2 examples of the split dev and the subject .* expected 3"
  with pytest.raises(UserError, match=words):
    build_mmlu_prompts(tmp_path, ROWS, 3)


def test_a_question_is_not_among_its_examples_with_another_id(tmp_path):
  rows = [{"context": f"Q {n}", "answer": n, "id": n} for n in range(2)]
  copies = [{"id": 9, "answer": 7, "context": f"q  {n} "} for n in (0, 1)]
  contexts = []

  class NotingModel(Model):
    def encode(self, text, special=True):
      contexts.append(" ".join(text.split()))
      return super().encode(text, special)

  file = write_and_read_questions(tmp_path, "q", rows)
  examples = write_and_read_questions(tmp_path, "examples", copies)
  ask(NotingModel("0"), file, examples, shots=1)
  assert contexts == ["q 1 7 Q 0", "q 0 7 Q 1"]
  dev = [ROWS[1], ROWS[2], ROWS[1] | {"split": "test", "answer": "B", "id": 3}]
  ((_, pairs, *_),) = build_mmlu_prompts(tmp_path, dev, 1)
  assert pairs[0][0].count("Is it?") == 1


@pytest.mark.parametrize("texts", [[""], ["", " \n"]])
def test_texts_without_words_have_no_perplexity(texts, tmp_path):
  with pytest.raises(UserError, match="t.jsonl: holds no text but white space"):
    write_and_read_questions(tmp_path, "t", [{"text": text} for text in texts])
  file = write_and_read_questions(tmp_path, "t", [{"text": text} for text in [*texts, "ab"]])
  assert ask(Model(), file)["words"] == 1


def test_progress_through_a_file_is_printed(capsys, monkeypatch):
  monkeypatch.setattr(asking.Progress, "SECONDS", 0.0)
  with rows.report_progress(asking.Progress("arc")):
    rows.run_in_batches(
      lambda batch: (batch["x"],),
      Rules.make(make_mesh({"data": 1}, jax.devices()[:1])),
      2,
      [4, 4, 4],
      lambda numbers, _: {"x": np.zeros(len(numbers), np.int32)},
    )
  assert capsys.readouterr().err == "arc: 2 of 3 questions\narc: 3 of 3 questions\n"


def open_decoder(**attributes):
  """Stand in for an opened decoder without limited positions."""
  inputs = types.SimpleNamespace(position=None)
  run = types.SimpleNamespace(model=types.SimpleNamespace(inputs=inputs), batch_size=1)
  return types.SimpleNamespace(
    features={"decoder_target_tokens": [16]},
    run=run,
    vocabulary=vocabularies.load("bytes"),
    forced=(None, None),
    **attributes,
  )


@pytest.mark.parametrize("is_published", [False, True])
def test_only_models_trained_here_read_a_start_token_before_a_question(is_published):
  """Published weights read what their tokenizer puts before a text, here nothing."""
  opened = open_decoder(is_published=is_published)
  prompt_set = questions.PromptSet("f", [questions.Prompt("f:1", [("a", " b")])], "likeliest")
  question = asking.Asker(opened)._encode(prompt_set, prompt_set.prompts[0], 0)
  start = [] if is_published else [vocabularies.start_id(opened.vocabulary)]
  encode = opened.vocabulary.encode
  assert question.pairs == [([*start, *encode("a")], encode(" b"))]


def test_white_space_between_context_and_continuation_is_scored():
  loaded = open_decoder()
  encode = loaded.vocabulary.encode
  context, continuation = prompts.Prompts(loaded, start=False).encode_pair("a b\n ", "c")
  assert context == encode("a b")
  assert continuation == encode("\n c")


def test_a_chat_template_surrounds_the_context_and_not_the_answer():
  loaded = open_decoder()
  context, answer = prompts.Prompts(loaded, template="plain").encode_pair("Where?", " Here")
  vocabulary = loaded.vocabulary
  assert vocabulary.decode(context) == "User: Where?\n\nAssistant:"
  assert context[0] == vocabularies.start_id(vocabulary)
  assert answer == vocabulary.encode("Here")


def test_examples_need_shots(capsys):
  assert few_shot.main(["--workdir=run", "--input=test.jsonl", "--examples=dev.jsonl"]) == 2
  assert "--examples: only with --shots" in capsys.readouterr().err


@pytest.mark.parametrize(
  "flag", ["--epochs=nan", "--epochs=inf", "--rates=1e-5,nan", "--seeds=0", "--shots=-1"]
)
def test_numbers_of_a_suite_must_be_finite_and_positive(flag, capsys):
  assert evaluate.main(["--workdir=run", "--suite=glue", "--questions=test.jsonl", flag]) == 2
  assert "expected finite numbers above 0" in capsys.readouterr().err
