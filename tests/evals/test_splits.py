"""Every evaluator scores the split that its instance names.

The splits differ in size and in the distribution of their labels. In most tasks, all examples have
one of at most two inputs, and a model predicts the same for the same input. The score on a split is
therefore one of a few known fractions of its size, and no two splits share such a fraction.
"""

import collections
import dataclasses
import functools
import itertools
import json
import math
import re

import jax
import numpy as np
import pytest
from PIL import Image

import more
from t5x_like import evals, evaluate, slots, train
from t5x_like.config import Instance
from t5x_like.data import loader
from t5x_like.data import task as tasks
from t5x_like.errors import UserError
from t5x_like.evals import BaseEvaluator, EvalResult, _embeddings
from t5x_like.nn import params
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.report.writer import read_metrics
from t5x_like.saved_model import open_saved_model
from tests import json_lines, topics
from tests.evals.splits import (
  SIZES,
  SPLITS,
  Case,
  Training,
  accuracy,
  expect_a,
  expect_brightness,
  expect_one_input,
  scores_by_brightness,
  scores_by_one_input,
  source,
  task_flag,
)

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled", "one_device")]
ENCODER = "tests/recipes/nano_encoder.py"
T5 = "tests/recipes/nano.py"
# `samples` has no score, and `questions` reads files instead of a split. Topics name the evaluators
# that their own tests cover.
UNTESTED = ("samples", "questions", *topics.cases("EVALUATORS_TESTED_ELSEWHERE"))
# The instance <evaluator>_default scores the first, <evaluator>_held the second.
SCORED_SPLITS = ("validation", "held")


@pytest.mark.parametrize("possible_scores", [scores_by_one_input, scores_by_brightness])
def test_no_two_splits_can_have_the_same_score(possible_scores):
  scores_of_splits = [possible_scores(split) - {0.0, 100.0} for split in SPLITS]
  for first_scores, second_scores in itertools.combinations(scores_of_splits, 2):
    assert first_scores.isdisjoint(second_scores)
  for split in SCORED_SPLITS:
    assert not possible_scores(split) & {0.0, 100.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Write the data of all runs, and return its directory."""
  folder = tmp_path_factory.mktemp("splits")
  for split, examples in SPLITS.items():
    write_texts(folder, split, examples)
    write_images(folder, split, examples)
  return folder


def write_texts(folder, split: str, examples) -> None:
  """Write a split as the files of each task on texts."""
  table = ["text\tlabel"]
  tagged_sentences = []
  choices = []
  questions = []
  scored_pairs = ["a\tb\tscore"]
  inputs_and_targets = []
  texts = []
  for number, (brightness, label) in enumerate(examples):
    table.append(f"x\t{label}")
    tagged_sentences.append(f"x {label}\n")
    choices.append({"text": "x", "options": ["p", "q"], "label": int(label == "b")})
    answers = [{"text": "y", "answer_start": 0}] if label == "a" else []
    questions.append({"id": "1", "question": "x", "context": "y", "answers": answers})
    scored_pairs.append(f"{split} {number}\t{brightness} {label}\t{number % 3}.5")
    target = "z" if split == "train" or label == "a" else "w"
    inputs_and_targets.append({"text": "x", "target": target})
    texts.append({"text": f"{split} {number} " * 3})
  write_lines(folder / f"{split}.tsv", table)
  write_lines(folder / f"{split}.conll", tagged_sentences)
  write_lines(folder / f"{split}.scores.tsv", scored_pairs)
  json_lines.write(folder / f"{split}.choices.jsonl", choices)
  json_lines.write(folder / f"{split}.spans.jsonl", questions)
  json_lines.write(folder / f"{split}.pairs.jsonl", inputs_and_targets)
  json_lines.write(folder / f"{split}.texts.jsonl", texts)


def write_lines(path, lines: list[str]) -> None:
  path.write_text("\n".join(lines) + "\n")


def write_images(folder, split: str, examples) -> None:
  """Write images by class, with captions."""
  class_folder = folder / split
  shade = list(SPLITS).index(split)  # makes the images of each split unique
  colours = {"dark": (60, 20, 20 + shade), "bright": (200, 220, 240 + shade)}
  captions = []
  for number, (brightness, label) in enumerate(examples):
    image = Image.new("RGB", (16, 16), colours[brightness])
    name = f"{split}{number}"
    (class_folder / label).mkdir(parents=True, exist_ok=True)
    image.save(class_folder / label / f"{name}.png")
    captions.append({"image": f"{split}/{label}/{name}.png", "caption": [f"{label} {number}"]})
  json_lines.write(folder / f"{split}.captions.jsonl", captions)


def encoder_training(name: str, task: str, source_format: str, head: dict, **arguments) -> Training:
  """Describe the training of an encoder on a task of texts, with the objective of the same name.

  Args:
    source_format: kind and files of the source, such as "tsv:{}.tsv", where {} is the split.
  """
  kind, _, file_name = source_format.partition(":")

  def flags(folder) -> list[str]:
    files = source(folder, kind, file_name)
    return [
      task_flag(folder, name=task, source=files, length=16, **arguments),
      f'objective={{"name": "{task}"}}',
      f"model.head={json.dumps(head)}",
    ]

  return Training(name, ENCODER, flags)


def image_flags(folder) -> list[str]:
  values = {
    "name": "image_classification",
    "source": source(folder, "folders", "{}"),
    "resolution": 16,
    "crop": 1.0,
  }
  return [task_flag(folder, **values), "model.channels=3", "model.head.labels=2"]


def caption_flags(folder) -> list[str]:
  values = {
    "source": source(folder, "jsonl", "{}.captions.jsonl"),
    "folder": str(folder),
    "cache": f"{folder}/cache",
    "caption_field": "caption",
  }
  return [f"task.{key}={value}" for key, value in values.items()]


def generation_flags(folder) -> list[str]:
  values = {
    "source": source(folder, "jsonl", "{}.pairs.jsonl"),
    "inputs": "{text}",
    "targets": "{target}",
    "inputs_length": 8,
    "targets_length": 4,
    "packed": False,
  }
  return [
    task_flag(folder, name="text_to_text", **values),
    "total_steps=60",
    "schedule.warmup_steps=1",
    "model.dropout=0.0",
  ]


def infilling_flags(folder) -> list[str]:
  values = {
    "source": source(folder, "jsonl", "{}.texts.jsonl"),
    "inputs_length": 32,
    "targets_length": 16,
  }
  return [task_flag(folder, name="span_corruption", vocabulary="bytes", **values)]


CLASSIFICATION = encoder_training(
  "classification",
  "classification",
  "tsv:{}.tsv",
  {"name": "classification", "labels": 2},
  text="{text}",
  labels=["a", "b"],
)
TAGGING = encoder_training(
  "tagging",
  "tagging",
  "conll:{}.conll",
  {"name": "tokens", "labels": 2},
  tags_field="1",
  tags=["a", "b"],
)
CHOICES = encoder_training(
  "choices",
  "multiple_choice",
  "jsonl:{}.choices.jsonl",
  {"name": "multiple_choice", "choices": 2},
  text="{text}",
  options="options",
  choices=2,
)
SPANS = encoder_training(
  "spans", "span_qa", "jsonl:{}.spans.jsonl", {"name": "spans"}, stride=4, question_length=4
)
SCORES = encoder_training(
  "scores",
  "classification",
  "tsv:{}.scores.tsv",
  {"name": "classification", "labels": 1},
  text="{a}",
  pair="{b}",
  label_field="score",
)
GENERATION = Training("generation", T5, generation_flags)
INFILLING = Training("infilling", T5, infilling_flags)
IMAGES = Training("images", "tests/recipes/nano_image.py", image_flags)
CAPTIONS = Training("captions", "tests/recipes/nano_clip.py", caption_flags)


class Run:
  """A finished run with two instances of each evaluator that is tested on its model.

  One instance scores the evaluator's default split, the other the split "held".

  Attributes:
    workdir: the run's directory.
    metrics: `{label of an instance: {metric: value}}` at the last step.
  """

  def __init__(self, training: Training, folder):
    self.workdir = folder / "runs" / training.name
    instances = {}
    for evaluator, case in CASES.items():
      if case.training.name == training.name:
        arguments = {"name": evaluator} | case.arguments(folder)
        instances[f"{evaluator}_default"] = arguments
        instances[f"{evaluator}_held"] = arguments | {"split": "held"}
    flags = [
      "total_steps=2",
      *training.make_flags(folder),
      "batch_size=8",
      "eval_every=1000",
      f"evals={json.dumps(instances)}",
    ]
    config_flags = [f"--config.{flag}" for flag in flags]
    command = [f"--config={training.recipe}", f"--workdir={self.workdir}", *config_flags]
    assert train.main(command) == 0
    self.metrics = collections.defaultdict(dict)
    for key, value in read_metrics(self.workdir)[-1].items():
      if key.startswith("eval/"):
        _, label, metric = key.split("/")
        self.metrics[label][metric] = value

  @functools.cached_property
  def _config_and_model(self):
    mesh = make_mesh({"data": 1}, jax.devices()[:1])
    saved_model = open_saved_model(str(self.workdir), Rules.make(mesh))
    _, parameters = saved_model.restore()
    return saved_model.config, params.with_arrays(saved_model.model, parameters)

  def open_split(self, split: str):
    """Return (the model with its parameters, a batch of all examples of the split, the task)."""
    config, model = self._config_and_model
    task = tasks.build(split=split, **config.task.to_dict())
    # Batches of all splits have one shape, so that functions of them are compiled once.
    batch_size = max(task.num_examples, *SIZES.values())
    (batch,) = loader.eval_batches(task, batch_size=batch_size)
    return model, batch, task


@pytest.fixture(scope="module")
def runs(folder):
  return functools.cache(lambda training: Run(training, folder))


def expect_neighbours(run: Run, split: str) -> set[float]:
  """Return the score of predicting the most common training label of each brightness."""
  return {accuracy(split, {"dark": "a", "bright": "b"})}


def expect_entropy(run: Run, split: str) -> set[float]:
  """Return the entropy of the split's labels, in nats."""
  counts = collections.Counter(label for _, label in SPLITS[split])
  return {-sum(n / SIZES[split] * math.log(n / SIZES[split]) for n in counts.values())}


embed_images = jax.jit(lambda model, batch: model.embed_images(batch)[0])
embed_texts = jax.jit(lambda model, batch: model.embed_texts(batch)[0])


def expect_recall(run: Run, split: str) -> set[float]:
  """Return the percentage of images whose nearest caption is their own."""
  model, batch, task = run.open_split(split)
  tokens_CT, image_C = task.captions()
  padded_CT = np.zeros((max(SIZES.values()), tokens_CT.shape[1]), np.int32)
  padded_CT[: len(tokens_CT)] = tokens_CT
  text_CP = embed_texts(model, {"text_input_tokens": padded_CT})[: len(tokens_CT)]
  image_NP = embed_images(model, batch)[: SIZES[split]]
  cosine_NC = np.asarray(image_NP @ text_CP.T)
  retrieved_N = image_C[cosine_NC.argmax(axis=1)]
  return {100 * float(np.mean(retrieved_N == np.arange(SIZES[split])))}


def expect_correlation(run: Run, split: str) -> set[float]:
  """Return Pearson's correlation, times 100, of the cosines of text pairs with their scores."""
  model, _, task = run.open_split(split)
  encode = jax.jit(lambda model, ids: model.encode({"encoder_input_tokens": ids})[0])

  def embed(text: str) -> np.ndarray:
    ids = _embeddings.encode_text(task.vocabulary, text, 16)
    mean_D = np.mean(encode(model, np.array([ids]))[0], axis=0)
    return mean_D / np.linalg.norm(mean_D)

  cosines = []
  labels = []
  for example in task.examples(()):
    first, second = example["text"]
    cosines.append(float(np.dot(embed(first), embed(second))))
    labels.append(example["label"])
  return {100 * float(np.corrcoef(cosines, labels)[0, 1])}


def expect_commonest_span(run: Run, split: str) -> set[float]:
  """Return the share of the commonest span among the target spans of a split."""
  _, batch, task = run.open_split(split)
  sentinels = set(task.vocabulary.sentinels)
  spans = collections.Counter()
  for tokens in batch["decoder_target_tokens"][: task.num_examples].tolist():
    tokens = tokens[: tokens.index(task.vocabulary.eos_id)]
    starts = [position for position, token in enumerate(tokens) if token in sentinels]
    ends = [*starts[1:], len(tokens)]
    spans.update(tuple(tokens[start + 1 : end]) for start, end in zip(starts, ends))
  return {max(spans.values()) / spans.total()}


def count_windows(run: Run, split: str) -> int:
  """Return the number of a split's windows, which are the examples of span infilling."""
  _, _, task = run.open_split(split)
  return task.num_examples


def zero_shot_arguments(folder) -> dict:
  task = {
    "name": "image_classification",
    "source": source(folder, "folders", "{}"),
    "resolution": 16,
    "crop": 1.0,
    "cache": str(folder / "cache"),
  }
  return {"templates": ["{}"], "length": 24, "task": task}


CASES = {
  "classification": Case(CLASSIFICATION, "accuracy", expect_one_input),
  "embedding": Case(SCORES, "pearson", expect_correlation, has_one_score=True),
  "few_shot": Case(
    IMAGES,
    "8_shot_top1",
    expect_neighbours,
    count="8_shot_images",
    arguments=lambda folder: {"shots": 8},
  ),
  "generation": Case(GENERATION, "exact_match", expect_a),
  "image_classification": Case(IMAGES, "top1", expect_brightness, count="images"),
  "knn": Case(
    IMAGES,
    "knn_top1",
    expect_neighbours,
    count="knn_images",
    arguments=lambda folder: {"neighbours": 3},
  ),
  "loss": Case(CLASSIFICATION, "unigram_entropy", expect_entropy, has_one_score=True),
  "multiple_choice": Case(CHOICES, "accuracy", expect_one_input),
  "retrieval": Case(
    CAPTIONS,
    "image_to_text_r1",
    expect_recall,
    count="images",
    has_one_score=True,
    arguments=lambda folder: {"at": [1]},
  ),
  "span_infilling": Case(
    INFILLING,
    "commonest_span",
    expect_commonest_span,
    count="sequences",
    size=count_windows,
    has_one_score=True,
  ),
  "span_qa": Case(
    SPANS,
    "exact",
    expect_a,
    arguments=lambda folder: {"unanswerable": True, "null_threshold": 1e9},
  ),
  "tagging": Case(TAGGING, "accuracy", expect_one_input),
  "zero_shot": Case(
    CAPTIONS, "top1", expect_brightness, count="images", arguments=zero_shot_arguments
  ),
}
CASES |= {name: make_case() for name, make_case in topics.cases("SPLIT_CASES").items()}


# `make test` runs these evaluators, and `make test-more` all. Each represents others that read the
# same batches.
ALWAYS_TESTED = ("loss", "generation", "classification", "span_infilling", "knn")
EVALUATOR_PARAMS = []
for evaluator_name in slots.names(evals):
  if evaluator_name in ALWAYS_TESTED:
    EVALUATOR_PARAMS.append(evaluator_name)
  elif evaluator_name not in UNTESTED:
    EVALUATOR_PARAMS.append(more.later(evaluator_name))


@pytest.mark.parametrize("name", EVALUATOR_PARAMS)
def test_an_evaluator_scores_the_split_of_its_instance(name, runs):
  assert name in CASES, f"add a case of evaluator {name} to CASES, or to SPLIT_CASES of its topic"
  case = CASES[name]
  run = runs(case.training)
  expected = {split: case.expected(run, split) for split in SPLITS}
  if case.has_one_score:
    assert len(set.union(*expected.values())) == len(SPLITS), "two splits have the same score"
  for split, label in zip(SCORED_SPLITS, (f"{name}_default", f"{name}_held")):
    metrics = run.metrics[label]
    score = pytest.approx(metrics[case.metric], abs=1e-3)
    assert any(expected_score == score for expected_score in expected[split]), (split, metrics)
    if case.count is not None:
      assert metrics[case.count] == case.size(run, split), (split, metrics)


def test_evaluate_prints_which_split_was_scored(runs, capsys):
  run = runs(IMAGES)
  assert evaluate.main([f"--workdir={run.workdir}", "--evals=few_shot_default,few_shot_held"]) == 0
  output = capsys.readouterr().out
  for label, split in (("few_shot_default", "validation"), ("few_shot_held", "held")):
    assert re.search(rf"{label}: task \w+, split {split}\n", output), output
    saved = json.loads((run.workdir / "evaluations" / f"2_{label}_{split}.json").read_text())
    assert saved["metrics"]["8_shot_top1"] == pytest.approx(run.metrics[label]["8_shot_top1"])


@pytest.mark.parametrize("name, split", [("few_shot", "train"), ("knn", "train[:9]")])
def test_evaluators_refuse_to_score_images_that_they_learn_from(name, split, runs, capsys):
  instances = json.dumps({"overlapping": {"name": name, "split": split}})
  assert evaluate.main([f"--workdir={runs(IMAGES).workdir}", f"--config.evals={instances}"]) == 2
  assert f"found the split {split!r} and the support_split 'train'" in capsys.readouterr().err


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shadowing(BaseEvaluator):
  """An evaluator with an argument `split`, which is already a key of every instance."""

  split: str = "train"

  def metric_names(self):
    return ()

  def __call__(self, arrays):
    return EvalResult({})


class NotADataclass:
  """An evaluator that defines `__init__` instead of being a frozen dataclass."""

  def __init__(self, context, *, at_most: int = 1):
    pass


def test_an_evaluator_that_is_no_dataclass_is_refused_in_one_line(runs, capsys):
  instances = json.dumps({"mine": {"name": f"{__name__}:NotADataclass"}})
  assert evaluate.main([f"--workdir={runs(IMAGES).workdir}", f"--config.evals={instances}"]) == 2
  line = capsys.readouterr().err.splitlines()[-1]
  assert (
    "NotADataclass', expected a frozen dataclass derived from t5x_like.evals.BaseEvaluator" in line
  )
  assert "see docs/how-to/add-an-evaluator.md" in line


def test_an_evaluator_that_shadows_a_key_is_refused(runs, capsys):
  instances = json.dumps({"mine": {"name": f"{__name__}:Shadowing"}})
  assert evaluate.main([f"--workdir={runs(IMAGES).workdir}", f"--config.evals={instances}"]) == 2
  assert re.search(
    r"config.evals.mine: .*Shadowing declares the argument 'split'", capsys.readouterr().err
  )
  with pytest.raises(UserError, match="declares the argument 'split'"):
    slots.fill("x", {}, Shadowing, supplied=("context",), records=(Instance,))
