"""Evaluation covers every example once in any batch size, and all commands give the same scores."""

import inspect
import json
import math

import numpy as np
import pytest

import json_lines
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


def make_context(restored, batch_size: int, task=None) -> EvalContext:
  parts, own_task, _ = restored
  task = task or own_task

  def batches(max_examples):
    return loader.eval_batches(task, batch_size=batch_size, max_examples=max_examples)

  objective = build_objective(parts.config)
  return EvalContext(parts.model, objective, task, batches, batch_size, parts.rules)


def loss_metrics(restored, batch_size: int = 8, task=None, arrays=None, **options) -> dict:
  context = make_context(restored, batch_size, task)
  return loss.Evaluator(context, **options)(restored[2] if arrays is None else arrays).metrics


def targets(task) -> np.ndarray:
  """Return the target tokens with weight of all examples."""
  examples = list(loader.eval_batches(task, batch_size=1))
  assert len(examples) == task.num_examples
  tokens = []
  for example in examples:
    tokens.append(example["decoder_target_tokens"][example["decoder_loss_weights"] > 0])
  return np.concatenate(tokens)


# Tested in evals/test_labelled.py.
LABELLED = {"classification", "generation", "multiple_choice", "span_qa", "tagging"}
# Tested in evals/test_image_evaluators.py, training/test_image_text_runs.py and contrib/.
IMAGES = {"image_classification", "few_shot", "knn", "retrieval", "zero_shot", "detection"}
# Tested in inference/test_embedding.py, evals/ and contrib/.
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


@pytest.mark.parametrize("batch_size", more.beyond(1, [40, 24]))
def test_every_example_counts_once_whatever_the_batch_size(batch_size, restored):
  _, task, _ = restored
  assert task.num_examples % batch_size, "no tail to test with"
  metrics = loss_metrics(restored, batch_size)
  tokens = targets(task)
  assert metrics["examples"] == task.num_examples
  assert metrics["target_tokens"] == len(tokens)
  share = np.unique(tokens, return_counts=True)[1] / len(tokens)
  assert metrics["unigram_entropy"] == pytest.approx(-np.sum(share * np.log(share)), rel=1e-6)
  assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
  in_batches_of_8 = loss_metrics(restored)
  assert metrics["loss"] == pytest.approx(in_batches_of_8["loss"], rel=1e-6)
  assert metrics["accuracy"] == in_batches_of_8["accuracy"]


def test_max_examples_scores_the_first_examples_only(restored):
  _, task, _ = restored
  assert loss_metrics(restored, max_examples=11)["examples"] == 11
  first, last = loader.eval_batches(task, batch_size=8, max_examples=11)
  assert first["example_index"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
  assert last["example_index"].tolist() == [8, 9, 10, -1, -1, -1, -1, -1]
  for name in task.features:
    assert not last[name][3:].any()


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


@pytest.fixture(scope="module")
def several(tmp_path_factory, compiled):
  """Return the workdir of a run of a step with many evaluators."""
  workdir = tmp_path_factory.mktemp("several")
  flags = (
    "--config.total_steps=1",
    "--config.eval_every=1",
    f"--config.evals={json.dumps(INSTANCES)}",
  )
  assert train.main([f"--config={NANO}", f"--workdir={workdir}", *flags]) == 0
  return workdir


@pytest.mark.more
def test_instances_of_an_evaluator_score_their_own_tasks_and_splits(several, restored):
  (row,) = [row for row in read_metrics(several) if "eval/same/loss" in row]
  run = open_with_recipe(str(several), NANO, [])
  arrays = run.restore()[1]
  shorter = INSTANCES["shorter"]["task"]
  for name, changes, split, max_examples in (
    ("builtin_span_corruption", {}, "validation", 16),
    ("same", {}, "validation", 16),
    ("trained_on", {}, "train", 24),
    ("shorter", shorter, "validation", 16),
  ):
    task = tasks.build(split=split, **(run.config.task.to_dict() | changes))
    expected = loss_metrics(restored, task=task, arrays=arrays, max_examples=max_examples)
    assert {metric: row[f"eval/{name}/{metric}"] for metric in expected} == expected
  names = ("same", "trained_on", "shorter", "others")
  assert len({row[f"eval/{name}/loss"] for name in names}) == 4


@pytest.mark.more
def test_evaluate_repeats_the_scores_and_samples_of_a_run(several, capsys):
  """The config is the one that the run saved."""
  (row,) = [row for row in read_metrics(several) if "eval/same/loss" in row]
  assert evaluate.main([f"--workdir={several}"]) == 0
  folder = several / "evaluations"
  results = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
  assert results.keys() == {
    "1_builtin_span_corruption_validation",
    "1_trained_on_train",
    "1_same_validation",
    "1_shorter_validation",
    "1_others_validation",
    "1_spans_validation",
  }
  for stem, result in results.items():
    name = stem.removeprefix("1_").removesuffix(f"_{result['split']}")
    for metric, value in result["metrics"].items():
      assert row[f"eval/{name}/{metric}"] == value
  assert results["1_same_validation"]["task"] == "builtin_span_corruption"
  assert results["1_others_validation"]["task"] != "builtin_span_corruption"
  of_run = json_lines.read(several / "samples" / "000000001.jsonl")
  samples = json_lines.read(folder / "1_spans_validation.jsonl")
  assert len(samples) == 2
  assert [sample | {"task": "spans", "step": 1} for sample in samples] == of_run
  capsys.readouterr()
  assert evaluate.main([f"--workdir={several}", "--evals=trained_on,spans"]) == 0
  output = capsys.readouterr().out
  assert "trained_on: task" in output
  assert "spans: task" in output
  assert "same" not in output


@pytest.mark.parametrize(
  "flag, parts",
  [
    ("--evals=los", ("--evals=los", "did you mean 'loss'", "it has loss")),
    ('--config.evals={"a": {}}', ("config.evals.a.name: found 'a'", "one of classification")),
    (
      '--config.evals={"a": {"name": "loss", "splt": "train"}}',
      ("config.evals.a.splt: unknown key", "did you mean 'split'"),
    ),
    (
      '--config.evals={"a": {"name": "loss", "split": "tst"}}',
      ("no such split; there are train, validation",),
    ),
    (
      '--config.evals={"a": {"name": "loss", "task": {"name": "causl_lm"}}}',
      ("did you mean 'causal_lm'",),
    ),
    ("--config.evals={}", ("config.evals: found no evaluators",)),
    (
      '--config.evals={"builtin_span_corruption": {"name": "loss", "split": "train"}}',
      ("config.evals.builtin_span_corruption: the run's own task has this name",),
    ),
  ],
)
def test_impossible_evaluators_are_refused(flag, parts, trained, capsys):
  command = [f"--config={NANO}", f"--workdir={trained}", "--config.evals.loss={}"]
  assert evaluate.main([*command, flag]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  for part in parts:
    assert part in line


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
  _, task, arrays = restored
  vocabulary = vocabularies.load(str(trained / "vocabulary"))
  length = task.features["encoder_input_tokens"].shape[0] - 1
  result = span_infilling.Evaluator(make_context(restored, 8), max_examples=64, samples=64)(arrays)

  def is_readable(text: str) -> bool:
    """Return whether a text has the same ids when it is read from a file, one to a line."""
    ids = vocabularies.encode_sentinels(vocabulary, text)
    return text.isprintable() and text.strip() != "" and len(ids) == length

  samples = [sample for sample in result.samples if is_readable(sample["input"])]
  assert len(samples) >= 5
  source = tmp_path / "lines.txt"
  output = tmp_path / "out.jsonl"
  source.write_text("".join(f"{sample['input']}\n" for sample in samples))
  flags = (f"--input={source}", f"--output={output}", "--batch_size=16")
  assert predict.main([f"--config={NANO}", f"--workdir={trained}", *flags]) == 0
  for row, sample in zip(json_lines.read(output), samples, strict=True):
    assert row.keys() == {"input", "prediction", "score", "filled"}
    assert row["input"] == sample["input"]
    assert row["prediction"] == sample["prediction"]
  assert f"{len(samples)} lines" in capsys.readouterr().out


def test_span_infilling_counts_spans(restored):
  _, task, arrays = restored
  first = task.vocabulary.size - 1
  eos = 1
  target = [first, 5, 6, first - 1, 7, eos, 0, 0]
  spans = span_infilling.spans_by_sentinel(target, task.vocabulary)
  assert spans == {first: (5, 6), first - 1: (7,)}
  prediction = [9, first, 5, eos, first - 1, 7]
  assert span_infilling.spans_by_sentinel(prediction, task.vocabulary) == {first: (5,)}
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
