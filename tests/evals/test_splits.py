"""Every evaluator scores the split that its instance names, asked through the command.

The splits differ in size and in how their labels are shared out, and their inputs hardly differ, if
at all: a model that has learned nothing says the same of the same input. So a score is one of a few
fractions of the size of its split, which are known beforehand, and are those of no other split.
"""

import collections
import functools
import inspect
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
from t5x_like.evals import _embeddings, detection
from t5x_like.nn import params
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.report.writer import read_metrics
from t5x_like.training import saved_model

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled", "one_device")]
ENCODER, T5, VIT, CLIP = (
  f"tests/recipes/{name}.py" for name in ("nano_encoder", "nano", "nano_image", "nano_clip")
)
DETR = "configs/detr/base.py:debug"
DECODER = "tests/recipes/nano_decoder.py"
ALL = slots.names(evals)
# (looks, label) of the examples of each split: what is dark is "a" and what is bright is "b", but
# not always.
SPLITS = {
  "train": [("dark", "a")] * 9 + [("bright", "b")] * 8,
  "validation": [("dark", "a")] * 3
  + [("dark", "b"), ("bright", "b"), ("bright", "a"), ("bright", "a")],
  "held": [("dark", "a")] * 2 + [("dark", "b"), ("bright", "b"), ("bright", "a")],
}
# show texts, ask files, answer from passages (tests/test_retrieval.py)
OTHERS = ("samples", "questions", "open_qa")
SIZES = {split: len(rows) for split, rows in SPLITS.items()}
SCORED = ("validation", "held")  # by the instances <evaluator>_own and <evaluator>_held


def share(split: str, guess) -> float:
  """The percentage of a split's labels that equal the guess."""
  return 100 * sum(label == guess(looks) for looks, label in SPLITS[split]) / SIZES[split]


def of_one_input(split: str) -> set[float]:
  """What a model can score that is given the same input every time."""
  return {share(split, lambda _, label=label: label) for label in "ab"}


def of_two_inputs(split: str) -> set[float]:
  """What a model can score that is given the looks."""
  pairs = [{"dark": dark, "bright": bright} for dark, bright in itertools.product("ab", "ab")]
  return {share(split, pair.get) for pair in pairs}


@pytest.mark.parametrize("possible", [of_one_input, of_two_inputs])
def test_no_score_of_a_split_can_be_that_of_another(possible):
  found = [possible(split) - {0.0, 100.0} for split in SPLITS]
  assert all(one.isdisjoint(other) for one, other in itertools.combinations(found, 2))
  assert all(not possible(split) & {0.0, 100.0} for split in SCORED)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """The data of all runs."""
  folder = tmp_path_factory.mktemp("splits")
  for split, rows in SPLITS.items():
    labels = [label for _, label in rows]
    write = functools.partial(_lines, folder, split)
    write("tsv", ["text\tlabel", *(f"x\t{label}" for label in labels)])
    write("conll", [f"x {label}\n" for label in labels])
    choices = [{"text": "x", "options": ["p", "q"], "label": int(label == "b")} for label in labels]
    write("choices.jsonl", map(json.dumps, choices))
    answers = [[{"text": "y", "answer_start": 0}] if label == "a" else [] for label in labels]
    write(
      "spans.jsonl",
      (json.dumps({"id": "1", "question": "x", "context": "y", "answers": a}) for a in answers),
    )
    write(
      "scores.tsv",
      [
        "a\tb\tscore",
        *(f"{split} {n}\t{looks} {label}\t{n % 3}.5" for n, (looks, label) in enumerate(rows)),
      ],
    )
    pairs = [
      {"text": "x", "target": "z" if split == "train" or label == "a" else "w"} for label in labels
    ]
    write("pairs.jsonl", map(json.dumps, pairs))
    write("texts.jsonl", (json.dumps({"text": f"{split} {n} " * 3}) for n in range(SIZES[split])))
    _images(folder, split, rows)
  return folder


def _lines(folder, split: str, ending: str, lines) -> None:
  (folder / f"{split}.{ending}").write_text("\n".join(lines) + "\n")


def _images(folder, split: str, rows) -> None:
  """Images by class, the same with captions, and the same with a box in the middle of what is
  "a"."""
  captions = []
  names = []
  shade = list(SPLITS).index(split)  # so that no image is a copy of another split's
  colours = {"dark": (60, 20, 20 + shade), "bright": (200, 220, 240 + shade)}
  for n, (looks, label) in enumerate(rows):
    image = Image.new("RGB", (16, 16), colours[looks])
    name = f"{split}{n}"
    for place in (f"{split}/{label}", f"voc_{split}/JPEGImages"):
      (folder / place).mkdir(parents=True, exist_ok=True)
      image.save(folder / place / f"{name}.png")
    captions.append(
      json.dumps({"image": f"{split}/{label}/{name}.png", "caption": [f"{label} {n}"]})
    )
    corner = 4 if label == "a" else 0
    box = "".join(
      f"<{edge}>{corner + 8 * edge.endswith('max')}</{edge}>"
      for edge in ("xmin", "ymin", "xmax", "ymax")
    )
    names.append(
      (name, f"<annotation><object><name>thing</name><bndbox>{box}</bndbox></object></annotation>")
    )
  _lines(folder, split, "captions.jsonl", captions)
  (folder / f"voc_{split}" / "Annotations").mkdir()
  for name, annotation in names:
    (folder / f"voc_{split}" / "Annotations" / f"{name}.xml").write_text(annotation)


def source(folder, form: str, ending: str) -> str:
  return f"{form}:" + ",".join(f"{split}={folder}/{ending.format(split)}" for split in SPLITS)


def task(folder, **arguments) -> str:
  return "task=" + json.dumps({"cache": str(folder / "cache")} | arguments)


def encoder(name: str, form: str, ending: str, head: dict, **arguments):
  """A run of an encoder on a task of texts."""

  def flags(folder) -> list[str]:
    made = task(folder, name=name, source=source(folder, form, ending), length=16, **arguments)
    return [made, f'objective={{"name": "{name}"}}', f"model.head={json.dumps(head)}"]

  return ENCODER, flags


def images(folder) -> list[str]:
  values = {
    "name": "image_classification",
    "source": source(folder, "folders", "{}"),
    "resolution": 16,
    "crop": 1.0,
  }
  return [task(folder, **values), "model.channels=3", "model.head.labels=2"]


def captions(folder) -> list[str]:
  values = {
    "source": source(folder, "jsonl", "{}.captions.jsonl"),
    "folder": str(folder),
    "cache": f"{folder}/cache",
  }
  return [f"task.{key}={value}" for key, value in values.items()] + ["task.caption_field=caption"]


def boxes(folder) -> list[str]:
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


def generated(folder) -> list[str]:
  values = {
    "source": source(folder, "jsonl", "{}.pairs.jsonl"),
    "inputs": "{text}",
    "targets": "{target}",
  }
  values |= {"inputs_length": 8, "targets_length": 4, "packed": False}
  return [
    task(folder, name="text_to_text", **values),
    "total_steps=60",
    "schedule.warmup_steps=1",
    "model.dropout=0.0",
  ]


def label_is_a(texts: list[str], examples: list[dict]) -> list[float]:
  return [float(example["label"] == "a") for example in examples]


def rewarded(folder) -> list[str]:
  lengths = {"prompt_length": 8, "new_tokens": 4, "fields_length": 32, "completions": 2}
  values = {
    "source": source(folder, "tsv", "{}.tsv"),
    "prompt": "{text}",
    "fields": ["label"],
    "vocabulary": "bytes",
  }
  reward = {"name": "grpo", "reward": f"{__name__}:label_is_a", "beta": 0.0}
  return [task(folder, name="prompts", **values, **lengths), f"objective={json.dumps(reward)}"]


def infilled(folder) -> list[str]:
  values = {
    "source": source(folder, "jsonl", "{}.texts.jsonl"),
    "inputs_length": 32,
    "targets_length": 16,
  }
  return [task(folder, name="span_corruption", vocabulary="bytes", **values)]


RUNS = {  # recipe, and the flags that it needs
  "classification": encoder(
    "classification",
    "tsv",
    "{}.tsv",
    {"name": "classification", "labels": 2},
    text="{text}",
    labels=["a", "b"],
  ),
  "tagging": encoder(
    "tagging", "conll", "{}.conll", {"name": "tokens", "labels": 2}, tags_field="1", tags=["a", "b"]
  ),
  "choices": encoder(
    "multiple_choice",
    "jsonl",
    "{}.choices.jsonl",
    {"name": "multiple_choice", "choices": 2},
    text="{text}",
    options="options",
    choices=2,
  ),
  "spans": encoder(
    "span_qa", "jsonl", "{}.spans.jsonl", {"name": "spans"}, stride=4, question_length=4
  ),
  "scores": encoder(
    "classification",
    "tsv",
    "{}.scores.tsv",
    {"name": "classification", "labels": 1},
    text="{a}",
    pair="{b}",
    label_field="score",
  ),
  "generated": (T5, generated),
  "infilled": (T5, infilled),
  "rewarded": (DECODER, rewarded),
  "images": (VIT, images),
  "captions": (CLIP, captions),
  "boxes": (DETR, boxes),
}


class Run:
  """A finished run with two instances of each of its evaluators, one with the usual split and one
  with another."""

  def __init__(self, name: str, folder):
    recipe, flags = RUNS[name]
    self.workdir = folder / "runs" / name
    self._folder = folder
    values = {
      evaluator: case.arguments(folder) for evaluator, case in CASES.items() if case.run == name
    }
    instances = {f"{evaluator}_own": {"name": evaluator} | own for evaluator, own in values.items()}
    instances |= {
      f"{evaluator}_held": {"name": evaluator, "split": "held"} | own
      for evaluator, own in values.items()
    }
    given = [
      "total_steps=2",
      *flags(folder),
      "batch_size=8",
      "eval_every=1000",
      f"evals={json.dumps(instances)}",
    ]
    command = [
      f"--config={recipe}",
      f"--workdir={self.workdir}",
      *(f"--config.{flag}" for flag in given),
    ]
    assert train.main(command) == 0
    self.metrics = collections.defaultdict(dict)
    for name, value in read_metrics(self.workdir)[-1].items():
      if name.startswith("eval/"):
        _, label, metric = name.split("/")
        self.metrics[label][metric] = value

  @functools.cached_property
  def _model(self):
    run = saved_model.open_saved_model(
      str(self.workdir), Rules.make(make_mesh({"data": 1}, jax.devices()[:1]))
    )
    return run.config, params.with_arrays(run.model, run.restore()[1])

  def opened(self, split: str):
    """(model with its parameters, all examples of a split of its task in one batch, the task)."""
    config, model = self._model
    made = tasks.build(split=split, **config.task.to_dict())
    # one shape for all splits
    (batch,) = loader.eval_batches(made, batch_size=max(made.num_examples, *SIZES.values()))
    return model, batch, made


@pytest.fixture(scope="module")
def runs(folder):
  return functools.cache(lambda name: Run(name, folder))


class Case(NamedTuple):
  """How an evaluator is tested.

  Attributes:
    run: of `RUNS`.
    count, metric: the metrics compared: the number of what was scored, and a score.
    right: `(split) -> the scores that are possible` or, of those that need the model, `(run, split)
      -> the score`.
    arguments: `(folder) -> the arguments of its instances`.
  """

  run: str
  count: str
  metric: str
  right: Callable
  arguments: Callable = lambda folder: {}


def entropy(run: Run, split: str) -> float:
  shares = [
    collections.Counter(label for _, label in SPLITS[split])[label] / SIZES[split] for label in "ab"
  ]
  return -sum(p * math.log(p) for p in shares)


EMBED = (
  jax.jit(lambda model, batch: model.embed_images(batch)[0]),
  jax.jit(lambda model, batch: model.embed_texts(batch)[0]),
)


def recall(run: Run, split: str) -> float:
  model, batch, made = run.opened(split)
  tokens_CT, image_C = made.captions()
  padded_CT = np.zeros((max(SIZES.values()), tokens_CT.shape[1]), np.int32)
  padded_CT[: len(tokens_CT)] = tokens_CT
  text_CP = EMBED[1](model, {"text_input_tokens": padded_CT})[: len(tokens_CT)]
  cosine_NC = np.asarray(EMBED[0](model, batch)[: SIZES[split]] @ text_CP.T)
  return 100 * float(np.mean(image_C[cosine_NC.argmax(axis=1)] == np.arange(SIZES[split])))


def correlation(run: Run, split: str) -> float:
  model, _, made = run.opened(split)
  encode = jax.jit(lambda model, ids: model.encode({"encoder_input_tokens": ids})[0])

  def embedded(text: str) -> np.ndarray:
    ids = _embeddings.encode_text(made.vocabulary, text, 16)
    mean_D = np.mean(encode(model, np.array([ids]))[0], axis=0)
    return mean_D / np.linalg.norm(mean_D)

  pairs = [(float(np.dot(*map(embedded, one["text"]))), one["label"]) for one in made.examples(())]
  return 100 * float(np.corrcoef(*zip(*pairs))[0, 1])


def precision(run: Run, split: str) -> float:
  model, batch, made = run.opened(split)
  found = jax.jit(lambda model, batch: detection.top_detections(model.outputs(batch)))(model, batch)
  score_NQ, class_NQ, box_NQ4 = (np.asarray(x)[: SIZES[split]] for x in found)
  found = [
    (n, detection.to_corners(box_Q4.astype(np.float64)) * 16, class_Q, score_Q)
    for n, (score_Q, class_Q, box_Q4) in enumerate(zip(score_NQ, class_NQ, box_NQ4))
  ]
  return detection.average_precision(made.boxes, found, ("thing",))["AP"]


def commonest(run: Run, split: str) -> float:
  _, batch, made = run.opened(split)
  sentinels = set(made.vocabulary.sentinels)
  spans = collections.Counter()
  for row in batch["decoder_target_tokens"][: made.num_examples].tolist():
    row = row[: row.index(made.vocabulary.eos_id)]
    starts = [place for place, token in enumerate(row) if token in sentinels]
    spans.update(tuple(row[a + 1 : b]) for a, b in zip(starts, [*starts[1:], len(row)]))
  return max(spans.values()) / spans.total()


def classes(folder) -> dict:
  values = {
    "source": source(folder, "folders", "{}"),
    "resolution": 16,
    "crop": 1.0,
    "cache": str(folder / "cache"),
  }
  return {"templates": ["{}"], "length": 24, "task": {"name": "image_classification"} | values}


by_kind = lambda split: {share(split, {"dark": "a", "bright": "b"}.get)}  # noqa: E731
CASES = {
  "classification": Case("classification", "examples", "accuracy", of_one_input),
  "detection": Case("boxes", "images", "AP", precision),
  "embedding": Case("scores", "examples", "pearson", correlation),
  "few_shot": Case("images", "8_shot_images", "8_shot_top1", by_kind, lambda folder: {"shots": 8}),
  "generation": Case(
    "generated", "examples", "exact_match", lambda split: {share(split, lambda _: "a")}
  ),
  "image_classification": Case("images", "images", "top1", of_two_inputs),
  "knn": Case("images", "knn_images", "knn_top1", by_kind, lambda folder: {"neighbours": 3}),
  "loss": Case("classification", "examples", "unigram_entropy", entropy),
  "multiple_choice": Case("choices", "examples", "accuracy", of_one_input),
  "retrieval": Case("captions", "images", "image_to_text_r1", recall, lambda folder: {"at": [1]}),
  "reward": Case(
    "rewarded", "examples", "reward", lambda split: {share(split, lambda _: "a") / 100}
  ),
  "span_infilling": Case("infilled", "sequences", "commonest_span", commonest),
  "span_qa": Case(
    "spans",
    "examples",
    "exact",
    lambda split: {share(split, lambda _: "a")},
    lambda folder: {"unanswerable": True, "null_threshold": 1e9},
  ),
  "tagging": Case("tagging", "examples", "accuracy", of_one_input),
  "zero_shot": Case("captions", "images", "top1", of_two_inputs, classes),
}


# Evaluators of one model and one run stand for those that read the same batches.
USUAL = ("loss", "generation", "classification", "span_infilling", "knn")
SPLIT_CASES = [name if name in USUAL else more.later(name) for name in ALL if name not in OTHERS]


@pytest.mark.parametrize("name", SPLIT_CASES)
def test_the_split_of_its_instance_is_scored(name, runs):
  assert name in CASES, f"add a case of evaluator {name} to CASES"
  case = CASES[name]
  run = runs(case.run)
  if "run" in inspect.signature(case.right).parameters:
    every = [case.right(run, split) for split in SPLITS]
    assert len(set(every)) == len(SPLITS), "a score of another split would be the same"
    right_of = dict(zip(SPLITS, ({value} for value in every))).get
  else:
    right_of = case.right
  for split, label in zip(SCORED, (f"{name}_own", f"{name}_held")):
    found = run.metrics[label]
    assert any(found[case.metric] == pytest.approx(right, abs=1e-3) for right in right_of(split)), (
      split,
      found,
    )
    size = SIZES[split] if name != "span_infilling" else run.opened(split)[2].num_examples
    assert found[case.count] == size, (split, found)


def test_evaluate_says_which_split_was_scored(runs, capsys):
  run = runs("images")
  assert evaluate.main([f"--workdir={run.workdir}", "--evals=few_shot_own,few_shot_held"]) == 0
  told = capsys.readouterr().out
  for label, split in (("few_shot_own", "validation"), ("few_shot_held", "held")):
    assert re.search(rf"{label}: task \w+, split {split}\n", told), told
    saved = json.loads((run.workdir / "evaluations" / f"2_{label}_{split}.json").read_text())
    assert saved["metrics"]["8_shot_top1"] == pytest.approx(run.metrics[label]["8_shot_top1"])


@pytest.mark.parametrize("name, split", [("few_shot", "train"), ("knn", "train[:9]")])
def test_evaluators_refuse_to_score_images_that_they_learn_from(name, split, runs, capsys):
  given = json.dumps({"few": {"name": name, "split": split}})
  assert evaluate.main([f"--workdir={runs('images').workdir}", f"--config.evals={given}"]) == 2
  assert f"found the split {split!r} and the support_split 'train'" in capsys.readouterr().err


class Shadowing:
  def __init__(self, context, *, split: str = "train"):
    pass


def test_an_evaluator_that_shadows_a_key_is_refused(runs, capsys):
  given = json.dumps({"mine": {"name": f"{__name__}:Shadowing"}})
  assert evaluate.main([f"--workdir={runs('images').workdir}", f"--config.evals={given}"]) == 2
  assert re.search(
    r"config.evals.mine: .*Shadowing declares the argument 'split'", capsys.readouterr().err
  )
  with pytest.raises(UserError, match="declares the argument 'split'"):
    slots.fill("x", {}, Shadowing, supplied=("context",), records=(Instance,))
