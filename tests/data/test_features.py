"""The features that are declared without a task's data are those of the task."""

import pytest

from t5x_like import slots
from t5x_like.data import task_features, tasks
from t5x_like.data.task import build

BUILT_IN = {"store": "builtin", "split": "train"}


@pytest.mark.parametrize(
  "arguments",
  [
    {"name": "bart", "length": 64},
    {"name": "causal_lm"},
    {"name": "causal_lm", "length": 64, "document_mask": True},
    {"name": "denoising", "style": "drop_tokens", "inputs_length": 64},
    {"name": "denoising", "style": "replace_spans", "inputs_length": 64, "noise_density": 0.3},
    {"name": "denoising", "style": "bert_style"},
    {"name": "mlm", "length": 64},
    {
      "name": "mlm",
      "length": 64,
      "input_format": "segment_pair",
      "masking": "spans",
      "segment_ids": False,
    },
    {"name": "permutation_lm", "length": 64, "input_format": "segment_pair", "masking": "spans"},
    {"name": "prefix_lm", "length": 64},
    {"name": "prefix_lm", "architecture": "encoder_decoder"},
    {"name": "denoising", "style": "replace_spans", "inputs_length": 64, "as_decoder": "causal"},
    {"name": "span_corruption"},
    {"name": "span_corruption", "inputs_length": 64, "prefix": "[NLU] ", "random_roll": True},
    {"name": "span_corruption", "inputs_length": 64, "targets_length": 50, "noise_density": 0.2},
    {"name": "span_corruption", "inputs_length": 64, "as_decoder": "prefix"},
    {"name": "ul2", "length": 128, "mode_tokens": True},
    {"name": "ul2", "length": 128, "rates": {"x_3": 0, "x_8": 0, "x_64": 0}, "random_roll": True},
  ],
  ids=str,
)
def test_features_of_tasks_on_stores(arguments):
  features = task_features.declare({"store": "builtin", **arguments})
  assert features == build(**BUILT_IN, **arguments).features


def test_features_of_mixtures():
  parts = {
    "a": {"name": "span_corruption", "targets_length": 40},
    "b": {"name": "ul2", "length": 64},
  }
  arguments = {"name": "mixture", "parts": parts, "shared": {"store": "builtin"}}
  parts["a"]["inputs_length"] = 100
  assert task_features.declare(arguments) == build(split="train", **arguments).features


@pytest.mark.parametrize(
  "changes",
  [
    {},
    {"packed": False, "targets_length": 40},
    {"architecture": "decoder", "prefix": True},
    {"architecture": "decoder", "packed": False},
  ],
  ids=str,
)
def test_features_of_examples(changes, tmp_path):
  arguments = {
    "name": "text_to_text",
    "source": "builtin",
    "inputs": "reverse: {text}",
    "targets": "{reversed}",
  }
  arguments |= {"inputs_length": 1024, "too_long": "skip", "cache": str(tmp_path), **changes}
  assert task_features.declare(arguments) == build(split="validation", **arguments).features


@pytest.mark.parametrize(
  "contents, arguments",
  [
    (
      "text\tlabel\na\tx\nb\ty\n",
      {"name": "classification", "text": "{text}", "labels": ["x", "y"], "length": 32},
    ),
    ("text\tlabel\na\t1\nb\t2\n", {"name": "classification", "text": "{text}", "length": 32}),
    ('{"tokens": ["a", "b"], "tags": ["O", "B"]}\n', {"name": "tagging", "tags": ["O", "B"]}),
    (
      '{"id": "1", "question": "who", "context": "it is Ada", "answers": [{"text": "Ada", '
      '"answer_start": 6}]}\n',
      {"name": "span_qa", "length": 64, "stride": 16, "question_length": 16},
    ),
  ],
  ids=str,
)
def test_features_of_labelled_examples(contents, arguments, tmp_path):
  path = tmp_path / "data"
  path.write_text(contents)
  form = "jsonl" if contents.startswith("{") else "tsv"
  arguments = arguments | {"source": f"{form}:{path}", "cache": str(tmp_path / "cache")}
  assert task_features.declare(arguments) == build(split="train", **arguments).features


@pytest.mark.parametrize(
  "changes",
  [
    {"name": "image_classification"},
    {"name": "image_classification", "resolution": 12, "channels": 1, "mixing": {"mixup": 0.5}},
    {"name": "masked_images", "mask_ratio": 0.6},
    {"name": "corrupted_images", "patch": 32},
    {"name": "image_text", "resolution": 12, "length": 9, "caption_field": "label"},
  ],
  ids=str,
)
def test_features_of_images(changes, tmp_path):
  arguments = {"source": "digits", "cache": str(tmp_path), **changes}
  assert task_features.declare(arguments) == build(split="validation", **arguments).features


def test_every_task_of_the_package_is_known():
  names = slots.names(tasks)
  assert {name for name in names if not task_features.is_known(name)} == set()
