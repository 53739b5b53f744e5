"""Evaluators of labelled tasks: against independent replays of the same outputs, on every kind of
mesh and batch."""

import json

import jax
import numpy as np
import pytest

import more
import published
from fine_tuning import FINE_TUNING, fine_tuning
from t5x_like import evals, recipes, slots
from t5x_like.data import loader
from t5x_like.data import task as tasks
from t5x_like.data.supervised.words import character_spans
from t5x_like.decoding.generate import greedy
from t5x_like.decoding.penalties import NoRepeatNgrams
from t5x_like.decoding.sampling import MinLength
from t5x_like.errors import UserError
from t5x_like.evals import EvalContext, multiple_choice
from t5x_like.metrics.squad import SquadV1
from t5x_like.nn import params
from t5x_like.training.build import build_parts
from t5x_like.training.resolve import resolve
from t5x_like.vocabularies import load

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]
ENCODER = "tests/recipes/nano_encoder.py"
T5 = "tests/recipes/nano.py"
TEXT = {
  "name": "text_to_text",
  "inputs": "reverse: {text}",
  "targets": "{reversed}",
  "source": "builtin",
  "inputs_length": 64,
  "targets_length": 24,
  "packed": False,
  "too_long": "truncate",
}


def made(name: str, folder, devices: int = 8, batch_size: int = 8, extra=(), **arguments):
  """(evaluator, parameters, task, parts)."""
  recipe = T5 if name == "generation" else ENCODER
  flags = [f"task={json.dumps(TEXT)}"] if name == "generation" else fine_tuning(name, folder)
  config = resolve(recipes.load(recipe, [*flags, f"batch_size={batch_size}", *extra]))
  parts = build_parts(config, jax.devices()[:devices])
  task = tasks.build(split="validation", **config.task.to_dict())
  arrays = params.arrays(jax.jit(parts.make_model)(jax.random.key(1)))
  placed = {
    n: jax.device_put(np.asarray(a), parts.state.params[n].sharding) for n, a in arrays.items()
  }
  setting = EvalContext(parts.model, parts.objective, task, None, batch_size, parts.rules)
  return (
    slots.make("config.evals.x", {"name": name, **arguments}, evals, "Evaluator", context=setting),
    placed,
    task,
    parts,
  )


@pytest.mark.parametrize("name", more.beyond(2, ["generation", *FINE_TUNING]))
def test_scores_and_predictions_are_the_same_on_eight_devices_and_one_and_in_any_batch(
  name, tmp_path
):
  most = {"max_examples": 21}
  one, alone, *_ = made(name, tmp_path, devices=1, batch_size=5, **most)
  eight, sharded, *_ = made(name, tmp_path, devices=8, batch_size=16, **most)
  first = one(alone)
  second = eight(sharded)
  assert first.metrics == pytest.approx(second.metrics, rel=1e-6) and first.metrics["examples"] > 0
  assert len(first.predictions) == first.metrics["examples"]
  assert [row["prediction"] for row in first.predictions] == [
    row["prediction"] for row in second.predictions
  ]
  assert first.samples and all(row["input"] for row in first.predictions)


@pytest.mark.parametrize("name", ["classification", "tagging"])
def test_labels_are_those_of_a_forward_pass_over_whole_rows(name, tmp_path):
  evaluator, arrays, task, parts = made(name, tmp_path)
  run = jax.jit(lambda batch: params.with_arrays(parts.model, arrays)(batch)["logits"])
  found = []
  for batch in loader.eval_batches(task, batch_size=48):
    logits = np.asarray(run({n: x for n, x in batch.items() if n != "example_index"}))
    for row in np.flatnonzero(batch["example_index"] >= 0):
      held = batch["encoder_loss_weights"][row] > 0 if name == "tagging" else slice(None)
      best = logits[row].argmax(-1)
      found.append([task.classes[i] for i in (best[held] if name == "tagging" else [best])])
  result = evaluator(arrays)
  assert [row["prediction"].split() for row in result.predictions] == found
  right = [
    g == p
    for row in result.predictions
    for g, p in zip(row["target"].split(), row["prediction"].split())
  ]
  assert result.metrics["accuracy"] == pytest.approx(100 * np.mean(right))


@pytest.mark.parametrize("kind", ["", "roberta"])  # whose padding is 0, and 1
def test_rows_are_cut_to_the_length_of_their_texts(kind, tmp_path):
  extra = [f"task.vocabulary={published.write(tmp_path / kind, kind)}"] if kind else []
  evaluator, *_ = made("classification", tmp_path, extra=extra)
  assert evaluator._rows.tokens.shape[1] == 64 and {*evaluator._rows._lengths} == {32}


def test_prompts_of_generated_texts_are_the_rows_of_training(tmp_path):
  """Of BART's vocabulary too, whose rows begin with <s>, its id 0, and whose padding is 1."""
  vocabulary = published.write(tmp_path / "bart", "bart")
  extra = [f"task.vocabulary={vocabulary}", "task.inputs_length=48"]
  evaluator, _, task, _ = made("generation", tmp_path, extra=extra, metrics=["exact"])
  (batch,) = loader.eval_batches(task, batch_size=8, max_examples=8)
  assert (batch["encoder_input_tokens"][:, 0] == 0).all() and 1 in batch["encoder_input_tokens"]
  prompts = evaluator._features(evaluator._rows(list(range(8)), 48))
  assert all(np.array_equal(x, batch[name]) for name, x in prompts.items())


@pytest.mark.parametrize("marked", [False, True])
def test_generated_texts_are_those_of_greedy_decoding_of_whole_rows(marked, tmp_path):
  (tmp_path / "d.conll").write_text("".join(f"Ada\tB\nsaw\tO\n{n}\tO\n\n" for n in range(16)))
  source = f"conll:train={tmp_path}/d.conll,validation={tmp_path}/d.conll"
  fields = {"source": source, "inputs": "tag: {tokens.<*>}", "targets": "{1.<*>}"}
  extra = [f"task.{name}={value}" for name, value in fields.items()] if marked else []
  metrics = ["exact", "tags" if marked else "bleu"]
  penalties = {} if marked else {"no_repeat_ngram_size": 1, "min_new_tokens": 3}
  given = {"metrics": metrics, "max_examples": 16, "penalties": penalties}
  evaluator, arrays, task, parts = made("generation", tmp_path, extra=extra, **given)
  (batch,) = loader.eval_batches(task, batch_size=16, max_examples=16)
  options = {"max_length": 24, "transforms": () if marked else (NoRepeatNgrams(1), MinLength(3))}
  decode = jax.jit(
    lambda tokens: greedy(params.with_arrays(parts.model, arrays), tokens, **options)
  )
  tokens = np.asarray(decode({"encoder_input_tokens": batch["encoder_input_tokens"]}))
  eos = task.vocabulary.eos_id
  texts = [
    task.vocabulary.decode(row[: row.index(eos)] if eos in row else row).strip()
    for row in tokens.tolist()
  ]
  result = evaluator(arrays)
  assert [row["prediction"] for row in result.predictions] == texts
  assert {
    "exact_match",
    "accuracy" if marked else "bleu",
    "empty",
    "truncated",
  } <= result.metrics.keys()


class _Fixed:
  """Stands in for the rows of an evaluator: the logits of a model that knows the answers, or that
  knows nothing."""

  def __init__(self, rows, outputs):
    self.tokens = rows.tokens
    self._outputs = outputs

  def __call__(self, arrays):
    return self._outputs


def test_a_model_that_points_at_the_answers_gets_them_right_from_any_window(tmp_path):
  """The labels of the rows as logits: every answer is found again as text, with windows that
  overlap."""
  evaluator, arrays, task, _ = made("span_qa", tmp_path, extra=("task.length=34", "task.stride=8"))
  batches = list(loader.eval_batches(task, batch_size=1))
  assert len(batches) > 144, "no context has several windows"
  outputs = []
  for batch in batches:
    start, end = np.zeros((2, 34), np.float32)
    start[batch["span_start"][0]], end[batch["span_end"][0]] = 5.0, 5.0
    outputs.append((start, end))
  evaluator._rows = _Fixed(evaluator._rows, outputs)
  result = evaluator(arrays)
  assert result.metrics == {"exact_match": 100.0, "f1": 100.0, "examples": 144}
  gold = [row["target"].split(" / ") for row in result.predictions]
  assert SquadV1()(gold, [row["prediction"] for row in result.predictions])["exact_match"] == 100.0


def test_a_span_counts_only_in_the_window_with_most_context_around_its_first_token(tmp_path):
  evaluator, arrays, task, _ = made("span_qa", tmp_path, extra=("task.length=34", "task.stride=8"))
  outputs = []
  expected = {}
  for window in evaluator._windows:
    start, end = np.zeros((2, 34), np.float32)
    for place, (span, most) in enumerate(zip(window["spans"], window["most_context"])):
      if not most:  # the likeliest of all, seen at the edge of its window
        start[window["first"] + place] = end[window["first"] + place] = 9.0
      elif window["context"][span[0] : span[1]] == ",":
        start[window["first"] + place] = end[window["first"] + place] = 2.0
        expected[window["question"]] = ","
    outputs.append((start, end))
  assert (
    any(not window["most_context"].all() for window in evaluator._windows) and len(expected) == 144
  )
  evaluator._rows = _Fixed(evaluator._rows, outputs)
  starts = [row["prediction"][0] for row in evaluator(arrays).predictions]
  assert starts == list(expected.values())


def test_no_answer_is_predicted_above_the_threshold_and_the_best_one_is_found(tmp_path):
  rows = [
    {"id": str(n), "question": "which?", "context": "red or blue", "answers": a}
    for n, a in enumerate([[{"text": "red", "answer_start": 0}], []] * 8)
  ]
  path = tmp_path / "q.jsonl"
  path.write_text("\n".join(map(json.dumps, rows)))
  evaluator, arrays, task, _ = made(
    "span_qa",
    tmp_path,
    extra=(f"task.source=jsonl:train={path},validation={path}",),
    unanswerable=True,
  )
  outputs = []
  for n, window in enumerate(evaluator._windows):
    start, end = np.zeros((2, 64), np.float32)
    start[window["first"]], end[window["first"] + 2] = 2.0, 2.0
    # surer of no answer where there is none, but never sure enough
    start[0] = 3.0 if n % 2 else 1.0
    outputs.append((start, end))
  evaluator._rows = _Fixed(evaluator._rows, outputs)
  found = evaluator(arrays).metrics
  assert (found["exact"], found["HasAns_exact"], found["NoAns_exact"]) == (50.0, 100.0, 0.0)
  assert found["best_exact"] == found["best_f1"] == 100.0 and found["best_f1_thresh"] < 0.5
  evaluator._threshold = -2.0
  assert evaluator(arrays).metrics["exact"] == 100.0


@pytest.mark.parametrize("word", ["Broncos,", "naïve", "(1815)", "Łódź", "日本語", "x"])
def test_tokens_know_their_place_in_the_word(word):
  vocabulary = load("bytes")
  ids = vocabulary.encode(word)
  spans = character_spans(word, ids, vocabulary)
  assert len(spans) == len(ids) and (spans[0][0], spans[-1][1]) == (0, len(word))
  assert {place for a, b in spans for place in range(a, b)} == set(range(len(word)))
  for n, (begin, past) in enumerate(spans):  # a token is within the characters that its bytes spell
    assert word[begin:past] and begin < past and (n == 0 or begin >= spans[n - 1][0])


def refusal(name, tmp_path, *extra, **arguments) -> str:
  with pytest.raises(UserError) as error:
    made(name, tmp_path, extra=extra, **arguments)
  assert "\n" not in str(error.value)
  return str(error.value)


def test_what_cannot_be_scored_is_refused_before_training(tmp_path):
  assert "set --config.model.head" in refusal(
    "classification", tmp_path, 'model.head={"name": "mlm"}'
  )
  three = refusal("classification", tmp_path, 'model.head={"name": "classification", "labels": 3}')
  assert "model.head.labels: found 3" in three and "labels=2" in three
  assert "expected some of accuracy" in refusal("classification", tmp_path, scores=("acuracy",))
  assert "'idx'" in refusal("classification", tmp_path, ids=("idx",))
  assert "one of ar, de" in refusal("span_qa", tmp_path, language="xx")
  assert "did you mean 'rouge'" in refusal("generation", tmp_path, metrics=["rogue"])
  assert "penalties.min_tokens: unknown" in refusal(
    "generation", tmp_path, penalties={"min_tokens": 3}
  )
  assert "found '3', expected a number" in refusal(
    "generation", tmp_path, penalties={"no_repeat_ngram_size": "3"}
  )
  with pytest.raises(UserError, match="max_examples"):
    made("tagging", tmp_path, max_examples=0)


def test_unlabelled_examples_are_predicted_and_not_scored(tmp_path):
  (tmp_path / "test.tsv").write_text(
    "text\tlabel\n" + "one two\t-1\nthree three\tsame\nfour four\t-1\n"
  )
  evaluator, arrays, task, _ = made(
    "classification",
    tmp_path,
    extra=(f"task.source=tsv:train={tmp_path}/test.tsv,validation={tmp_path}/test.tsv",),
  )
  result = evaluator(arrays)
  assert result.metrics["examples"] == 3 and result.metrics["unlabelled"] == 2
  assert result.metrics["accuracy"] in (0.0, 100.0) and [
    r["target"] for r in result.predictions
  ] == [
    None,
    "same",
    None,
  ]
  (batch,) = loader.eval_batches(task, batch_size=4)
  assert batch["example_weights"].tolist() == [0, 1, 0, 0]


def test_an_option_with_the_text_of_the_right_one_is_wrong():
  evaluator = object.__new__(multiple_choice.Evaluator)
  evaluator._scores = ("accuracy",)
  evaluator._ids = ()
  evaluator._names = ("0", "1", "2")
  example = {
    "text": "q",
    "options": ["a", "b", "a"],
    "label": "0",
    "right": [0],
    "answers": ["a"],
    "record": {},
  }
  evaluator._examples = [example, example]
  evaluator._rows = lambda arrays: [(np.array([0.0, 1.0, 2.0]),), (np.array([2.0, 1.0, 0.0]),)]
  assert evaluator({}).metrics == {"accuracy": 50.0, "examples": 2}
  assert evaluator.metric_names() == ("accuracy", "examples", "unlabelled")
  # as a selection's metric, the score is then refused at the start
  evaluator._examples = [example | {"answers": []}]
  assert evaluator.metric_names() == ("examples", "unlabelled")


def test_minus_one_is_a_class_where_it_is_named(tmp_path):
  (tmp_path / "signs.tsv").write_text(
    "text\tlabel\n" + "one two\t-1\nthree three\t1\nfour four\t-1\n"
  )
  where = f"task.source=tsv:train={tmp_path}/signs.tsv,validation={tmp_path}/signs.tsv"
  evaluator, arrays, task, _ = made(
    "classification", tmp_path, extra=(where, 'task.labels=["1", "-1"]')
  )
  result = evaluator(arrays)
  assert "unlabelled" not in result.metrics and [row["target"] for row in result.predictions] == [
    "-1",
    "1",
    "-1",
  ]
  (batch,) = loader.eval_batches(task, batch_size=4)
  assert batch["label"].tolist()[:3] == [1, 0, 1] and batch["example_weights"].tolist() == [
    1,
    1,
    1,
    0,
  ]
  extra = (where, "task.inputs={text}", "task.targets={label}")
  metric = {"name": "labels", "classes": ["1", "-1"]}
  assert len(made("generation", tmp_path, extra=extra, metrics=[metric])[0]._scored) == 3


def test_words_beyond_the_row_are_counted_and_scored_as_outside(tmp_path):
  evaluator, arrays, *_ = made("tagging", tmp_path, extra=("task.length=12",))
  found = evaluator(arrays)
  assert found.metrics["truncated_words"] > 0
  assert all(len(row["tags"]) == 3 for row in found.predictions)
