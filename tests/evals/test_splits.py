"""Every evaluator scores the split that its instance names.

The splits differ in size and in the distribution of their labels. Their inputs hardly differ, if at
all, and an untrained model predicts the same for the same input. The score on a split is therefore
one of a few known fractions of its size, which no other split can have.
"""

import collections
import dataclasses
import functools
import itertools
import json
import math
import re
from collections.abc import Callable
from typing import NamedTuple

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
from tests import topics

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled", "one_device")]
ENCODER = "tests/recipes/nano_encoder.py"
DECODER = "tests/recipes/nano_decoder.py"
T5 = "tests/recipes/nano.py"
VIT = "tests/recipes/nano_image.py"
CLIP = "tests/recipes/nano_clip.py"
DETR = "configs/detr/base.py:debug"
# (brightness, label) of the examples of each split: most dark examples are "a" and most bright ones
# "b".
SPLITS = {
  "train": [("dark", "a")] * 9 + [("bright", "b")] * 8,
  "validation": [("dark", "a")] * 3
  + [("dark", "b"), ("bright", "b"), ("bright", "a"), ("bright", "a")],
  "held": [("dark", "a")] * 2 + [("dark", "b"), ("bright", "b"), ("bright", "a")],
}
# `samples` has no score, `questions` reads files instead of a split, and topics test theirs.
UNTESTED = ("samples", "questions", *topics.cases("EVALUATORS_TESTED_ELSEWHERE"))
SIZES = {split: len(rows) for split, rows in SPLITS.items()}
SCORED_SPLITS = ("validation", "held")  # by the instances <evaluator>_own and <evaluator>_held


def accuracy(split: str, predictions: dict[str, str]) -> float:
  """Return the accuracy on a split, in percent, of predictions by brightness."""
  correct = [label == predictions[brightness] for brightness, label in SPLITS[split]]
  return 100 * sum(correct) / SIZES[split]


def scores_by_one_input(split: str) -> set[float]:
  """Return the possible accuracies of a model whose input is always the same."""
  return {accuracy(split, {"dark": label, "bright": label}) for label in "ab"}


def scores_by_brightness(split: str) -> set[float]:
  """Return the possible accuracies of a model whose input is the brightness."""
  scores = set()
  for dark, bright in itertools.product("ab", "ab"):
    scores.add(accuracy(split, {"dark": dark, "bright": bright}))
  return scores


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
    _write_texts(folder, split, examples)
    _write_images(folder, split, examples)
  return folder


def _write_texts(folder, split: str, examples) -> None:
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
  _write_lines(folder / f"{split}.tsv", table)
  _write_lines(folder / f"{split}.conll", tagged_sentences)
  _write_lines(folder / f"{split}.scores.tsv", scored_pairs)
  _write_json_lines(folder / f"{split}.choices.jsonl", choices)
  _write_json_lines(folder / f"{split}.spans.jsonl", questions)
  _write_json_lines(folder / f"{split}.pairs.jsonl", inputs_and_targets)
  _write_json_lines(folder / f"{split}.texts.jsonl", texts)


def _write_lines(path, lines: list[str]) -> None:
  path.write_text("\n".join(lines) + "\n")


def _write_json_lines(path, rows: list[dict]) -> None:
  _write_lines(path, [json.dumps(row) for row in rows])


def _write_images(folder, split: str, examples) -> None:
  """Write images by class, with captions, and with boxes: in the middle for class "a"."""
  class_folder = folder / split
  voc_folder = folder / f"voc_{split}"
  (voc_folder / "JPEGImages").mkdir(parents=True)
  (voc_folder / "Annotations").mkdir()
  shade = list(SPLITS).index(split)  # makes the images of each split unique
  colours = {"dark": (60, 20, 20 + shade), "bright": (200, 220, 240 + shade)}
  captions = []
  for number, (brightness, label) in enumerate(examples):
    image = Image.new("RGB", (16, 16), colours[brightness])
    name = f"{split}{number}"
    (class_folder / label).mkdir(parents=True, exist_ok=True)
    image.save(class_folder / label / f"{name}.png")
    image.save(voc_folder / "JPEGImages" / f"{name}.png")
    captions.append({"image": f"{split}/{label}/{name}.png", "caption": [f"{label} {number}"]})
    low = 4 if label == "a" else 0
    high = low + 8
    box = f"<xmin>{low}</xmin><ymin>{low}</ymin><xmax>{high}</xmax><ymax>{high}</ymax>"
    (voc_folder / "Annotations" / f"{name}.xml").write_text(
      f"<annotation><object><name>thing</name><bndbox>{box}</bndbox></object></annotation>"
    )
  _write_json_lines(folder / f"{split}.captions.jsonl", captions)


def source(folder, kind: str, file_name: str) -> str:
  """Return a source with all splits; `{}` in the name of its files is the split."""
  return f"{kind}:" + ",".join(f"{split}={folder}/{file_name.format(split)}" for split in SPLITS)


def task_flag(folder, **arguments) -> str:
  return "task=" + json.dumps({"cache": str(folder / "cache")} | arguments)


def encoder_run(name: str, kind: str, file_name: str, head: dict, **arguments):
  """Return recipe and flags of an encoder on a task of texts; the task names the objective."""

  def flags(folder) -> list[str]:
    files = source(folder, kind, file_name)
    return [
      task_flag(folder, name=name, source=files, length=16, **arguments),
      f'objective={{"name": "{name}"}}',
      f"model.head={json.dumps(head)}",
    ]

  return ENCODER, flags


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


def box_flags(folder) -> list[str]:
  backbone = '{"name": "resnet", "stem": 8, "widths": [16], "depths": [1]}'
  values = {
    "source": source(folder, "voc", "voc_{}"),
    "boxes": 2,
    "augmentations": "[]",
    "resolution": 16,
    "shortest": 16,
    "cache": f"{folder}/cache",
  }
  flags = [f"task.{key}={value}" for key, value in values.items()]
  return [*flags, f"model.backbone={backbone}", "model.queries=4", "model.labels=1"]


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


def label_is_a(texts: list[str], examples: list[dict]) -> list[float]:
  """Return the reward 1 for examples with the label "a", whatever the text."""
  return [float(example["label"] == "a") for example in examples]


def reward_flags(folder) -> list[str]:
  values = {
    "source": source(folder, "tsv", "{}.tsv"),
    "prompt": "{text}",
    "fields": ["label"],
    "vocabulary": "bytes",
    "prompt_length": 8,
    "new_tokens": 4,
    "fields_length": 32,
    "completions": 2,
  }
  objective = {"name": "grpo", "reward": f"{__name__}:label_is_a", "beta": 0.0}
  return [task_flag(folder, name="prompts", **values), f"objective={json.dumps(objective)}"]


def infilling_flags(folder) -> list[str]:
  values = {
    "source": source(folder, "jsonl", "{}.texts.jsonl"),
    "inputs_length": 32,
    "targets_length": 16,
  }
  return [task_flag(folder, name="span_corruption", vocabulary="bytes", **values)]


# The recipe of each run, and a function from the folder of the data to its flags.
RUNS = {
  "classification": encoder_run(
    "classification",
    "tsv",
    "{}.tsv",
    {"name": "classification", "labels": 2},
    text="{text}",
    labels=["a", "b"],
  ),
  "tagging": encoder_run(
    "tagging", "conll", "{}.conll", {"name": "tokens", "labels": 2}, tags_field="1", tags=["a", "b"]
  ),
  "choices": encoder_run(
    "multiple_choice",
    "jsonl",
    "{}.choices.jsonl",
    {"name": "multiple_choice", "choices": 2},
    text="{text}",
    options="options",
    choices=2,
  ),
  "spans": encoder_run(
    "span_qa", "jsonl", "{}.spans.jsonl", {"name": "spans"}, stride=4, question_length=4
  ),
  "scores": encoder_run(
    "classification",
    "tsv",
    "{}.scores.tsv",
    {"name": "classification", "labels": 1},
    text="{a}",
    pair="{b}",
    label_field="score",
  ),
  "generation": (T5, generation_flags),
  "infilling": (T5, infilling_flags),
  "rewards": (DECODER, reward_flags),
  "images": (VIT, image_flags),
  "captions": (CLIP, caption_flags),
  "boxes": (DETR, box_flags),
}


class Run:
  """A finished run with two instances of each of its evaluators.

  One instance scores the split of the evaluator's default, the other the split "held".

  Attributes:
    workdir: the directory of the run.
    metrics: the metrics of each instance, by its label.
  """

  def __init__(self, name: str, folder):
    recipe, make_flags = RUNS[name]
    self.workdir = folder / "runs" / name
    instances = {}
    for evaluator, case in CASES.items():
      if case.run == name:
        arguments = {"name": evaluator} | case.arguments(folder)
        instances[f"{evaluator}_own"] = arguments
        instances[f"{evaluator}_held"] = arguments | {"split": "held"}
    flags = [
      "total_steps=2",
      *make_flags(folder),
      "batch_size=8",
      "eval_every=1000",
      f"evals={json.dumps(instances)}",
    ]
    config_flags = [f"--config.{flag}" for flag in flags]
    command = [f"--config={recipe}", f"--workdir={self.workdir}", *config_flags]
    assert train.main(command) == 0
    self.metrics = collections.defaultdict(dict)
    for key, value in read_metrics(self.workdir)[-1].items():
      if key.startswith("eval/"):
        _, label, metric = key.split("/")
        self.metrics[label][metric] = value

  @functools.cached_property
  def _config_and_model(self):
    mesh = make_mesh({"data": 1}, jax.devices()[:1])
    run = open_saved_model(str(self.workdir), Rules.make(mesh))
    return run.config, params.with_arrays(run.model, run.restore()[1])

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
  return functools.cache(lambda name: Run(name, folder))


class Case(NamedTuple):
  """How an evaluator is tested.

  Attributes:
    run: the name of its run in `RUNS`.
    count: the metric that counts the scored examples.
    metric: the metric that is compared with the expected scores.
    expected: `(run, split) -> the possible scores`.
    has_one_score: whether `expected` is a single score, which must differ by split.
    arguments: `(folder) -> the arguments of the evaluator`.
  """

  run: str
  count: str
  metric: str
  expected: Callable[["Run", str], set[float]]
  has_one_score: bool = False
  arguments: Callable = lambda folder: {}


def expect_one_input(run: Run, split: str) -> set[float]:
  return scores_by_one_input(split)


def expect_brightness(run: Run, split: str) -> set[float]:
  return scores_by_brightness(split)


def expect_neighbours(run: Run, split: str) -> set[float]:
  """Return the score of predicting the label that most images of a brightness have."""
  return {accuracy(split, {"dark": "a", "bright": "b"})}


def expect_a(run: Run, split: str) -> set[float]:
  """Return the score of predicting "a" for everything."""
  return {accuracy(split, {"dark": "a", "bright": "a"})}


def expect_reward(run: Run, split: str) -> set[float]:
  return {score / 100 for score in expect_a(run, split)}


def expect_entropy(run: Run, split: str) -> set[float]:
  counts = collections.Counter(label for _, label in SPLITS[split])
  return {-sum(n / SIZES[split] * math.log(n / SIZES[split]) for n in counts.values())}


embed_images = jax.jit(lambda model, batch: model.embed_images(batch)[0])
embed_texts = jax.jit(lambda model, batch: model.embed_texts(batch)[0])


def expect_recall(run: Run, split: str) -> set[float]:
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


def expect_average_precision(run: Run, split: str) -> set[float]:
  detection = slots.module("detection", evals)
  model, batch, task = run.open_split(split)
  detect = jax.jit(lambda model, batch: detection.top_detections(model.outputs(batch)))
  score_NQ, class_NQ, box_NQ4 = jax.device_get(detect(model, batch))
  detections = []
  for number in range(SIZES[split]):
    corners_Q4 = detection.to_corners(box_NQ4[number].astype(np.float64)) * 16
    detections.append((number, corners_Q4, class_NQ[number], score_NQ[number]))
  return {detection.average_precision(task.boxes, detections, ("thing",))["AP"]}


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
  "classification": Case("classification", "examples", "accuracy", expect_one_input),
  "detection": Case("boxes", "images", "AP", expect_average_precision, has_one_score=True),
  "embedding": Case("scores", "examples", "pearson", expect_correlation, has_one_score=True),
  "few_shot": Case(
    "images",
    "8_shot_images",
    "8_shot_top1",
    expect_neighbours,
    arguments=lambda folder: {"shots": 8},
  ),
  "generation": Case("generation", "examples", "exact_match", expect_a),
  "image_classification": Case("images", "images", "top1", expect_brightness),
  "knn": Case(
    "images",
    "knn_images",
    "knn_top1",
    expect_neighbours,
    arguments=lambda folder: {"neighbours": 3},
  ),
  "loss": Case("classification", "examples", "unigram_entropy", expect_entropy, has_one_score=True),
  "multiple_choice": Case("choices", "examples", "accuracy", expect_one_input),
  "retrieval": Case(
    "captions",
    "images",
    "image_to_text_r1",
    expect_recall,
    has_one_score=True,
    arguments=lambda folder: {"at": [1]},
  ),
  "reward": Case("rewards", "examples", "reward", expect_reward),
  "span_infilling": Case(
    "infilling", "sequences", "commonest_span", expect_commonest_span, has_one_score=True
  ),
  "span_qa": Case(
    "spans",
    "examples",
    "exact",
    expect_a,
    arguments=lambda folder: {"unanswerable": True, "null_threshold": 1e9},
  ),
  "tagging": Case("tagging", "examples", "accuracy", expect_one_input),
  "zero_shot": Case("captions", "images", "top1", expect_brightness, arguments=zero_shot_arguments),
}


# The evaluators that every test run includes; each stands for others that read the same batches.
ALWAYS_TESTED = ("loss", "generation", "classification", "span_infilling", "knn")
EVALUATOR_PARAMS = []
for evaluator_name in slots.names(evals):
  if evaluator_name in ALWAYS_TESTED:
    EVALUATOR_PARAMS.append(evaluator_name)
  elif evaluator_name not in UNTESTED:
    EVALUATOR_PARAMS.append(more.later(evaluator_name))


@pytest.mark.parametrize("name", EVALUATOR_PARAMS)
def test_the_split_of_its_instance_is_scored(name, runs):
  assert name in CASES, f"add a case of evaluator {name} to CASES"
  case = CASES[name]
  run = runs(case.run)
  expected = {split: case.expected(run, split) for split in SPLITS}
  if case.has_one_score:
    assert len(set.union(*expected.values())) == len(SPLITS), "two splits have the same score"
  for split, label in zip(SCORED_SPLITS, (f"{name}_own", f"{name}_held")):
    metrics = run.metrics[label]
    score = pytest.approx(metrics[case.metric], abs=1e-3)
    assert any(expected_score == score for expected_score in expected[split]), (split, metrics)
    size = SIZES[split]
    if name == "span_infilling":  # its examples are windows of the texts
      _, _, task = run.open_split(split)
      size = task.num_examples
    assert metrics[case.count] == size, (split, metrics)


def test_evaluate_prints_which_split_was_scored(runs, capsys):
  run = runs("images")
  assert evaluate.main([f"--workdir={run.workdir}", "--evals=few_shot_own,few_shot_held"]) == 0
  output = capsys.readouterr().out
  for label, split in (("few_shot_own", "validation"), ("few_shot_held", "held")):
    assert re.search(rf"{label}: task \w+, split {split}\n", output), output
    saved = json.loads((run.workdir / "evaluations" / f"2_{label}_{split}.json").read_text())
    assert saved["metrics"]["8_shot_top1"] == pytest.approx(run.metrics[label]["8_shot_top1"])


@pytest.mark.parametrize("name, split", [("few_shot", "train"), ("knn", "train[:9]")])
def test_evaluators_refuse_to_score_images_that_they_learn_from(name, split, runs, capsys):
  instances = json.dumps({"few": {"name": name, "split": split}})
  assert evaluate.main([f"--workdir={runs('images').workdir}", f"--config.evals={instances}"]) == 2
  assert f"found the split {split!r} and the support_split 'train'" in capsys.readouterr().err


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shadowing(BaseEvaluator):
  """An evaluator whose argument has the name of a key of every instance."""

  split: str = "train"

  def metric_names(self):
    return ()

  def __call__(self, arrays):
    return EvalResult({})


class Former:
  """An evaluator with a constructor of its own."""

  def __init__(self, context, *, at_most: int = 1):
    pass


def test_an_evaluator_of_another_form_is_refused_in_one_line(runs, capsys):
  instances = json.dumps({"mine": {"name": f"{__name__}:Former"}})
  assert evaluate.main([f"--workdir={runs('images').workdir}", f"--config.evals={instances}"]) == 2
  line = capsys.readouterr().err.splitlines()[-1]
  assert "Former', expected a frozen dataclass derived from t5x_like.evals.BaseEvaluator" in line
  assert "see docs/how-to/add-an-evaluator.md" in line


def test_an_evaluator_that_shadows_a_key_is_refused(runs, capsys):
  instances = json.dumps({"mine": {"name": f"{__name__}:Shadowing"}})
  assert evaluate.main([f"--workdir={runs('images').workdir}", f"--config.evals={instances}"]) == 2
  assert re.search(
    r"config.evals.mine: .*Shadowing declares the argument 'split'", capsys.readouterr().err
  )
  with pytest.raises(UserError, match="declares the argument 'split'"):
    slots.fill("x", {}, Shadowing, supplied=("context",), records=(Instance,))
