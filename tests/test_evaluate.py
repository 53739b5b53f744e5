"""Evaluation covers every example once in any batch size, and all commands give the same scores."""

import collections
import inspect
import json
import math

import numpy as np
import pytest

import more
from t5x_like import evals, evaluate, predict, slots, train, vocabularies
from t5x_like.abstract_model import build_objective
from t5x_like.config import Instance
from t5x_like.data import loader
from t5x_like.data import task as tasks
from t5x_like.evals import EVALUATORS, EvalContext, loss, span_infilling
from t5x_like.inference import generation
from t5x_like.report.writer import read_metrics
from t5x_like.training.open_with_recipe import open_with_recipe
from tests import topics
from tests.runs import NANO

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]


@pytest.fixture(scope="module")
def restored(trained):
  """Return (parts, task, arrays) of the finished run."""
  run = open_with_recipe(str(trained), NANO, [])
  task = tasks.build(split="validation", **run.config.task.to_dict())
  return run, task, run.restore()[1]


def make_context(restored, batch_size: int, rows=None) -> EvalContext:
  parts, task, _ = restored

  def batches(max_examples):
    return loader.eval_batches(task, batch_size=batch_size, rows=rows, max_examples=max_examples)

  return EvalContext(
    parts.model, build_objective(parts.config), task, batches, batch_size, parts.rules
  )


def targets(task) -> np.ndarray:
  """Return the target tokens with weight of all examples."""
  examples = list(loader.eval_batches(task, batch_size=1))
  assert len(examples) == task.num_examples
  tokens = []
  for example in examples:
    tokens.append(example["decoder_target_tokens"][example["decoder_loss_weights"] > 0])
  return np.concatenate(tokens)


# tested in evals/test_labelled.py
LABELLED = {"classification", "generation", "multiple_choice", "span_qa", "tagging"}
# tested in evals/test_image_evaluators.py, training/test_image_text_runs.py and contrib/
IMAGES = {"image_classification", "few_shot", "knn", "retrieval", "zero_shot", "detection"}
# tested in inference/test_embedding.py, evals/ and contrib/
ELSEWHERE = {"embedding", "samples", "questions"}
ELSEWHERE |= topics.cases("EVALUATORS_TESTED_ELSEWHERE").keys()
ELSEWHERE |= topics.cases("EVALUATORS_OF_RUNS").keys()


@pytest.mark.parametrize("name", sorted({*slots.names(evals)} - LABELLED - IMAGES - ELSEWHERE))
def test_every_evaluator_finds_the_same_in_batches_of_any_size(name, restored):
  """The last batch has rows of padding."""
  *_, arrays = restored

  def evaluate_in_batches(batch_size):
    spec = {"name": name, "max_examples": 12}
    context = make_context(restored, batch_size)
    return EVALUATORS.make("config.evals", spec, context=context)(arrays)

  small = evaluate_in_batches(8)
  large = evaluate_in_batches(16)
  assert small.metrics
  assert small.metrics == pytest.approx(large.metrics, rel=1e-5)
  assert small.samples == large.samples


@pytest.mark.parametrize("batch_size", more.beyond(1, [40, 24, 8]))
def test_every_example_counts_once_whatever_the_batch_size(batch_size, restored):
  _, task, arrays = restored
  assert task.num_examples % 24 and task.num_examples % 40, "no tail to test with"
  result = loss.Evaluator(make_context(restored, batch_size))(arrays).metrics
  tokens = targets(task)
  assert result["examples"] == task.num_examples
  assert result["target_tokens"] == len(tokens)
  share = np.array(list(collections.Counter(tokens.tolist()).values())) / len(tokens)
  assert result["unigram_entropy"] == pytest.approx(-np.sum(share * np.log(share)), rel=1e-6)
  assert result["perplexity"] == pytest.approx(math.exp(result["loss"]))
  reference = loss.Evaluator(make_context(restored, 8))(arrays).metrics
  assert result["loss"] == pytest.approx(reference["loss"], rel=1e-6)
  assert result["accuracy"] == reference["accuracy"]


def test_max_examples_scores_the_first_examples_only(restored):
  _, task, arrays = restored
  result = loss.Evaluator(make_context(restored, 8), max_examples=11)(arrays).metrics
  assert result["examples"] == 11
  batches = list(loader.eval_batches(task, batch_size=8, max_examples=11))
  assert np.concatenate([x["example_index"] for x in batches]).tolist() == [*range(11), *[-1] * 5]
  assert not any(x[name][-5:].any() for x in batches[1:] for name in task.features)


def test_evaluate_gives_the_scores_of_the_training_loop(trained, one_device, capsys):
  assert evaluate.main([f"--config={NANO}", f"--workdir={trained}", "--config.evals.loss={}"]) == 0
  output = capsys.readouterr().out
  name = "builtin_span_corruption"
  written = json.loads((trained / "evaluations" / f"4_{name}_validation.json").read_text())
  loop = [row for row in read_metrics(trained) if f"eval/{name}/loss" in row][-1]
  assert loop["step"] == written["step"] == 4
  assert written["task"] == name
  for metric, value in written["metrics"].items():
    assert value == loop[f"eval/{name}/{metric}"], metric
    assert metric in output


INSTANCES = {
  "loss": {"max_examples": 16},
  "same": {"name": "loss", "max_examples": 16},
  "trained_on": {"name": "loss", "split": "train", "max_examples": 24},
  "shorter": {
    "name": "loss",
    "task": {"inputs_length": 16, "targets_length": 8},
    "max_examples": 16,
  },
  "others": {
    "name": "loss",
    "task": {"name": "denoising", "style": "drop_tokens", "store": "builtin", "inputs_length": 24},
    "max_examples": 16,
  },
  "spans": {"name": "span_infilling", "max_examples": 3, "samples": 2},
}


@pytest.mark.more
def test_scores_of_several_tasks_and_splits_in_a_run_equal_those_of_evaluate(
  tmp_path, restored, capsys
):
  flags = (
    "--config.total_steps=1",
    "--config.eval_every=1",
    f"--config.evals={json.dumps(INSTANCES)}",
  )
  assert train.main([f"--config={NANO}", f"--workdir={tmp_path}", *flags]) == 0
  (loop,) = [row for row in read_metrics(tmp_path) if "eval/same/loss" in row]
  parts, task, _ = restored
  run = open_with_recipe(str(tmp_path), NANO, [])
  arrays = run.restore()[1]
  for name, changes, split, max_examples in (
    (task.name, {}, "validation", 16),
    ("same", {}, "validation", 16),
    ("trained_on", {}, "train", 24),
    ("shorter", {"inputs_length": 16, "targets_length": 8}, "validation", 16),
  ):
    other_task = tasks.build(split=split, **(run.config.task.to_dict() | changes))
    expected = loss.Evaluator(
      make_context((parts, other_task, None), 8), max_examples=max_examples
    )(arrays).metrics
    assert {metric: loop[f"eval/{name}/{metric}"] for metric in expected} == expected
  assert (
    len({loop[f"eval/{name}/loss"] for name in ("same", "trained_on", "shorter", "others")}) == 4
  )
  samples = [
    json.loads(line) for line in (tmp_path / "samples" / "000000001.jsonl").read_text().splitlines()
  ]
  assert [sample["task"] for sample in samples] == ["spans"] * 2
  # All of them again from the checkpoint: the config is the one the run saved.
  assert evaluate.main([f"--workdir={tmp_path}"]) == 0
  results = {
    path.stem: json.loads(path.read_text()) for path in (tmp_path / "evaluations").glob("*.json")
  }
  assert results.keys() == {f"1_{task.name}_validation", "1_trained_on_train"} | {
    f"1_{name}_validation" for name in ("same", "shorter", "others", "spans")
  }
  for stem, result in results.items():
    group = stem.removeprefix("1_").removesuffix(f"_{result['split']}")
    assert {
      f"eval/{group}/{metric}": value for metric, value in result["metrics"].items()
    }.items() <= loop.items()
  assert results["1_others_validation"]["task"] != results["1_same_validation"]["task"] == task.name
  result = (tmp_path / "evaluations" / "1_spans_validation.jsonl").read_text()
  assert [
    json.loads(line) | {"task": "spans", "step": 1} for line in result.splitlines()
  ] == samples
  capsys.readouterr()
  assert evaluate.main([f"--workdir={tmp_path}", "--evals=trained_on,spans"]) == 0
  output = capsys.readouterr().out
  assert "trained_on: task" in output
  assert "spans: task" in output
  assert "same" not in output


@pytest.mark.parametrize(
  "flags, words",
  [
    (
      ["--evals=los"],
      "--evals=los: the config has no evaluator 'los' (did you mean 'loss'?); it has loss",
    ),
    (
      ['--config.evals={"a": {}}'],
      "config.evals.a.name: found 'a', expected one of classification",
    ),
    (
      ['--config.evals={"a": {"name": "loss", "splt": "train"}}'],
      "config.evals.a.splt: unknown key (did you mean 'split'?)",
    ),
    (
      ['--config.evals={"a": {"name": "loss", "split": "tst"}}'],
      "no such split; there are train, validation",
    ),
    (
      ['--config.evals={"a": {"name": "loss", "task": {"name": "causl_lm"}}}'],
      "did you mean 'causal_lm'",
    ),
    (["--config.evals={}"], "config.evals: found no evaluators"),
    (
      ['--config.evals={"builtin_span_corruption": {"name": "loss", "split": "train"}}'],
      "config.evals.builtin_span_corruption: the run's own task has this name",
    ),
  ],
)
def test_impossible_evaluators_are_refused_in_one_line(flags, words, trained, capsys):
  command = [f"--config={NANO}", f"--workdir={trained}", "--config.evals.loss={}"]
  assert evaluate.main([*command, *flags]) == 2
  error = capsys.readouterr().err
  assert words in error
  assert error.count("\n") == 1


def test_an_older_step_is_evaluated_in_another_batch_size(trained, capsys):
  flags = ("--step=2", "--config.batch_size=24", "--config.evals.loss={}")
  assert evaluate.main([f"--config={NANO}", f"--workdir={trained}", *flags]) == 0
  assert "step 2" in capsys.readouterr().out
  path = trained / "evaluations" / "2_builtin_span_corruption_validation.json"
  name = "eval/builtin_span_corruption"
  older = json.loads(path.read_text())["metrics"]
  newer = [row for row in read_metrics(trained) if f"{name}/loss" in row][-1]
  assert older["loss"] > newer[f"{name}/loss"]
  assert older["unigram_entropy"] == newer[f"{name}/unigram_entropy"]


def test_predict_writes_what_the_evaluator_decodes(trained, restored, tmp_path, capsys):
  parts, task, arrays = restored
  vocabulary = vocabularies.load(str(trained / "vocabulary"))
  result = span_infilling.Evaluator(make_context(restored, 8), max_examples=64, samples=64)(arrays)
  # Only texts that come back as the same ids when they are read from a file, one to a line.
  readable_samples = [
    s
    for s in result.samples
    if s["input"].isprintable()
    and s["input"].strip()
    and len(vocabularies.encode_sentinels(vocabulary, s["input"]))
    == task.features["encoder_input_tokens"].shape[0] - 1
  ]
  assert len(readable_samples) >= 5
  file = tmp_path / "lines.txt"
  output = tmp_path / "out.jsonl"
  file.write_text("\n".join(s["input"] for s in readable_samples) + "\n")
  flags = (f"--input={file}", f"--output={output}", "--batch_size=16")
  assert predict.main([f"--config={NANO}", f"--workdir={trained}", *flags]) == 0
  rows = [json.loads(line) for line in output.read_text().splitlines()]
  assert [set(row) for row in rows] == [{"input", "prediction", "score", "filled"}] * len(
    readable_samples
  )
  assert [row["input"] for row in rows] == [s["input"] for s in readable_samples]
  assert [row["prediction"] for row in rows] == [s["prediction"] for s in readable_samples]
  assert f"{len(readable_samples)} lines" in capsys.readouterr().out


def test_span_infilling_counts_spans(restored):
  _, task, arrays = restored
  first = task.vocabulary.size - 1
  target = [first, 5, 6, first - 1, 7, 1, 0, 0]
  eos = 1
  spans = span_infilling.spans_by_sentinel(target, task.vocabulary)
  assert spans == {first: (5, 6), first - 1: (7,)}
  assert span_infilling.spans_by_sentinel([9, first, 5, eos, first - 1, 7], task.vocabulary) == {
    first: (5,)
  }
  result = span_infilling.Evaluator(make_context(restored, 8), max_examples=12, samples=3)(arrays)
  assert len(result.samples) == 3
  assert 0 <= result.metrics["span_exact_match"] <= 1
  assert 0 < result.metrics["commonest_span"] < 1


def test_spans_are_filled_in_at_their_sentinels():
  text = "a <extra_id_0> c <extra_id_1> e <extra_id_2>"
  assert generation.fill(text, "x<extra_id_0> b <extra_id_1>d d") == "a b c d d e <extra_id_2>"
  assert generation.fill(text, "") == text


@pytest.mark.parametrize("name", slots.names(evals))
def test_no_evaluator_has_an_argument_with_the_name_of_a_key_of_its_instance(name):
  keys = inspect.signature(Instance).parameters
  assert {"name", "task", "split"} == set(keys)
  arguments = inspect.signature(slots.find("evals", name, evals, "Evaluator")).parameters
  assert not keys.keys() & arguments.keys()
