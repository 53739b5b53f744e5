"""Rewards score texts by the record that travels with a row, and report faults in one line."""

import sys

import numpy as np
import pytest

from t5x_like import trust, vocabularies
from t5x_like.contrib.feedback import rewards
from t5x_like.contrib.feedback.rewards import exact, model, number
from t5x_like.data.supervised.chat import Chat
from tests.refusals import refuses


def test_exact_compares_the_stripped_text_with_every_field():
  examples = [{"sum": "42", "other": "x"}] * 3
  assert exact.reward([" 42\n", "042", "x"], examples) == [1.0, 0.0, 1.0]


def test_a_record_travels_as_bytes():
  record = {"answer": "vierzig — 40", "tags": ["ü", None]}
  row = rewards.pack_fields(record, 64, "here")
  assert rewards.unpack_fields(np.stack([row, np.zeros_like(row)])) == [record, {}]
  with refuses("here", "answer, tags", "at most 8"):
    rewards.pack_fields(record, 8, "here")


def test_completions_are_decoded_up_to_the_first_end():
  vocabulary = vocabularies.load("bytes")
  completion = [*vocabulary.encode("ab"), vocabulary.eos_id, *vocabulary.encode("c")]
  ends = (vocabulary.eos_id,)
  assert rewards.decode_completions(np.array([completion]), vocabulary, ends) == ["ab"]


def test_a_function_elsewhere_must_be_named_in_the_command():
  trust.begin_command(())
  with refuses("config.objective.reward", "'os:getcwd'"):
    rewards.find_reward("os:getcwd")


@pytest.mark.parametrize(
  ("value", "words"),
  [
    ("model", ("config.objective.reward.workdir: missing", "workdir, step, prompt")),
    ({"name": "exact", "answer": "sum"}, ("config.objective.reward.answer: unknown key",)),
  ],
)
def test_arguments_of_a_reward_are_checked(value, words):
  with refuses(*words):
    rewards.find_reward(value)


def test_only_a_reward_model_needs_all_processes():
  assert rewards.needs_all_processes({"name": "model", "workdir": "runs/reward"})
  assert not rewards.needs_all_processes("exact")


@pytest.mark.parametrize(("example", "names"), [({"sum": "1"}, "sum"), ({}, "none")])
def test_a_reward_model_needs_the_prompt(example, names):
  with refuses(f"model failed: UserError: found no 'prompt' among {names}"):
    rewards.reward_texts({"name": "model", "workdir": "none"}, ["a"], [example])


REWARD_MODEL = {"name": "model", "workdir": "runs/reward"}


@pytest.fixture
def judge(monkeypatch):
  """Return a reward model that scores every text 1 and notes the rows it reads in `judge.rows`."""
  judge = object.__new__(model.Judge)
  judge.rows = []

  def score_rows(function, rows, *_):
    judge.rows.extend(rows)
    return [(1.0,)] * len(rows)

  judge._workdir = "runs/reward"
  judge._chat = Chat("plain", vocabularies.load("bytes"))
  judge._start = 0
  judge._longest = 99
  judge._run = score_rows
  monkeypatch.setattr(model, "_judge", lambda workdir, step: judge)
  return judge


def test_a_reward_model_reads_a_prompt_that_is_a_conversation(judge):
  conversation = [{"role": "user", "content": "Hi!"}]
  examples = [{"prompt": "Hi!"}, {"prompt": conversation}]
  assert rewards.reward_texts(REWARD_MODEL, ["a", "a"], examples).tolist() == [1.0, 1.0]
  assert judge.rows[0] == judge.rows[1]


def test_a_conversation_of_an_unknown_role_is_refused(judge):
  conversation = [{"role": "usr", "content": "Hi!"}]
  with refuses("'usr'", "message 0"):
    rewards.reward_texts(REWARD_MODEL, ["a"], [{"prompt": conversation}])


def test_a_row_longer_than_a_reward_model_reads_loses_its_beginning(judge, capsys):
  def score_text():
    rewards.reward_texts(REWARD_MODEL, ["a" * 9], [{"prompt": "Hi!"}])
    return judge.rows[-1]

  full_row = score_text()
  judge._longest = 5
  assert score_text() == [0, *full_row[-4:]]
  score_text()
  warning = "runs/reward reads 5 tokens; longer rows lose their beginning"
  assert capsys.readouterr().out.count(warning) == 1


def fail(*_):
  raise ZeroDivisionError


@pytest.mark.parametrize(
  ("reward", "words"),
  [
    (lambda *_: [1.0], "found shape"),
    (lambda *_: [1.0, np.nan], "not finite"),
    (fail, "failed"),
    (lambda *_: sys.exit(0), "failed"),
  ],
)
def test_a_bad_reward_is_one_line(reward, words, monkeypatch):
  monkeypatch.setattr(exact, "reward", reward)
  with refuses("config.objective.reward: exact", words):
    rewards.reward_texts("exact", ["a", "b"], [{}, {}])


TRIVIA = {"value": "Onion", "aliases": ["Allium cepa"], "type": "WikipediaEntity"}


@pytest.mark.parametrize(
  ("answer", "text"),
  [
    (["a", "b"], "b"),
    (TRIVIA, "Allium cepa"),
    (TRIVIA, "Onion"),
    (18.0, "18"),
    (18.0, "18.0"),
    (True, "true"),
  ],
)
def test_exact_takes_any_of_several_answers_and_never_an_empty_text(answer, text):
  examples = [{"answer": answer, "input": ""}] * 3
  assert exact.reward([text, str(answer) + "!", ""], examples) == [1.0, 0.0, 0.0]


def test_a_null_answer_is_never_right():
  assert exact.reward(["None", ""], [{"answer": None, "id": "x"}] * 2) == [0.0, 0.0]


def test_number_takes_any_of_several_answers():
  examples = [{"answer": ["18", "19"]}, {"answer": {"value": "two", "aliases": ["2"]}}]
  assert number.reward(["18", "2"], examples) == [1.0, 1.0]


def test_a_record_without_text_or_number_is_refused():
  with refuses("exact failed", "fields answer"):
    rewards.reward_texts("exact", ["None"], [{"answer": None}])


def test_a_row_that_only_fills_a_batch_scores_zero():
  assert rewards.reward_texts("exact", [""], [{}]).tolist() == [0.0]


@pytest.mark.parametrize(
  ("text", "answer", "wrong_answer"),
  [
    ("so it is 1,042.", "2 + 1040 = 1042", 42),  # the last number counts
    ("#### 42 apples, not 41", 42, 41),  # but the one after the mark
    ("-42", -42, 42),
    ("it is 45-3", 3, -3),  # a minus between numbers is no sign
    ("a loss: -$1,003.50", -1003.5, 1003.5),
    (".5", 0.5, "5"),
    ("$.25", "0.25", "25"),
    ("−5", -5, "5"),
    ("1 000", "1,000", "0"),
    ("1\u202f000,5", 1000.5, "5"),
    ("2/5", "0.4", "5"),
    ("1.5e3", "1500", "3"),
    ("0,5", "0.5", "5"),
  ],
)
def test_number_compares_the_final_number_as_people_write_it(text, answer, wrong_answer):
  assert number.reward([text], [{"answer": answer}]) == [1.0]
  assert number.reward([text], [{"answer": wrong_answer}]) == [0.0]
  assert number.reward(["none"], [{"answer": answer}]) == [0.0]
