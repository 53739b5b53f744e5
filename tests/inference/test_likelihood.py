"""Log-probabilities of continuations equal sums over the model's logits, and answer questions."""

import json
import types

import jax
import numpy as np
import pytest

import json_lines
import published
import tiny
from t5x_like import vocabularies
from t5x_like.architectures.design import Variant
from t5x_like.inference.likelihood import Likelihood
from t5x_like.inference.prompts import Prompts
from t5x_like.interop import hf
from t5x_like.models import gpt
from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.rows import Runner
from tools import few_shot

pytestmark = pytest.mark.runs

V = 384
LONGEST = 40
SIZE = Variant(Dims(embed=16, heads=4, kv_heads=4, head_dim=4, mlp=32, layers=2), gpt.GPT2, V)


@pytest.mark.parametrize("first_id", [None, 4])
def test_a_target_begins_as_in_training_or_as_it_is_forced_to(first_id, tmp_path):
  """BART's targets are `<s> text </s>`; those of mBART begin with their language."""
  vocabulary = vocabularies.load(str(published.write(tmp_path, "bart")))
  side = types.SimpleNamespace(position=None)
  run = types.SimpleNamespace(model=types.SimpleNamespace(encoder_inputs=side, decoder_inputs=side))
  features = {"encoder_input_tokens": [9], "decoder_target_tokens": [9]}
  loaded = types.SimpleNamespace(
    vocabulary=vocabulary, features=features, run=run, forced=(first_id, None)
  )
  inputs, target = Prompts(loaded).encode_pair("the quick", " fox")
  assert inputs == [0, *vocabulary.encode("the quick"), 2]
  assert target == [0 if first_id is None else first_id, *vocabulary.encode("fox"), 2]


@pytest.fixture(scope="module")
def model():
  changes = {"position": {"name": "learned", "length": LONGEST}}
  return tiny.add_noise(jax.jit(tiny.maker(SIZE, family=gpt, design=changes))(jax.random.key(0)))


@pytest.fixture(scope="module")
def likelihood(model):
  rules = Rules.make(make_mesh({"data": -1}))
  run = Runner(jax.eval_shape(lambda: model), rules, params.arrays(model), 8)
  return Likelihood(run, {"decoder_target_tokens": [LONGEST]})


def score_last_tokens(model, row, number):
  """Score the last tokens of a row by the model's logits, without padding.

  Returns: (the sum of their log-probabilities, whether each is the likeliest).
  """
  outputs = model({"decoder_input_tokens": np.asarray([row[:-1]], np.int32)})
  logits = np.asarray(outputs["logits"][0], np.float64)
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  total = 0.0
  is_greedy = True
  for t in range(len(row) - 1 - number, len(row) - 1):
    total += log_p[t, row[t + 1]]
    is_greedy = is_greedy and log_p[t].argmax() == row[t + 1]
  return total, is_greedy


def test_scores_after_contexts_of_any_length_are_the_models(model, likelihood):
  """The longest rows lose the beginning of their context; the last token is scored but not read."""
  generator = np.random.default_rng(0)
  pairs = []
  for context_length, length in ((1, 3), (9, 1), (70, 5), (1, LONGEST)):
    context = generator.integers(0, V, context_length).tolist()
    pairs.append((context, generator.integers(0, V, length).tolist()))
  context = pairs[1][0]
  outputs = model({"decoder_input_tokens": np.asarray([context], np.int32)})
  likeliest = int(np.asarray(outputs["logits"])[0, -1].argmax())
  pairs.append((context, [likeliest]))
  for (context, continuation), score in zip(pairs, likelihood(pairs), strict=True):
    row = [*context, *continuation][-LONGEST - 1 :]
    expected, is_greedy = score_last_tokens(model, row, len(continuation))
    assert score.log_probability == pytest.approx(expected, rel=1e-5)
    assert score.greedy == is_greedy
  assert likelihood(pairs)[-1].greedy


@pytest.mark.parametrize("stride", [None, 7])
def test_every_token_of_a_text_counts_once(model, likelihood, stride):
  ids = np.random.default_rng(1).integers(0, V, 100).tolist()
  text = [0, *ids]
  step = stride or LONGEST
  total = 0.0
  begin = 1
  while begin < len(text):
    end = min(len(text), begin + (LONGEST if begin == 1 else step))
    window = text[max(0, end - LONGEST - 1) : end]
    total += score_last_tokens(model, window, end - begin)[0]
    begin = end
  assert likelihood.rolling_log_probability(ids, 0, stride) == pytest.approx(total, rel=1e-5)


def test_a_published_model_chooses_the_likeliest_answer(model, tmp_path):
  hf.save(model, str(tmp_path / "model"))
  published.write(tmp_path / "model", "gpt2")
  rows = []
  for number in range(6):
    query = " ".join(published.WORDS[number : number + 4])
    rows.append({"query": query, "choices": ["fox", "lazy dog", "wizards"], "gold": 1})
  json_lines.write(tmp_path / "animals.jsonl", rows)
  output = tmp_path / "scores.json"
  files = [f"--input={tmp_path}/animals.jsonl", f"--output={output}"]
  assert few_shot.main([f"--workdir={tmp_path}/model", *files]) == 0
  encode = vocabularies.load(str(tmp_path / "model")).encode
  start = 0
  right = 0
  for row in rows:
    query_length = 1 + len(encode(row["query"]))
    scores = []
    for choice in row["choices"]:
      ids = [start, *encode(f"{row['query']} {choice}")]
      scores.append(score_last_tokens(model, ids, len(ids) - query_length)[0])
    right += np.argmax(scores) == row["gold"]
  accuracy = json.loads(output.read_text())["animals"]["accuracy"]
  assert accuracy == pytest.approx(100 * right / len(rows))


def test_long_contexts_and_answers_lose_their_beginning_and_are_counted(model, tmp_path, capsys):
  hf.save(model, str(tmp_path / "model"))
  published.write(tmp_path / "model", "gpt2")
  fits = " ".join(published.WORDS[:4])
  long = " ".join(published.WORDS[:4] * 30)
  files = {
    "words": [{"context": fits, "continuation": "fox"}, {"context": long, "continuation": "fox"}],
    "spoken": [{"context": fits, "answer": "fox"}, {"context": long, "answer": "fox"}],
    "over": [
      {"query": fits, "choices": choices, "gold": 0} for choices in (["fox"], ["fox", long])
    ],
  }
  for name, rows in files.items():
    json_lines.write(tmp_path / f"{name}.jsonl", rows)
  output = tmp_path / "scores.json"
  command = [
    f"--workdir={tmp_path}/model",
    f"--input={tmp_path}/*.jsonl",
    f"--output={output}",
    "--max_new_tokens=4",
  ]
  assert not few_shot.main(command)
  text = capsys.readouterr().out
  assert f"1 of 2 questions have an answer of more than the {LONGEST} tokens" in text
  scores = json.loads(output.read_text())
  assert scores.keys() == {"words", "spoken", "over"}
  for scores_of_file in scores.values():
    assert scores_of_file["truncated"] == 1
    assert scores_of_file["examples"] == 2


@pytest.mark.parametrize(
  ("second_row", "words"),
  [
    ({"query": "a", "choices": ["b", "c"], "gold": 2}, "found the answer 2, expected one of 0, 1"),
    (
      {"query": "a", "choices": ["b", "c"]},
      "found the keys query, choices, expected query, choices, gold",
    ),
    ({"query": "a", "choices": [], "gold": 0}, "found the choices [], expected at least one"),
    ({"query": 3, "choices": ["b"], "gold": 0}, "query: found a JSON number, expected a string"),
  ],
)
def test_a_row_that_is_no_question_is_named_by_its_line(second_row, words, tmp_path, capsys):
  first_row = {"query": "a", "choices": ["b", "c"], "gold": 1}
  json_lines.write(tmp_path / "letters.jsonl", [first_row, second_row])
  assert few_shot.main([f"--workdir={tmp_path}", f"--input={tmp_path}/letters.jsonl"]) == 2
  error = capsys.readouterr().err.splitlines()[-1]
  assert f"letters.jsonl:2: {words}" in error
