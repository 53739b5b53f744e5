"""Rewards of texts, and the record that travels with a row."""

import sys

import numpy as np
import pytest

from t5x_like import rewards, trust, vocabularies
from t5x_like.data.supervised.chat import Chat
from t5x_like.errors import UserError
from t5x_like.library.judge import Judge
from t5x_like.rewards import exact, model, number


def test_built_in_rewards():
  examples = [{"sum": "42", "other": "x"}] * 3
  assert exact.reward([" 42\n", "042", "x"], examples) == [1.0, 0.0, 1.0]
  texts = ["so it is 1,042.", "#### 42 apples, not 41", "none", "-42"]
  assert number.reward(texts, [{"answer": "2 + 1040 = 1042"}, *[{"answer": 42}] * 3]) == [
    1.0,
    1.0,
    0.0,
    0.0,
  ]
  texts = ["it is 45-3", "a loss: -$1,003.50", "a loss of 3"]  # a minus between numbers is no sign
  assert number.reward(texts, [{"answer": one} for one in (3, -1003.5, -3)]) == [1.0, 1.0, 0.0]


def test_a_record_travels_as_bytes():
  record = {"answer": "vierzig — 40", "tags": ["ü", None]}
  row = rewards.pack_fields(record, 64, "here")
  assert rewards.unpack_fields(np.stack([row, np.zeros_like(row)])) == [record, {}]
  with pytest.raises(
    UserError, match="here: found .* bytes in its fields answer, tags, expected at most 8; raise"
  ):
    rewards.pack_fields(record, 8, "here")


def test_texts_end_before_their_ends():
  vocabulary = vocabularies.load("bytes")
  ids = [*vocabulary.encode("ab"), vocabulary.eos_id, *vocabulary.encode("c")]
  assert rewards.decode_completions(np.array([ids]), vocabulary, (vocabulary.eos_id,)) == ["ab"]


def test_a_function_elsewhere_must_be_named_in_the_command():
  trust.begin_command(())
  with pytest.raises(
    UserError, match="config.objective.reward: found 'os:getcwd', which this command does not name"
  ):
    rewards.find_reward("os:getcwd")


@pytest.mark.parametrize(
  ("value", "words"),
  [
    ("model", "config.objective.reward.workdir: missing; it takes workdir, step, prompt"),
    (
      {"name": "exact", "answer": "sum"},
      "config.objective.reward.answer: unknown key; it takes no arguments",
    ),
  ],
)
def test_arguments_of_a_reward_are_checked(value, words):
  with pytest.raises(UserError, match=words):
    rewards.find_reward(value)


def test_processes_score_together_by_a_reward_model_alone():
  assert rewards.needs_all_processes(
    {"name": "model", "workdir": "runs/reward"}
  ) and not rewards.needs_all_processes("exact")


@pytest.mark.parametrize(("example", "names"), [({"sum": "1"}, "sum"), ({}, "none")])
def test_a_reward_model_needs_the_prompt(example, names):
  words = f"model failed: UserError: found no 'prompt' among {names}; name the prompt's field"
  with pytest.raises(UserError, match=words):
    rewards.reward_texts({"name": "model", "workdir": "none"}, ["a"], [example])


@pytest.fixture
def judge(monkeypatch):
  """A reward model of all texts alike, `judge.asked` by its name, which notes its rows in
  `judge.seen`."""
  judge = object.__new__(Judge)
  seen = []
  vars(judge).update(
    _workdir="runs/reward", _chat=Chat("plain", vocabularies.load("bytes")), _start=0, _longest=99
  )
  vars(judge).update(_run=lambda function, rows, *_: seen.extend(rows) or [(1.0,)] * len(rows))
  vars(judge).update(seen=seen, asked={"name": "model", "workdir": "runs/reward"})
  monkeypatch.setattr(model, "_judge", lambda workdir, step: judge)
  return judge


def test_a_reward_model_reads_a_prompt_that_is_a_conversation(judge):
  prompts = ["Hi!", [{"role": "user", "content": "Hi!"}], [{"role": "usr", "content": "Hi!"}]]
  assert rewards.reward_texts(
    judge.asked, ["a"] * 2, [{"prompt": one} for one in prompts[:2]]
  ).tolist() == [1.0, 1.0]
  assert judge.seen[0] == judge.seen[1]
  with pytest.raises(UserError, match="found role 'usr' in message 0"):
    rewards.reward_texts(judge.asked, ["a"], [{"prompt": prompts[2]}])


def test_a_row_longer_than_a_reward_model_reads_loses_its_beginning(judge, capsys):
  assert rewards.reward_texts(judge.asked, ["a" * 9] * 2, [{"prompt": "Hi!"}] * 2).tolist() == [
    1.0,
    1.0,
  ]
  whole = list(judge.seen)
  judge._longest = 5
  rewards.reward_texts(judge.asked, ["a" * 9], [{"prompt": "Hi!"}])
  assert judge.seen[2:] == [[0, *whole[0][-4:]]]
  rewards.reward_texts(judge.asked, ["a" * 9], [{"prompt": "Hi!"}])
  assert (
    capsys.readouterr().out.count("runs/reward reads 5 tokens; longer rows lose their beginning")
    == 1
  )


@pytest.mark.parametrize(
  ("found", "words"),
  [([1.0], "found shape"), ([1.0, np.nan], "not finite"), (None, "failed"), ("exit", "failed")],
)
def test_a_bad_reward_is_one_line(found, words, monkeypatch):
  monkeypatch.setattr(
    exact, "reward", lambda *_: sys.exit(0) if found == "exit" else found if found else 1 / 0
  )
  with pytest.raises(UserError, match=f"config.objective.reward: exact.*{words}"):
    rewards.reward_texts("exact", ["a", "b"], [{}, {}])


def test_rewards_of_answers_that_are_no_text():
  """Several right answers, and TriviaQA's, are each right; null and empty texts are never."""
  trivia = {"value": "Onion", "aliases": ["Allium cepa"], "type": "WikipediaEntity"}
  for answer, text in (
    (["a", "b"], "b"),
    (trivia, "Allium cepa"),
    (trivia, "Onion"),
    (18.0, "18"),
    (18.0, "18.0"),
    (True, "true"),
  ):
    assert exact.reward([text, str(answer) + "!", ""], [{"answer": answer, "input": ""}] * 3) == [
      1.0,
      0.0,
      0.0,
    ]
  assert exact.reward(["None", ""], [{"answer": None, "id": "x"}] * 2) == [0.0, 0.0]
  assert number.reward(
    ["18", "2"], [{"answer": ["18", "19"]}, {"answer": {"value": "two", "aliases": ["2"]}}]
  ) == [
    1,
    1,
  ]
  with pytest.raises(
    UserError, match="exact failed: .*found no text or number in the fields answer"
  ):
    rewards.reward_texts("exact", ["None"], [{"answer": None}])
  assert rewards.reward_texts("exact", [""], [{}]).tolist() == [
    0.0
  ]  # a row that only fills a batch


def test_rewards_of_numbers_as_people_write_them():
  texts = [".5", "$.25", "−5", "1 000", "1\u202f000,5", "2/5", "1.5e3", "0,5"]
  answers = ["5", "25", "5", "0", "5", "5", "3", "5"]
  assert number.reward(texts, [{"answer": answer} for answer in answers]) == [0.0] * 8
  answers = [0.5, "0.25", -5, "1,000", 1000.5, "0.4", "1500", "0.5"]
  assert number.reward(texts, [{"answer": answer} for answer in answers]) == [1.0] * 8
