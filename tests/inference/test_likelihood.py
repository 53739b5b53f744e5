"""Log-probabilities of continuations against the model's own logits, token by token, and few-shot
questions by them."""

import json
import types

import jax
import numpy as np
import pytest

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


@pytest.mark.parametrize("first", [None, 4])
def test_a_target_begins_as_in_training_or_as_it_is_forced_to(first, tmp_path):
  """BART's are `<s> text </s>`; mBART's begin with their language."""
  vocabulary = vocabularies.load(str(published.write(tmp_path, "bart")))
  side = types.SimpleNamespace(position=None)
  run = types.SimpleNamespace(model=types.SimpleNamespace(encoder_inputs=side, decoder_inputs=side))
  features = {"encoder_input_tokens": [9], "decoder_target_tokens": [9]}
  opened = types.SimpleNamespace(
    vocabulary=vocabulary, features=features, run=run, forced=(first, None)
  )
  quick, fox = (vocabulary.encode(text) for text in ("the quick", "fox"))
  assert Prompts(opened).encode_pair("the quick", " fox") == (
    [0, *quick, 2],
    [0 if first is None else first, *fox, 2],
  )


@pytest.fixture(scope="module")
def model():
  changes = {"position": {"name": "learned", "length": LONGEST}}
  return tiny.add_noise(jax.jit(tiny.maker(SIZE, family=gpt, design=changes))(jax.random.key(0)))


@pytest.fixture(scope="module")
def likelihood(model):
  rules = Rules.make(make_mesh({"data": -1}))
  run = Runner(jax.eval_shape(lambda: model), rules, params.arrays(model), 8)
  return Likelihood(run, {"decoder_target_tokens": [LONGEST]})


def by_hand(model, row, wanted):
  """(sum of log-probabilities, whether all are the likeliest) of the last tokens of a row, without
  padding."""
  logits = np.asarray(
    model({"decoder_input_tokens": np.asarray([row[:-1]], np.int32)})["logits"][0], np.float64
  )
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  places = range(len(row) - 1 - wanted, len(row) - 1)
  return sum(log_p[t, row[t + 1]] for t in places), all(
    log_p[t].argmax() == row[t + 1] for t in places
  )


def test_continuations_after_contexts_of_any_length(model, likelihood):
  """The longest rows lose the beginning of their context; the last token is asked for, but never
  read."""
  draw = np.random.default_rng(0)
  pairs = [
    (draw.integers(0, V, c).tolist(), draw.integers(0, V, n).tolist())
    for c, n in ((1, 3), (9, 1), (70, 5))
  ]
  pairs.append((draw.integers(0, V, 1).tolist(), draw.integers(0, V, LONGEST).tolist()))
  likeliest = np.asarray(
    model({"decoder_input_tokens": np.asarray([pairs[1][0]], np.int32)})["logits"]
  )[0, -1].argmax()
  pairs.append((pairs[1][0], [int(likeliest)]))
  for (context, continuation), found in zip(pairs, likelihood(pairs), strict=True):
    row = [*context, *continuation][-LONGEST - 1 :]
    expected, greedy = by_hand(model, row, len(continuation))
    assert found.log_probability == pytest.approx(expected, rel=1e-5) and found.greedy == greedy
  assert likelihood(pairs)[-1].greedy


@pytest.mark.parametrize("stride", [None, 7])
def test_every_token_of_a_text_counts_once(model, likelihood, stride):
  ids = np.random.default_rng(1).integers(0, V, 100).tolist()
  text = [0, *ids]
  step = stride or LONGEST
  total = 0.0
  past = 1
  while past < len(text):
    end = min(len(text), past + (LONGEST if past == 1 else step))
    total += by_hand(model, text[max(0, end - LONGEST - 1) : end], end - past)[0]
    past = end
  assert likelihood.rolling_log_probability(ids, 0, stride) == pytest.approx(total, rel=1e-5)


def test_questions_are_asked_of_a_published_model(model, tmp_path):
  """A Hugging Face directory as it is: a choice by likelihood, as counted by hand."""
  hf.save(model, str(tmp_path / "model"))
  published.write(tmp_path / "model", "gpt2")
  rows = [
    {
      "query": " ".join(published.WORDS[n : n + 4]),
      "choices": ["fox", "lazy dog", "wizards"],
      "gold": 1,
    }
    for n in range(6)
  ]
  (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  output = tmp_path / "scores.json"
  assert not few_shot.main(
    [f"--workdir={tmp_path}/model", f"--input={tmp_path}/asked.jsonl", f"--output={output}"]
  )
  from t5x_like import vocabularies

  encode = vocabularies.load(str(tmp_path / "model")).encode
  start = 0
  right = 0
  for row in rows:
    before = [start, *encode(row["query"])]
    whole = [[start, *encode(f"{row['query']} {choice}")] for choice in row["choices"]]
    right += (
      np.argmax([by_hand(model, one, len(one) - len(before))[0] for one in whole]) == row["gold"]
    )
  assert json.loads(output.read_text())["asked"]["accuracy"] == pytest.approx(
    100 * right / len(rows)
  )


def test_long_contexts_are_counted_and_other_files_go_on(model, tmp_path, capsys):
  """Of a file with an answer that is longer than the model reads nothing is scored; a wrong row
  stops before all."""
  hf.save(model, str(tmp_path / "model"))
  published.write(tmp_path / "model", "gpt2")
  fits = " ".join(published.WORDS[:4])
  long = " ".join(published.WORDS[:4] * 30)
  files = {
    "words": [{"context": fits, "continuation": "fox"}, {"context": long, "continuation": "fox"}],
    "spoken": [{"context": fits, "answer": "fox"}, {"context": long, "answer": "fox"}],
    "over": [{"query": fits, "choices": ["fox", long], "gold": 0}],
  }
  for name, rows in files.items():
    (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  output = tmp_path / "scores.json"
  command = [
    f"--workdir={tmp_path}/model",
    f"--input={tmp_path}/*.jsonl",
    f"--output={output}",
    "--max_new_tokens=4",
  ]
  assert few_shot.main(command) == 2
  error = capsys.readouterr().err.splitlines()[-1]
  assert (
    "1 of 3 files left out" in error
    and "over.jsonl:1: an answer has" in error
    and (f"at most {LONGEST}") in error
  )
  found = json.loads(output.read_text())
  assert found.keys() == {"words", "spoken"} and [one["truncated"] for one in found.values()] == [
    1,
    1,
  ]
  assert [one["examples"] for one in found.values()] == [2, 2]


@pytest.mark.parametrize(
  ("second", "words"),
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
def test_a_row_that_cannot_be_asked_is_named(second, words, tmp_path, capsys):
  rows = [{"query": "a", "choices": ["b", "c"], "gold": 1}, second]
  (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  assert few_shot.main([f"--workdir={tmp_path}", f"--input={tmp_path}/asked.jsonl"]) == 2
  error = capsys.readouterr().err.splitlines()[-1]
  assert f"asked.jsonl:2: {words}" in error
