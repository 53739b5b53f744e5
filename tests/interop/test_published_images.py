"""The preparation of images that is written beside an exported model is the one of its training's evaluations."""

import json
from types import SimpleNamespace

import pytest

from t5x_like.data.images import described
from t5x_like.inference.image_texts import TextChoice
from t5x_like.interop import published_images

PIXELS = {"mean": (0.4,), "std": (0.1, 0.2, 0.3)}
MADE = {"mean": (0.4, 0.4, 0.4), "std": (0.1, 0.2, 0.3), "channels": 3}


@pytest.mark.parametrize(
  "task, expected",
  [
    ({"name": "image_classification", "resolution": 28, **PIXELS}, {"resolution": 28, "crop": 0.875, **MADE}),
    ({"name": "masked_images", "fit": "squeezed", **PIXELS}, {"resolution": 224, "fit": "squeezed", **MADE}),
    (
      {"name": "image_classification", "resolution": [28, 40], "fit": "squeezed", **PIXELS},
      {"fit": "squeezed", **MADE},
    ),
    ({"name": "object_detection", "shortest": 64, "resolution": 99, **PIXELS}, {"shortest": 64, **MADE}),
    (
      {"name": "image_classification", "channels": 1, "crop": 1.0},
      {"mean": (0.5,), "std": (0.5,), "channels": 1, "crop": 1.0},
    ),
  ],
)
def test_what_is_written_is_read_back(task, expected, tmp_path):
  task = {"source": "digits", "split": "train", **task}
  (tmp_path / published_images.FILE).write_text(json.dumps(published_images.processor(task)))
  variant = SimpleNamespace(channels=task.get("channels", 3), resolution=task.get("resolution", 224))
  if task["name"] == "object_detection":
    variant.queries = 5
  found = published_images.task_of(variant, {}, str(tmp_path), "--workdir")
  assert found | expected == found


@pytest.mark.parametrize(
  "kind, own, expected",
  [  # as published files have them
    ("ViTFeatureExtractor", {"size": 224}, {"fit": "squeezed"}),
    ("DeiTFeatureExtractor", {"size": 256, "do_center_crop": True, "crop_size": 224}, {"crop": 0.875}),
    ("ConvNextFeatureExtractor", {"size": 224, "crop_pct": 0.875}, {"crop": 0.875}),
    ("ConvNextImageProcessor", {"size": {"shortest_edge": 224}}, {"crop": 0.875}),
    ("ConvNextImageProcessor", {"size": {"shortest_edge": 384}, "crop_pct": 0.875}, {"fit": "squeezed"}),
    ("CLIPFeatureExtractor", {"size": 224, "do_center_crop": True, "crop_size": 224}, {"crop": 1.0}),
    ("DetrFeatureExtractor", {"size": 512, "max_size": 640}, {"shortest": 512, "resolution": 640}),
  ],
)
def test_older_files_and_each_processor_are_followed(kind, own, expected, tmp_path):
  content = {"feature_extractor_type": kind, "image_mean": [0.5] * 3, "image_std": [0.5] * 3} | own
  (tmp_path / published_images.FILE).write_text(json.dumps(content))
  variant = (
    SimpleNamespace(channels=3, resolution=224) if "Detr" not in kind else SimpleNamespace(channels=3, queries=5)
  )
  found = published_images.task_of(variant, {}, str(tmp_path), "--workdir")
  assert found | expected == found and ("crop" in found) + ("fit" in found) + ("shortest" in found) == 1


def test_images_that_the_library_prepares_otherwise_have_no_file():
  task = {"name": "image_classification", "resolution": [28, 40]}
  assert published_images.processor(task) is None and published_images.pretrained(task) == {}
  assert published_images.processor({"name": "image_classification", "fit": "padded"}) is None
  timms = published_images.pretrained({"name": "image_classification", "resolution": 28, **PIXELS})
  assert timms["crop_pct"] == 0.875 and timms["mean"] == [0.4] * 3 and timms["crop_mode"] == "center"


def test_predictions_have_the_defaults_of_the_task_of_training():
  """Images with captions are not cut out of larger ones, and have CLIP's mean."""
  reader = SimpleNamespace()
  TextChoice.read_options(reader, SimpleNamespace(resolution=8, channels=3), {"name": "image_text"}, {})
  usual = described.arguments({"name": "image_text"})
  assert reader._way == (1.0, "cut", usual["mean"]) and usual["mean"][0] == 0.48145466
