"""The image processor written beside a model prepares images as its evaluations do."""

import json
from types import SimpleNamespace

import pytest

from t5x_like.data.images import layout, pictures
from t5x_like.inference.image_texts import TextChoice
from t5x_like.interop import published_images
from tests.refusals import refuses

PIXELS = {"mean": (0.4,), "std": (0.1, 0.2, 0.3)}
COLOURS = {"mean": (0.4, 0.4, 0.4), "std": (0.1, 0.2, 0.3), "channels": 3}


def read_task(folder, processor=None, config=None, **variant) -> dict:
  """Return the task that prepares images as a directory's processor does."""
  if processor is not None:
    (folder / published_images.FILE).write_text(json.dumps(processor))
  variant = SimpleNamespace(**{"channels": 3, "resolution": 224} | variant)
  return published_images.read_image_task(variant, config or {}, str(folder), "--workdir")


def assert_has(actual: dict, expected: dict):
  assert {key: actual.get(key) for key in expected} == expected


@pytest.mark.parametrize(
  ("task", "expected"),
  [
    (
      {"name": "image_classification", "resolution": 28, **PIXELS},
      {"resolution": 28, "crop": 0.875, **COLOURS},
    ),
    (
      {"name": "masked_images", "fit": "squeezed", **PIXELS},
      {"resolution": 224, "fit": "squeezed", **COLOURS},
    ),
    (
      {"name": "image_classification", "resolution": [28, 40], "fit": "squeezed", **PIXELS},
      {"fit": "squeezed", **COLOURS},
    ),
    (
      {"name": "image_classification", "channels": 1, "crop": 1.0},
      {"mean": (0.5,), "std": (0.5,), "channels": 1, "crop": 1.0},
    ),
  ],
)
def test_a_written_file_is_read_back(task, expected, tmp_path):
  processor = published_images.processor_config({"source": "digits", "split": "train", **task})
  sizes = {key: task[key] for key in ("channels", "resolution") if key in task}
  assert_has(read_task(tmp_path, processor, **sizes), expected)


CUT = {"do_center_crop": True, "crop_size": 224}


@pytest.mark.parametrize(
  ("processor", "fields", "expected"),
  [  # as published files have them
    ("ViTFeatureExtractor", {"size": 224}, {"fit": "squeezed", "method": "bilinear"}),
    (
      "DeiTFeatureExtractor",
      {"size": 256, **CUT},
      {"crop": 0.875, "fit": "squeezed_cut", "method": "bicubic"},
    ),
    ("ViTImageProcessor", {"size": 224, "do_normalize": False}, {"mean": (0.0,), "std": (1.0,)}),
    (
      "ViTImageProcessor",
      {"size": 224, "do_rescale": False, "image_mean": [51.0] * 3, "image_std": [25.5] * 3},
      {"mean": (0.2,) * 3, "std": (0.1,) * 3, "method": "bilinear"},
    ),
    (
      "ViTImageProcessor",
      {"size": 224, "resample": 3, "rescale_factor": 2 / 255},
      {"mean": (0.25,) * 3, "method": "bicubic"},
    ),
    ("ConvNextFeatureExtractor", {"size": 224, "crop_pct": 0.875}, {"crop": 0.875}),
    ("ConvNextImageProcessor", {"size": {"shortest_edge": 224}}, {"crop": 0.875}),
    ("ConvNextImageProcessor", {"size": {"shortest_edge": 384}}, {"fit": "squeezed"}),
    ("CLIPFeatureExtractor", {"size": 224, **CUT}, {"crop": 1.0, "method": "bicubic"}),
    ("DetrFeatureExtractor", {"size": 512, "max_size": 640}, {"shortest": 512, "resolution": 640}),
  ],
)
def test_older_files_and_each_processor_are_followed(processor, fields, expected, tmp_path):
  pixels = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
  content = {"feature_extractor_type": processor} | pixels | fields
  variant = {"queries": 5} if "Detr" in processor else {}
  assert_has(read_task(tmp_path, content, **variant), expected)


@pytest.mark.parametrize("changes", [{"resolution": [28, 40]}, {"fit": "padded"}])
def test_images_that_the_library_prepares_otherwise_have_no_file(changes):
  task = {"name": "image_classification"} | changes
  assert published_images.processor_config(task) is None


def test_timm_has_no_form_of_oblong_images():
  task = {"name": "image_classification", "resolution": [28, 40]}
  assert published_images.timm_pretrained_config(task) == {}
  config = published_images.timm_pretrained_config(task | {"resolution": 28} | PIXELS)
  assert_has(config, {"crop_pct": 0.875, "mean": [0.4] * 3, "crop_mode": "center"})


def test_predictions_have_the_defaults_of_the_task_of_training():
  """Images with captions are not cut out of larger ones, and have CLIP's mean."""
  reader = SimpleNamespace()
  variant = SimpleNamespace(resolution=8, channels=3)
  TextChoice.read_options(reader, variant, {"name": "image_text"}, {})
  defaults = layout.fill_defaults({"name": "image_text"})
  assert reader._fit_options == {name: defaults[name] for name in ("crop", "fit", "mean", "method")}
  assert defaults["crop"] == 1.0
  assert defaults["mean"][0] == 0.48145466


def test_a_model_of_any_size_takes_the_size_and_interpolation_of_its_processor(tmp_path):
  dinov2 = dict(config={"model_type": "dinov2"}, resolution=518)
  sizes = {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}
  content = {"image_mean": 0.5, "image_std": 0.5, "resample": 1} | sizes
  task = read_task(tmp_path, content, **dinov2)
  assert_has(task, {"resolution": 224, "crop": 0.875, "method": "lanczos", "mean": (0.5,)})
  with refuses("resample 4", "nearest, lanczos, bilinear, bicubic"):
    read_task(tmp_path, content | {"resample": 4}, **dinov2)


@pytest.mark.parametrize(
  ("side", "crop", "uncut_side"), [(256, 0.875, 292), (384, 0.875, 438), (224, 0.9, 248)]
)
def test_evaluations_resize_to_a_size_rounded_down_as_the_authors_do(side, crop, uncut_side):
  task = {"name": "image_classification", "resolution": side, "crop": crop}
  assert published_images.processor_config(task)["size"] == {"shortest_edge": uncut_side}
  for n in range(side, 2 * side):
    assert pictures.covering_size(side, side / n) == n


@pytest.mark.parametrize(
  ("crop", "mode", "whole_side", "expected"),
  [
    (0.9, "center", 248, {"crop": 224 / 248}),
    (0.95, "squash", 235, {"crop": 224 / 235, "fit": "squeezed_cut"}),
    (1.0, "squash", 224, {"fit": "squeezed"}),
  ],
)
def test_timms_share_is_of_whole_pixels_rounded_down_both_ways(
  crop, mode, whole_side, expected, tmp_path
):
  pixels = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bilinear"}
  config = {"pretrained_cfg": pixels | {"crop_pct": crop, "crop_mode": mode}}
  task = read_task(tmp_path, config=config)
  assert_has(task, expected | {"method": "bilinear"})
  exported = published_images.timm_pretrained_config(task)
  assert int(224 / exported["crop_pct"]) == whole_side
  assert_has(exported, pixels | {"crop_mode": mode})
