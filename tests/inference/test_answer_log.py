"""Answers that were saved are not asked again, and a damaged file loses at most its last line."""

import dataclasses
import json
import types

import pytest

import json_lines
from t5x_like.errors import UserError
from t5x_like.inference import asking, questions
from t5x_like.inference.answer_log import AnswerLog, LogError, SavedAnswer
from t5x_like.inference.likelihood import ContinuationScore


class Killed(Exception):
  pass


class CountingModel:
  """Stands in for `Prompts` and its likelihood; counts the questions that it is asked.

  Args:
    blocks: the number of blocks that it answers before it is killed.
  """

  start_id = 0
  longest = 512
  longest_answer = None
  is_encoder_decoder = False

  def __init__(self, blocks: int = 1_000):
    self.likelihood = self
    self.asked: list[tuple] = []
    self._blocks = blocks

  def encode(self, text, special=True):
    return [ord(character) for character in text]

  def encode_pair(self, context, continuation):
    return self.encode(context), self.encode(continuation)

  def padded_length(self, context, continuation):
    return -(-(len(context) + len(continuation)) // 4) * 4

  def windows(self, ids, start, stride):
    return [([start], ids)]

  def __call__(self, pairs, row_length):
    if not self._blocks:
      raise Killed
    self._blocks -= 1
    self.asked += [(tuple(context), tuple(ids)) for context, ids in pairs]
    assert all(len(context) + len(ids) <= row_length for context, ids in pairs)
    return [ContinuationScore(-float(sum(ids) % 7) - len(context), True) for context, ids in pairs]

  def generate(self, contexts, new_tokens):
    if not self._blocks:
      raise Killed
    self._blocks -= 1
    self.asked += [(tuple(context), new_tokens) for context in contexts]
    return ["5"] * len(contexts), [False] * len(contexts), [True] * len(contexts)


def build_asker(model, log, fingerprint="model", block_rows=8):
  asker = object.__new__(asking.Asker)
  asker._prompts = model
  asker._block_rows = block_rows
  asker._log = log
  asker._fingerprint = fingerprint
  return asker


ROWS = {
  "choices": [
    {"query": f"Q{n}" + "x" * (n % 11), "choices": ["yes", f"no {n}", "so"][: 2 + n % 2], "gold": 0}
    for n in range(40)
  ],
  "answers": [{"context": f"Q{n}" + "x" * (n % 11), "answer": n} for n in range(40)],
  "texts": [{"text": f"Some words {n}"} for n in range(40)],
}


def read_prompts(folder, kind: str) -> questions.PromptSet:
  json_lines.write(folder / f"{kind}.jsonl", ROWS[kind])
  options = questions.Options(max_new_tokens=4 if kind == "answers" else None)
  file_questions = questions.read_questions(str(folder / f"{kind}.jsonl"))
  return questions.build_prompts(file_questions, options)


@pytest.mark.parametrize("kind", ROWS)
def test_a_killed_evaluation_asks_no_question_twice_and_ends_with_the_same_rows(kind, tmp_path):
  prompt_set = read_prompts(tmp_path, kind)
  whole = CountingModel()
  expected = build_asker(whole, None)(prompt_set)
  asked = []
  kills = 0
  for blocks in (0, 1, 3, 1, 2, 1_000):
    model = CountingModel(blocks)
    try:
      results = build_asker(model, AnswerLog(tmp_path / "log.jsonl"))(prompt_set)
    except Killed:
      kills += 1
    asked += model.asked
  assert kills >= 3
  assert len(asked) == len(set(asked)) == len(whole.asked)
  assert results.rows_NC.tolist() == expected.rows_NC.tolist()
  assert results.metrics == expected.metrics
  assert results.intervals == expected.intervals
  again = CountingModel(0)
  final = build_asker(again, AnswerLog(tmp_path / "log.jsonl"))(prompt_set)
  assert final.num_asked == 0
  assert final.metrics == expected.metrics


def test_equal_questions_of_a_file_are_asked_once(tmp_path):
  json_lines.write(tmp_path / "q.jsonl", [ROWS["choices"][0]] * 5)
  model = CountingModel()
  prompt_set = questions.build_prompts(
    questions.read_questions(str(tmp_path / "q.jsonl")), questions.Options()
  )
  results = build_asker(model, AnswerLog(tmp_path / "log.jsonl"))(prompt_set)
  assert len(model.asked) == 2
  assert results.metrics["examples"] == 5


@pytest.mark.parametrize("change", ["fingerprint", "longest", "prompt", "max_new_tokens"])
def test_answers_of_another_model_prompt_or_setting_do_not_count(change, tmp_path):
  kind = "answers" if change == "max_new_tokens" else "choices"
  prompt_set = read_prompts(tmp_path, kind)
  build_asker(CountingModel(), AnswerLog(tmp_path / "log.jsonl"))(prompt_set)
  model = CountingModel()
  fingerprint = "model"
  if change == "fingerprint":
    fingerprint = "another"
  elif change == "longest":
    model.longest = 256
  elif change == "prompt":
    rows = [row | {"query": f"Say: {row['query']}"} for row in ROWS["choices"]]
    json_lines.write(tmp_path / "choices.jsonl", rows)
    file_questions = questions.read_questions(str(tmp_path / "choices.jsonl"))
    prompt_set = questions.build_prompts(file_questions, questions.Options())
  else:
    prompt_set = dataclasses.replace(prompt_set, max_new_tokens=5)
  log = AnswerLog(tmp_path / "log.jsonl")
  assert build_asker(model, log, fingerprint)(prompt_set).num_asked == 40


def test_a_torn_last_line_is_dropped(tmp_path):
  path = tmp_path / "answers.jsonl"
  AnswerLog(path).append([SavedAnswer("a", "q:1", 1), SavedAnswer("b", "q:2", 2)])
  whole = path.read_bytes()
  for end in range(len(whole.splitlines(keepends=True)[0]), len(whole)):
    path.write_bytes(whole[:end])
    log = AnswerLog(path)
    assert log.recall(["a", "b"]) == {"a": 1}
    log.append([SavedAnswer("c", "q:3", 3)])
    assert AnswerLog(path).recall(["a", "b", "c"]) == {"a": 1, "c": 3}
    assert all(json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize(
  "line", ["{}", "[]", "nothing", '{"key": "a", "where": "q:1"}', '{"key": 1, "other": 2}', "\x00"]
)
def test_a_damaged_line_before_the_end_is_refused_in_one_line(line, tmp_path):
  path = tmp_path / "answers.jsonl"
  AnswerLog(path).append([SavedAnswer("a", "q:1", 1)])
  content = path.read_text()
  path.write_text(f"{content}{line}\n{content}")
  with pytest.raises(UserError) as error:
    AnswerLog(path)
  assert str(error.value).startswith(f"{path}:2: found no saved answer")
  assert "\n" not in str(error.value)
  assert path.read_text() == f"{content}{line}\n{content}"


def test_a_log_that_cannot_be_written_ends_the_evaluation(tmp_path):
  log = AnswerLog(tmp_path / "file" / "log.jsonl")
  (tmp_path / "file").write_text("")
  with pytest.raises(LogError, match="file/log.jsonl: answers cannot be written: "):
    build_asker(CountingModel(), log)(read_prompts(tmp_path, "choices"))


def test_a_score_that_is_not_finite_is_saved_and_never_the_likeliest(tmp_path):
  class BrokenModel(CountingModel):
    def __call__(self, pairs, row_length):
      return [ContinuationScore(float("nan"), False), ContinuationScore(-9.0, False)]

  json_lines.write(tmp_path / "q.jsonl", [{"query": "Q", "choices": ["a", "b"], "gold": 1}])
  prompt_set = questions.build_prompts(
    questions.read_questions(str(tmp_path / "q.jsonl")), questions.Options()
  )
  for model in (BrokenModel(), CountingModel(0)):
    log = AnswerLog(tmp_path / "log.jsonl")
    assert build_asker(model, log)(prompt_set).metrics["accuracy"] == 100


def test_the_parameters_of_a_model_have_a_fingerprint_of_every_bit():
  import jax.numpy as jnp
  from ml_collections import ConfigDict

  from t5x_like import vocabularies
  from t5x_like.library.model import Model

  def fingerprint(table, norm: float = 1e-6) -> str:
    model = object.__new__(Model)
    model._source = types.SimpleNamespace(config=ConfigDict({"model": {"norm_epsilon": norm}}))
    model.__dict__["_restored"] = (0, types.SimpleNamespace(arrays={"table": jnp.asarray(table)}))
    model.vocabulary = vocabularies.load("bytes")
    model.ends = (1,)
    model.forced = (None, None)
    return model.fingerprint

  assert fingerprint([1.0, 2.0]) == fingerprint([1.0, 2.0])
  others = {fingerprint([2.0, 1.0]), fingerprint([1.0, 2.0000002]), fingerprint([1.0, 2.0], 1e-5)}
  assert len(others | {fingerprint([1.0, 2.0])}) == 4
