"""The preparation of images that is written beside an exported model is the one of its training's
evaluations."""

import json
from types import SimpleNamespace

import pytest

from t5x_like.data.images import layout, pictures
from t5x_like.errors import UserError
from t5x_like.inference.image_texts import TextChoice
from t5x_like.interop import published_images

PIXELS = {"mean": (0.4,), "std": (0.1, 0.2, 0.3)}
MADE = {"mean": (0.4, 0.4, 0.4), "std": (0.1, 0.2, 0.3), "channels": 3}


@pytest.mark.parametrize(
  "task, expected",
  [
    (
      {"name": "image_classification", "resolution": 28, **PIXELS},
      {"resolution": 28, "crop": 0.875, **MADE},
    ),
    (
      {"name": "masked_images", "fit": "squeezed", **PIXELS},
      {"resolution": 224, "fit": "squeezed", **MADE},
    ),
    (
      {"name": "image_classification", "resolution": [28, 40], "fit": "squeezed", **PIXELS},
      {"fit": "squeezed", **MADE},
    ),
    (
      {"name": "image_classification", "channels": 1, "crop": 1.0},
      {"mean": (0.5,), "std": (0.5,), "channels": 1, "crop": 1.0},
    ),
  ],
)
def test_what_is_written_is_read_back(task, expected, tmp_path):
  task = {"source": "digits", "split": "train", **task}
  (tmp_path / published_images.FILE).write_text(json.dumps(published_images.processor_config(task)))
  variant = SimpleNamespace(
    channels=task.get("channels", 3), resolution=task.get("resolution", 224)
  )
  found = published_images.image_task(variant, {}, str(tmp_path), "--workdir")
  assert found | expected == found


@pytest.mark.parametrize(
  "processor, fields, expected",
  [  # as published files have them
    ("ViTFeatureExtractor", {"size": 224}, {"fit": "squeezed"}),
    (
      "DeiTFeatureExtractor",
      {"size": 256, "do_center_crop": True, "crop_size": 224},
      {"crop": 0.875, "fit": "squeezed_cut"},
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
      {"mean": (0.25,) * 3},
    ),
    ("ConvNextFeatureExtractor", {"size": 224, "crop_pct": 0.875}, {"crop": 0.875}),
    ("ConvNextImageProcessor", {"size": {"shortest_edge": 224}}, {"crop": 0.875}),
    (
      "ConvNextImageProcessor",
      {"size": {"shortest_edge": 384}, "crop_pct": 0.875},
      {"fit": "squeezed"},
    ),
    (
      "CLIPFeatureExtractor",
      {"size": 224, "do_center_crop": True, "crop_size": 224},
      {"crop": 1.0},
    ),
    ("DetrFeatureExtractor", {"size": 512, "max_size": 640}, {"shortest": 512, "resolution": 640}),
  ],
)
def test_older_files_and_each_processor_are_followed(processor, fields, expected, tmp_path):
  content = {
    "feature_extractor_type": processor,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
  } | fields
  (tmp_path / published_images.FILE).write_text(json.dumps(content))
  variant = (
    SimpleNamespace(channels=3, resolution=224)
    if "Detr" not in processor
    else SimpleNamespace(channels=3, queries=5)
  )
  task = published_images.image_task(variant, {}, str(tmp_path), "--workdir")
  assert task | expected == task
  if "Detr" not in processor:
    assert task["method"] == (
      "bilinear" if processor.startswith("ViT") and "resample" not in fields else "bicubic"
    )


def test_images_that_the_library_prepares_otherwise_have_no_file():
  task = {"name": "image_classification", "resolution": [28, 40]}
  assert (
    published_images.processor_config(task) is None
    and published_images.timm_pretrained_config(task) == {}
  )
  assert (
    published_images.processor_config({"name": "image_classification", "fit": "padded"}) is None
  )
  timms = published_images.timm_pretrained_config(
    {"name": "image_classification", "resolution": 28, **PIXELS}
  )
  assert (
    timms["crop_pct"] == 0.875 and timms["mean"] == [0.4] * 3 and timms["crop_mode"] == "center"
  )


def test_predictions_have_the_defaults_of_the_task_of_training():
  """Images with captions are not cut out of larger ones, and have CLIP's mean."""
  reader = SimpleNamespace()
  TextChoice.read_options(
    reader, SimpleNamespace(resolution=8, channels=3), {"name": "image_text"}, {}
  )
  defaults = layout.fill_defaults({"name": "image_text"})
  assert reader._fit_options == {name: defaults[name] for name in ("crop", "fit", "mean", "method")}
  assert (defaults["crop"], defaults["mean"][0]) == (1.0, 0.48145466)


def test_images_have_the_size_of_the_processor_where_the_model_takes_any_and_its_interpolation(
  tmp_path,
):
  content = {"image_mean": 0.5, "image_std": 0.5, "size": {"shortest_edge": 256}, "resample": 4}
  path = tmp_path / published_images.FILE
  variant = SimpleNamespace(channels=3, resolution=518)
  path.write_text(json.dumps(content | {"crop_size": {"height": 224, "width": 224}}))
  with pytest.raises(
    UserError, match="found resample 4, expected nearest, lanczos, bilinear, bicubic"
  ):
    published_images.image_task(variant, {"model_type": "dinov2"}, str(tmp_path), "--workdir")
  path.write_text(json.dumps(content | {"resample": 1}))
  task = published_images.image_task(variant, {"model_type": "dinov2"}, str(tmp_path), "--workdir")
  assert task | {"resolution": 224, "crop": 0.875, "method": "lanczos", "mean": (0.5,)} == task


@pytest.mark.parametrize(
  "side, crop, uncut_side", [(256, 0.875, 292), (384, 0.875, 438), (224, 0.9, 248)]
)
def test_evaluations_resize_to_a_size_rounded_down_as_the_authors_do(side, crop, uncut_side):
  assert published_images.processor_config(
    {"name": "image_classification", "resolution": side, "crop": crop}
  )["size"] == {"shortest_edge": uncut_side}
  assert all(pictures.covering_size(side, side / n) == n for n in range(side, 2 * side))


def test_timms_share_is_of_a_whole_number_of_pixels_rounded_down_both_ways(tmp_path):
  about = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bilinear"}
  variant = SimpleNamespace(channels=3, resolution=224)
  for crop_fields, expected in (
    ({"crop_pct": 0.9, "crop_mode": "center"}, {"crop": 224 / 248}),
    ({"crop_pct": 0.95, "crop_mode": "squash"}, {"crop": 224 / 235, "fit": "squeezed_cut"}),
    ({"crop_pct": 1.0, "crop_mode": "squash"}, {"fit": "squeezed"}),
  ):
    task = published_images.image_task(
      variant, {"pretrained_cfg": about | crop_fields}, str(tmp_path), "--workdir"
    )
    assert task | expected | {"method": "bilinear"} == task
    back = published_images.timm_pretrained_config(task)
    assert (
      int(224 / back["crop_pct"]) == round(224 / task.get("crop", 1.0)) and back | about == back
    )
    assert back["crop_mode"] == crop_fields["crop_mode"]
