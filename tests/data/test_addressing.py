"""In every task, a row of a batch is a function of its step, whatever rows a host reads."""

import itertools
import json

import numpy as np
import pytest

import more
from corpora import assert_same
from t5x_like import slots
from t5x_like.data import loader, task, task_features, tasks
from tests import topics

pytestmark = pytest.mark.runs

B = 8
STEP = 5
ROWS = ((0, 2, 4, 5, 6), (1, 3, 7))  # of two hosts; test_loader.py tests more of them
BUILTIN = {"store": "builtin"}
WORDS = "one two three four five six seven eight nine ten".split()


def pair_table() -> str:
  """Return a table with two texts, a label and a number for each pair of words."""
  lines = ["a\tb\tlabel\tnumber"]
  for x, y in itertools.product(WORDS, WORDS):
    label = "yes" if x < y else "no"
    lines.append(f"{x} {y}\t{y} {x} {x}\t{label}\t{len(x)}")
  return "\n".join(lines)


CONLL = "\n\n".join("\n".join(f"{word}\tO" for word in WORDS[i % 7 :]) for i in range(60)) + "\n"


def squad_json() -> str:
  """Return SQuAD's JSON with a question about each word."""
  context = " ".join(WORDS)
  questions = []
  for word in WORDS:
    answers = [{"text": word, "answer_start": context.index(word)}]
    questions.append({"id": word, "question": f"After {word}?", "answers": answers})
  paragraph = {"context": " ".join(WORDS * 3), "qas": questions}
  return json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]})


def conversations_and_choices() -> str:
  """Return JSON lines with the fields of chat, preferences, prompts and multiple choice."""
  lines = []
  for number, (x, y) in enumerate(itertools.product(WORDS, WORDS)):
    row = {
      "messages": [{"role": "user", "content": x}, {"role": "assistant", "content": y}],
      "prompt": x,
      "chosen": y,
      "rejected": f"{y} {x}",
      "options": [x, y],
      "label": number % 2,
    }
    lines.append(json.dumps(row))
  return "\n".join(lines)


FILES = {
  "tsv": pair_table(),
  "conll": CONLL,
  "squad": squad_json(),
  "jsonl": conversations_and_choices(),
}
TEXTS = {
  "file": "tsv",
  "inputs": "{a}",
  "targets": "{b}",
  "inputs_length": 64,
  "targets_length": 64,
}
ALL_AUGMENTATIONS = {
  "augmentations": ("random_resized_crop", {"name": "randaugment", "ops": 1}, "erase"),
  "mixing": {"mixup": 0.8, "cutmix": 1.0, "probability": 0.9},
}
CASES = {
  "span_corruption": [
    {"inputs_length": 64},
    {"inputs_length": 64, "prefix": "[NLU] ", "random_roll": True},
    {"inputs_length": 64, "targets_length": 50, "noise_density": 0.2},
    {"inputs_length": 64, "as_decoder": "prefix"},
  ],
  "denoising": [
    {"style": style, "inputs_length": 64}
    for style in ("bert_style", "mass_style", "replace_spans", "drop_tokens", "deshuffling")
  ],
  "causal_lm": [{"length": 64}, {"length": 64, "document_mask": True}],
  "prefix_lm": [{"length": 64}, {"length": 64, "architecture": "encoder_decoder"}],
  "ul2": [{"length": 64}, {"length": 64, "mode_tokens": True, "rates": {"x_3": 0, "x_64": 0}}],
  "bart": [{"length": 64}, {"length": 64, "rotate": True}],
  "mlm": [
    {"length": 64},
    {"length": 64, "masking": "words"},
    {"length": 64, "input_format": "segment_pair"},
    {"length": 64, "masking": "spans", "input_format": "doc_sentences", "segment_ids": False},
    {"length": 64, "input_format": "sentence_pair", "static_copies": 2},
  ],
  "mixture": [
    {
      "parts": {
        "x": {"name": "span_corruption"},
        "y": {"name": "denoising", "style": "replace_spans", "noise_density": 0.3},
      },
      "shared": {"store": "builtin", "inputs_length": 64},
      "period": 20,
    },
    {
      "parts": {"x": {"masking": "words"}, "y": {"static_copies": 2}},
      "period": 20,
      "shared": {"name": "mlm", "store": "builtin", "length": 64},
    },
  ],
  "text_to_text": [
    TEXTS,
    TEXTS | {"packed": False},
    TEXTS | {"architecture": "decoder", "targets_length": None},
  ],
  "classification": [
    {"file": "tsv", "text": "{a}", "pair": "{b}", "labels": ["no", "yes"], "length": 48},
    {"file": "tsv", "text": "{a}", "label_field": "number", "length": 48},
  ],
  "translation_lm": [{"file": "tsv", "text": "{a}", "pair": "{b}", "length": 64}],
  "tagging": [{"file": "conll", "tags": ["O"], "tags_field": "1", "length": 64}],
  "chat": [{"file": "jsonl", "length": 64}],
  "multiple_choice": [
    {"file": "jsonl", "text": "{prompt}", "options": "options", "choices": 2, "length": 48}
  ],
  "span_qa": [{"file": "squad", "length": 64, "stride": 16}],
  "image_classification": [
    {"images": "digits", "resolution": 12, "channels": 1} | ALL_AUGMENTATIONS
  ],
  "masked_images": [{"images": "digits", "resolution": 12, "patch": 3}],
  "corrupted_images": [{"images": "digits", "resolution": 12, "patch": 3}],
  "image_text": [{"images": "digits", "resolution": 12, "caption_field": "label", "length": 8}],
} | topics.cases("TASKS")


# A task that CASES does not list is tested with its defaults on the built-in corpus.
SOME_CASES = []
ALL_CASES = []
for name in slots.names(tasks):
  cases = [(name, arguments) for arguments in CASES.get(name, [{}])]
  SOME_CASES += more.beyond(1, cases)
  ALL_CASES += cases


@pytest.mark.parametrize(("name", "arguments"), ALL_CASES, ids=str)
def test_features_declared_without_data_equal_the_features_of_the_task(name, arguments, tmp_path):
  arguments = add_data(name, arguments, tmp_path)
  declared = task_features.declare({"name": name, **arguments})
  assert declared == task.build(name, "train", **arguments).features


@pytest.mark.parametrize(("name", "arguments"), SOME_CASES, ids=str)
def test_batch_is_the_same_from_any_start_step_and_for_any_rows(name, arguments, tmp_path):
  tested_task = build_task(name, arguments, tmp_path)

  def read(rows):
    return next(loader.train_batches(tested_task, batch_size=B, seed=5, start_step=STEP, rows=rows))

  batches = itertools.islice(loader.train_batches(tested_task, batch_size=B, seed=5), STEP + 1)
  batch = list(batches)[STEP]
  assert_features(batch, tested_task)
  parts = [read(rows) for rows in ROWS]
  order = np.argsort(np.concatenate(ROWS))
  joined = {n: np.concatenate([part[n] for part in parts])[order] for n in batch}
  assert_same(joined, batch)
  eval_batch = next(loader.eval_batches(tested_task, batch_size=B, max_examples=B - 1))
  assert eval_batch.pop("example_index").tolist() == [*range(B - 1), -1]
  assert_features(eval_batch, tested_task)
  for x in eval_batch.values():
    assert not x[-1].any()


def assert_features(batch, tested_task) -> None:
  """Assert that a batch has the features that its task declares."""
  assert batch.keys() == tested_task.features.keys()
  for name, feature in tested_task.features.items():
    assert batch[name].shape == (B, *feature.shape)
    assert batch[name].dtype == feature.dtype


def build_task(name, arguments, tmp_path) -> task.Task:
  return task.build(name, "train", **add_data(name, arguments, tmp_path))


def add_data(name, arguments, tmp_path) -> dict:
  """Return the arguments of a case, completed by its data and a cache in a directory."""
  arguments = dict(arguments)
  if "images" in arguments:
    images = arguments.pop("images")
    return arguments | {"source": images, "cache": str(tmp_path)}
  if "file" in arguments:
    form = arguments.pop("file")
    (tmp_path / "rows").write_text(FILES[form])
    source = {"source": f"{form}:{tmp_path}/rows", "cache": str(tmp_path / "cache")}
    return {"vocabulary": "bytes"} | source | arguments
  if name == "mixture":
    return arguments
  return BUILTIN | arguments
