"""Evaluators of labelled tasks score what a plain forward pass predicts, on any mesh and batch."""

import dataclasses
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import more
import published
from fine_tuning import FINE_TUNING, fine_tuning
from t5x_like import recipes
from t5x_like.data import loader
from t5x_like.data import task as tasks
from t5x_like.data.supervised.words import character_spans
from t5x_like.decoding.generate import greedy
from t5x_like.decoding.penalties import NoRepeatNgrams
from t5x_like.decoding.sampling import MinLength
from t5x_like.errors import UserError
from t5x_like.evals import EVALUATORS, EvalContext, multiple_choice
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


def make_evaluator(name, folder, devices: int = 8, batch_size: int = 8, extra=(), **arguments):
  """Return (evaluator, parameters, task, parts) of a random model."""
  recipe = T5 if name == "generation" else ENCODER
  flags = [f"task={json.dumps(TEXT)}"] if name == "generation" else fine_tuning(name, folder)
  config = resolve(recipes.load(recipe, [*flags, f"batch_size={batch_size}", *extra]))
  parts = build_parts(config, jax.devices()[:devices])
  task = tasks.build(split="validation", **config.task.to_dict())
  arrays = params.arrays(jax.jit(parts.make_model)(jax.random.key(1)))
  placed = {}
  for key, array in arrays.items():
    placed[key] = jax.device_put(np.asarray(array), parts.state.params[key].sharding)
  context = EvalContext(parts.model, parts.objective, task, None, batch_size, parts.rules)
  spec = {"name": name, **arguments}
  evaluator = EVALUATORS.make("config.evals.x", spec, context=context)
  return evaluator, placed, task, parts


@pytest.mark.parametrize("name", more.beyond(2, ["generation", *FINE_TUNING]))
def test_scores_and_predictions_are_the_same_on_any_devices_and_in_any_batch(name, tmp_path):
  evaluator, arrays, *_ = make_evaluator(name, tmp_path, 1, 5, max_examples=21)
  sharded_evaluator, sharded_arrays, *_ = make_evaluator(name, tmp_path, 8, 16, max_examples=21)
  first = evaluator(arrays)
  second = sharded_evaluator(sharded_arrays)
  assert first.metrics == pytest.approx(second.metrics, rel=1e-6)
  assert first.metrics["examples"] > 0
  assert len(first.predictions) == first.metrics["examples"]
  for row, sharded_row in zip(first.predictions, second.predictions, strict=True):
    assert row["prediction"] == sharded_row["prediction"]
    assert row["input"]
  assert first.samples


@pytest.mark.parametrize("name", ["classification", "tagging"])
def test_predicted_labels_equal_those_of_a_forward_pass_over_full_rows(name, tmp_path):
  evaluator, arrays, task, parts = make_evaluator(name, tmp_path)
  run = jax.jit(lambda batch: params.with_arrays(parts.model, arrays)(batch)["logits"])
  expected = []
  for batch in loader.eval_batches(task, batch_size=48):
    logits = np.asarray(run({n: x for n, x in batch.items() if n != "example_index"}))
    for row in np.flatnonzero(batch["example_index"] >= 0):
      best = np.atleast_1d(logits[row].argmax(-1))
      if name == "tagging":
        best = best[batch["encoder_loss_weights"][row] > 0]
      expected.append([task.classes[i] for i in best])
  result = evaluator(arrays)
  assert [row["prediction"].split() for row in result.predictions] == expected
  is_right = []
  for row in result.predictions:
    pairs = zip(row["target"].split(), row["prediction"].split())
    is_right += [target == prediction for target, prediction in pairs]
  assert result.metrics["accuracy"] == pytest.approx(100 * np.mean(is_right))


@pytest.mark.parametrize("kind", ["", "roberta"])  # their padding ids are 0 and 1
def test_rows_are_cut_to_the_length_of_their_texts(kind, tmp_path):
  extra = [f"task.vocabulary={published.write(tmp_path / kind, kind)}"] if kind else []
  evaluator, *_ = make_evaluator("classification", tmp_path, extra=extra)
  assert evaluator.rows.tokens.shape[1] == 64
  assert {*evaluator.rows._lengths} == {32}


def test_prompts_of_generated_texts_are_the_rows_of_training(tmp_path):
  """The rows of BART's vocabulary begin with <s>, its id 0, and its padding is 1."""
  vocabulary = published.write(tmp_path / "bart", "bart")
  extra = [f"task.vocabulary={vocabulary}", "task.inputs_length=48"]
  evaluator, _, task, _ = make_evaluator("generation", tmp_path, extra=extra, metrics=["exact"])
  (batch,) = loader.eval_batches(task, batch_size=8, max_examples=8)
  assert (batch["encoder_input_tokens"][:, 0] == 0).all()
  assert 1 in batch["encoder_input_tokens"]
  prompts = evaluator._features(evaluator._rows(list(range(8)), 48))
  for name, x in prompts.items():
    np.testing.assert_array_equal(x, batch[name])


def test_generated_texts_with_penalties_equal_greedy_decoding_of_full_rows(tmp_path):
  arguments = {"penalties": {"no_repeat_ngram_size": 1, "min_new_tokens": 3}}
  transforms = (NoRepeatNgrams(1), MinLength(3))
  check_generated_texts(tmp_path, [], "bleu", "bleu", transforms, **arguments)


def test_generated_texts_with_sentinels_equal_greedy_decoding_of_full_rows(tmp_path):
  path = tmp_path / "d.conll"
  path.write_text("".join(f"Ada\tB\nsaw\tO\n{n}\tO\n\n" for n in range(16)))
  source = f"task.source=conll:train={path},validation={path}"
  extra = [source, "task.inputs=tag: {tokens.<*>}", "task.targets={1.<*>}"]
  check_generated_texts(tmp_path, extra, "tags", "accuracy", ())


def check_generated_texts(folder, extra, metric: str, score: str, transforms, **arguments):
  """Compare an evaluator's texts with those of greedy decoding."""
  arguments |= {"metrics": ["exact", metric], "max_examples": 16}
  evaluator, arrays, task, parts = make_evaluator("generation", folder, extra=extra, **arguments)
  (batch,) = loader.eval_batches(task, batch_size=16, max_examples=16)

  @jax.jit
  def decode(arrays, batch):
    model = params.with_arrays(parts.model, arrays)
    return greedy(model, batch, max_length=24, transforms=transforms)

  tokens = decode(arrays, {"encoder_input_tokens": batch["encoder_input_tokens"]})
  eos = task.vocabulary.eos_id
  texts = []
  for row in np.asarray(tokens).tolist():
    ids = row[: row.index(eos)] if eos in row else row
    texts.append(task.vocabulary.decode(ids).strip())
  result = evaluator(arrays)
  assert [row["prediction"] for row in result.predictions] == texts
  assert {"exact_match", score, "empty", "truncated"} <= result.metrics.keys()


def fix_outputs(evaluator, outputs) -> None:
  """Replace the outputs of an evaluator's model."""
  vars(evaluator)["rows"] = _FixedRows(evaluator.rows, outputs)


class _FixedRows:
  """Stands in for the rows of an evaluator and returns fixed logits."""

  def __init__(self, rows, outputs):
    self.tokens = rows.tokens
    self._outputs = outputs

  def __call__(self, arrays):
    return self._outputs


def test_logits_at_the_labels_score_100_with_windows_that_overlap(tmp_path):
  evaluator, arrays, task, _ = make_evaluator(
    "span_qa", tmp_path, extra=("task.length=34", "task.stride=8")
  )
  batches = list(loader.eval_batches(task, batch_size=1))
  assert len(batches) > 144, "no context has several windows"
  outputs = []
  for batch in batches:
    start = np.zeros(34, np.float32)
    end = np.zeros(34, np.float32)
    start[batch["span_start"][0]] = 5.0
    end[batch["span_end"][0]] = 5.0
    outputs.append((start, end))
  fix_outputs(evaluator, outputs)
  result = evaluator(arrays)
  assert result.metrics == {"exact_match": 100.0, "f1": 100.0, "examples": 144}
  gold = [row["target"].split(" / ") for row in result.predictions]
  assert SquadV1()(gold, [row["prediction"] for row in result.predictions])["exact_match"] == 100.0


def test_a_span_counts_only_in_the_window_with_most_context_around_its_first_token(tmp_path):
  """The comma of each context is predicted, though spans at the edges of windows score higher."""
  evaluator, arrays, task, _ = make_evaluator(
    "span_qa", tmp_path, extra=("task.length=34", "task.stride=8")
  )
  outputs = []
  questions = set()
  for window in evaluator.examples:
    logits = np.zeros(34, np.float32)
    spans = zip(window["spans"], window["most_context"])
    for position, (span, has_most_context) in enumerate(spans, window["first"]):
      if not has_most_context:
        logits[position] = 9.0
      elif window["context"][span[0] : span[1]] == ",":
        logits[position] = 2.0
        questions.add(window["question"])
    outputs.append((logits, logits.copy()))
  assert any(not window["most_context"].all() for window in evaluator.examples)
  assert len(questions) == 144
  fix_outputs(evaluator, outputs)
  starts = [row["prediction"][0] for row in evaluator(arrays).predictions]
  assert starts == [","] * 144


def test_the_threshold_of_no_answer_applies_and_the_best_one_is_reported(tmp_path):
  rows = []
  for number in range(16):
    answers = [] if number % 2 else [{"text": "red", "answer_start": 0}]
    row = {"id": str(number), "question": "which?", "context": "red or blue", "answers": answers}
    rows.append(json.dumps(row))
  path = tmp_path / "q.jsonl"
  path.write_text("\n".join(rows))
  extra = (f"task.source=jsonl:train={path},validation={path}",)
  evaluator, arrays, *_ = make_evaluator("span_qa", tmp_path, extra=extra, unanswerable=True)
  outputs = []
  for number, window in enumerate(evaluator.examples):
    start = np.zeros(64, np.float32)
    end = np.zeros(64, np.float32)
    start[window["first"]] = 2.0
    end[window["first"] + 2] = 2.0
    # The logit of no answer is higher where there is none, but below the threshold of 0 everywhere.
    start[0] = 3.0 if number % 2 else 1.0
    outputs.append((start, end))
  fix_outputs(evaluator, outputs)
  metrics = evaluator(arrays).metrics
  assert metrics["exact"] == 50.0
  assert metrics["HasAns_exact"] == 100.0
  assert metrics["NoAns_exact"] == 0.0
  assert metrics["best_exact"] == metrics["best_f1"] == 100.0
  assert metrics["best_f1_thresh"] < 0.5
  lenient = dataclasses.replace(evaluator, null_threshold=-2.0)
  fix_outputs(lenient, outputs)
  assert lenient(arrays).metrics["exact"] == 100.0


@pytest.mark.parametrize("word", ["Broncos,", "naïve", "(1815)", "Łódź", "日本語", "x"])
def test_character_spans_of_bytes_cover_the_word_in_order(word):
  vocabulary = load("bytes")
  ids = vocabulary.encode(word)
  spans = character_spans(word, ids, vocabulary)
  assert len(spans) == len(ids)
  assert spans[0][0] == 0
  assert spans[-1][1] == len(word)
  covered = set()
  for begin, end in spans:
    covered.update(range(begin, end))
  assert covered == set(range(len(word)))
  begins = [begin for begin, _ in spans]
  assert begins == sorted(begins)
  for begin, end in spans:
    assert 0 <= begin < end <= len(word)


@pytest.mark.parametrize(
  "name, flags, arguments, words",
  [
    ("classification", ['model.head={"name": "mlm"}'], {}, "set --config.model.head"),
    (
      "classification",
      ['model.head={"name": "classification", "labels": 3}'],
      {},
      "model.head.labels: found 3.*labels=2",
    ),
    ("classification", [], {"scores": ("acuracy",)}, "expected some of accuracy"),
    ("classification", [], {"ids": ("idx",)}, "'idx'"),
    ("span_qa", [], {"language": "xx"}, "one of ar, de"),
    ("generation", [], {"metrics": ["rogue"]}, "did you mean 'rouge'"),
    ("generation", [], {"penalties": {"min_tokens": 3}}, "penalties.min_tokens: unknown"),
    (
      "generation",
      [],
      {"penalties": {"no_repeat_ngram_size": "3"}},
      "found '3', expected a number",
    ),
    ("tagging", [], {"max_examples": 0}, "max_examples"),
  ],
)
def test_an_impossible_evaluator_is_refused_in_one_line(name, flags, arguments, words, tmp_path):
  with pytest.raises(UserError, match=words) as error:
    make_evaluator(name, tmp_path, extra=flags, **arguments)
  assert "\n" not in str(error.value)


def table_source(folder, labels: list[str]) -> str:
  """Write a text for each label; return the flag of the source."""
  path = folder / "table.tsv"
  path.write_text("text\tlabel\n" + "".join(f"one two\t{label}\n" for label in labels))
  return f"task.source=tsv:train={path},validation={path}"


def test_unlabelled_examples_are_predicted_and_not_scored(tmp_path):
  extra = (table_source(tmp_path, ["-1", "same", "-1"]),)
  evaluator, arrays, task, _ = make_evaluator("classification", tmp_path, extra=extra)
  result = evaluator(arrays)
  assert result.metrics["examples"] == 3
  assert result.metrics["unlabelled"] == 2
  assert result.metrics["accuracy"] in (0.0, 100.0)
  assert [row["target"] for row in result.predictions] == [None, "same", None]
  (batch,) = loader.eval_batches(task, batch_size=4)
  assert batch["example_weights"].tolist() == [0, 1, 0, 0]


def test_choosing_another_option_with_the_text_of_the_right_one_is_wrong():
  task = SimpleNamespace(classes=("0", "1", "2"))
  evaluator = object.__new__(multiple_choice.Evaluator)
  vars(evaluator)["context"] = SimpleNamespace(task=task)
  example = {
    "text": "q",
    "options": ["a", "b", "a"],
    "label": "0",
    "right": [0],
    "answers": ["a"],
    "record": {},
  }
  vars(evaluator)["examples"] = [example, example]
  vars(evaluator)["rows"] = lambda arrays: [
    (np.array([0.0, 1.0, 2.0]),),
    (np.array([2.0, 1.0, 0.0]),),
  ]
  assert evaluator({}).metrics == {"accuracy": 50.0, "examples": 2}
  assert evaluator.metric_names() == ("accuracy", "examples", "unlabelled")
  # Without labelled examples there is no accuracy to select a checkpoint by.
  vars(evaluator)["examples"] = [example | {"answers": []}]
  assert evaluator.metric_names() == ("examples", "unlabelled")


def test_minus_one_is_a_class_where_the_labels_name_it(tmp_path):
  source = table_source(tmp_path, ["-1", "1", "-1"])
  extra = (source, 'task.labels=["1", "-1"]')
  evaluator, arrays, task, _ = make_evaluator("classification", tmp_path, extra=extra)
  result = evaluator(arrays)
  assert "unlabelled" not in result.metrics
  assert [row["target"] for row in result.predictions] == ["-1", "1", "-1"]
  (batch,) = loader.eval_batches(task, batch_size=4)
  assert batch["label"].tolist()[:3] == [1, 0, 1]
  assert batch["example_weights"].tolist() == [1, 1, 1, 0]
  extra = (source, "task.inputs={text}", "task.targets={label}")
  metric = {"name": "labels", "classes": ["1", "-1"]}
  evaluator, *_ = make_evaluator("generation", tmp_path, extra=extra, metrics=[metric])
  assert len(evaluator._gold) == 3


def test_words_beyond_the_row_are_counted_and_scored_as_outside(tmp_path):
  evaluator, arrays, *_ = make_evaluator("tagging", tmp_path, extra=("task.length=12",))
  result = evaluator(arrays)
  assert result.metrics["truncated_words"] > 0
  assert all(len(row["tags"]) == 3 for row in result.predictions)
