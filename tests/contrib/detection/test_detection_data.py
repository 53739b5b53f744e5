"""The task of detection: its features and splits, and its images without TensorFlow."""

import json

import numpy as np
import pytest

from t5x_like.contrib.detection.data.box_augmentations import _sizes
from t5x_like.corpora.sources import open_source
from t5x_like.data import task_features
from t5x_like.data.images import pictures
from t5x_like.data.task import build
from t5x_like.errors import UserError
from t5x_like.quiet_tensorflow import tf
from tests.image_files import encode


def test_features_of_images_with_boxes(tmp_path):
  arguments = {
    "name": "object_detection",
    "source": "digit_scenes",
    "cache": str(tmp_path),
    "boxes": 5,
  }
  arguments |= {"resolution": 48, "channels": 1, "mean": (0.5,), "std": (0.5,)}
  assert task_features.declare(arguments) == build(split="validation", **arguments).features


def test_the_first_images_of_a_split_are_a_split(tmp_path):
  task = build("object_detection", "train[:4]", source="digit_scenes", cache=str(tmp_path))
  assert task.num_examples == 4


def test_annotations_name_images_of_their_directory(tmp_path):
  (tmp_path / "images" / "sub").mkdir(parents=True)
  for name in ("secret.png", "images/sub/a.png"):
    (tmp_path / name).write_bytes(encode(np.zeros((8, 8, 3), np.uint8)))
  image = {"id": 1, "height": 8, "width": 8}

  def coco(name):
    content = {
      "images": [image | {"file_name": name}],
      "annotations": [],
      "categories": [{"id": 1, "name": "c"}],
    }
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    return list(open_source(f"coco:train={tmp_path}/boxes.json@{tmp_path}/images").records("train"))

  assert coco("sub/a.png")[0][1]["image"]
  for name in ("../secret.png", f"/{tmp_path}/secret.png", "sub/../../secret.png", 3):
    with pytest.raises(
      UserError,
      match=r"boxes.json, image 0: found file_name .*, expected a "
      r"path below",
    ):
      coco(name)
  (tmp_path / "voc" / "ImageSets" / "Main").mkdir(parents=True)
  (tmp_path / "voc" / "ImageSets" / "Main" / "train.txt").write_text("../../secret\n")
  with pytest.raises(UserError, match=r"train.txt: found '../../secret', expected a name"):
    open_source(f"voc:{tmp_path}/voc")


def test_sides_for_a_detector_are_rounded_down():
  assert pictures.resize_sides(np.zeros((48, 77, 1)), 40, 99).shape == (40, 64, 1)  # from 64.17
  assert pictures.resize_sides(np.zeros((77, 48, 1)), 41, 60).shape == (60, 37, 1)  # from 37.4


@pytest.mark.parametrize(
  "shape, shortest, longest", [((9, 7, 3), 5, 8), ((31, 50, 1), 40, 60), ((8, 8, 3), 8, 8)]
)
def test_an_image_for_a_detector_is_the_same_without_tensorflow(shape, shortest, longest):
  image = np.random.default_rng(0).integers(0, 256, shape).astype(np.float32)
  expected = _sizes.resize_sides(tf.constant(image), tf.constant(shortest), longest).numpy()
  np.testing.assert_allclose(pictures.resize_sides(image, shortest, longest), expected, atol=2e-3)
