"""Image models of `transformers` predict from their directories, on images prepared alike."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")  # before tensorflow, after which triton cannot be loaded

import transformers  # noqa: E402
from PIL import Image  # noqa: E402

from t5x_like import predict  # noqa: E402
from t5x_like.data.images import layout, pictures  # noqa: E402
from t5x_like.interop import published_images  # noqa: E402
from t5x_like.resolution import height_and_width  # noqa: E402

pytestmark = pytest.mark.parity
SIDE = 16
SIDES = 64, 96  # of an image for the detector


@pytest.fixture
def published(tmp_path):
  """Return (the directory of a grey ViT of ten classes with its processor, the model)."""
  torch.manual_seed(0)
  sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
  names = {n: f"digit {n}" for n in range(10)}
  config = transformers.ViTConfig(
    **sizes, image_size=SIDE, patch_size=4, num_channels=1, id2label=names
  )
  model = transformers.ViTForImageClassification(config).eval()
  torch.nn.init.normal_(model.classifier.weight)
  model.save_pretrained(tmp_path / "theirs")
  pixels = {"image_mean": [0.4], "image_std": [0.3], "size": {"height": SIDE, "width": SIDE}}
  (tmp_path / "theirs" / "preprocessor_config.json").write_text(json.dumps(pixels))
  return tmp_path / "theirs", model


def logits(model, image_YX: np.ndarray) -> np.ndarray:
  with torch.no_grad():
    return (
      model(torch.tensor((image_YX / 255 - 0.4) / 0.3, dtype=torch.float32)[None, None])
      .logits[0]
      .numpy()
    )


def test_predictions_from_a_directory_equal_the_librarys(published, tmp_path):
  directory, model = published
  image = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE)).astype(np.uint8)
  Image.fromarray(image).save(tmp_path / "one.png")
  out = tmp_path / "out.jsonl"
  flags = [f"--workdir={directory}", f"--input={tmp_path}/one.png", f"--output={out}", "--top_k=10"]
  assert predict.main(flags) == 0
  predictions = json.loads(out.read_text())["predictions"]
  probabilities = {row["label"]: row["probability"] for row in predictions}
  expected = torch.softmax(torch.tensor(logits(model, image)), 0).numpy()
  by_digit = [probabilities[f"digit {n}"] for n in range(10)]
  np.testing.assert_allclose(by_digit, expected, atol=1e-4)


@pytest.fixture
def detector(tmp_path):
  """Return (the directory of a DETR of ten classes with its processor, the model)."""
  torch.manual_seed(0)
  backbone = transformers.ResNetConfig(
    embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"]
  )
  layers = dict(
    encoder_layers=1, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4
  )
  widths = dict(d_model=16, encoder_ffn_dim=24, decoder_ffn_dim=24, num_queries=7)
  backbone_options = dict(
    use_timm_backbone=False, use_pretrained_backbone=False, backbone_config=backbone
  )
  names = {n: f"digit {n}" for n in range(10)}
  model = transformers.DetrForObjectDetection(
    transformers.DetrConfig(**backbone_options, **layers, **widths, id2label=names)
  ).eval()
  for parameter in model.parameters():
    if parameter.ndim == 2:  # so that queries differ
      torch.nn.init.normal_(parameter, std=2.0)
  model.save_pretrained(tmp_path / "theirs")
  size = {"shortest_edge": SIDES[0], "longest_edge": SIDES[1]}
  pixels = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.3, 0.2, 0.3], "size": size}
  (tmp_path / "theirs" / "preprocessor_config.json").write_text(json.dumps(pixels))
  return tmp_path / "theirs", model


def detect(model, image_YXC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Return (probabilities [Q, classes], boxes [Q, 4] as (ymin, xmin, ymax, xmax) in pixels) of the
  library."""
  Y, X, _ = image_YXC.shape
  side = SIDES[1]
  padded_image = np.zeros((side, side, 3), np.float32)
  mask = np.zeros((1, side, side), np.int64)
  padded_image[:Y, :X] = (image_YXC / 255 - [0.4, 0.5, 0.6]) / [0.3, 0.2, 0.3]
  mask[:, :Y, :X] = 1
  with torch.no_grad():
    out = model(torch.tensor(padded_image).permute(2, 0, 1)[None], torch.tensor(mask))
  x, y, w, h = np.moveaxis(out.pred_boxes[0].numpy(), -1, 0)
  boxes = np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], -1).clip(0, 1) * [Y, X, Y, X]
  return torch.softmax(out.logits[0], -1)[:, :-1].numpy(), boxes


def test_detections_from_a_directory_equal_the_librarys(detector, tmp_path):
  directory, model = detector
  image = np.random.default_rng(0).integers(0, 256, (*SIDES, 3)).astype(np.uint8)
  Image.fromarray(image).save(tmp_path / "one.png")
  out = tmp_path / "out.jsonl"
  flags = [f"--workdir={directory}", f"--input={tmp_path}/one.png", f"--output={out}", "--top_k=7"]
  assert predict.main(flags) == 0
  detections = json.loads(out.read_text())["detections"]
  p_QV, boxes_Q4 = detect(model, image)
  scores_Q = p_QV.max(-1)
  order = np.argsort(-scores_Q)
  assert np.ptp(scores_Q) > 0.05
  assert [row["label"] for row in detections] == [f"digit {p_QV[q].argmax()}" for q in order]
  np.testing.assert_allclose([row["score"] for row in detections], scores_Q[order], atol=1e-4)
  np.testing.assert_allclose([row["box"] for row in detections], boxes_Q4[order], atol=2e-2)


def prepare_images(
  model_type: str, directory, task: dict, image: Image.Image
) -> tuple[np.ndarray, np.ndarray]:
  """Return (the image that the library's processor prepares, the image that a task prepares).

  Both are [Y, X, C]; the processor's file is in `directory`.
  """
  (directory / "config.json").write_text(json.dumps({"model_type": model_type}))
  processor = transformers.AutoImageProcessor.from_pretrained(directory)
  hf_image_CYX = processor(image, return_tensors="np")["pixel_values"][0]
  pixels = np.asarray(image, np.float32)
  options = layout.fill_defaults(task)
  if "shortest" in options:
    resized = pictures.resize_sides(pixels, options["shortest"], options["resolution"])
  else:
    fit = {name: options[name] for name in ("crop", "fit", "method")}
    resized = pictures.fit_to_resolution(pixels, height_and_width(options["resolution"]), **fit)
  normalized = (resized / 255 - np.array(options["mean"])) / np.array(options["std"])
  return hf_image_CYX.transpose(1, 2, 0), normalized


def smooth_image(*sides_2: int) -> Image.Image:
  noise = np.random.default_rng(0).integers(0, 256, (6, 8, 3)).astype(np.uint8)
  return Image.fromarray(noise).resize(sides_2, Image.Resampling.BICUBIC)


SIZES = [(90, 70), (71, 97), (33, 40), (64, 64), (301, 52)]


@pytest.mark.parametrize(
  "changes",
  [
    {},
    {"fit": "squeezed", "resolution": [24, 40], "method": "bilinear"},
    {"fit": "squeezed_cut", "resolution": [24, 40], "crop": 0.8, "method": "lanczos"},
    {"crop": 1.0, "mean": [0.2, 0.3, 0.4], "method": "nearest"},
    {"name": "object_detection", "resolution": 93, "shortest": 56},
  ],
)
def test_the_library_prepares_images_as_evaluations_do(changes, tmp_path):
  task = {"name": "image_classification", "resolution": 28} | changes
  (tmp_path / published_images.FILE).write_text(json.dumps(published_images.processor_config(task)))
  for sides_2 in SIZES:
    hf_image, our_image = prepare_images("resnet", tmp_path, task, smooth_image(*sides_2))
    np.testing.assert_allclose(hf_image, our_image, atol=0.03)  # the library rounds to 8 bits


MEAN = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}
CUT = {"do_center_crop": True, "crop_size": {"height": 28, "width": 28}}


@pytest.mark.parametrize(
  "model_type, fields",
  [
    ("vit", {"size": 28}),  # bilinear, as of old
    ("vit", {"size": {"height": 28, "width": 28}, "do_normalize": False}),
    (
      "vit",
      {"size": {"height": 28, "width": 28}, "do_rescale": False, "image_mean": [101.0, 99.0, 90.0]},
    ),
    ("swin", {"size": 28, "resample": 3, "rescale_factor": 1 / 127.5}),
    ("vit", {"size": 28, "image_mean": 0.4, "image_std": 0.3, "resample": 0}),
    ("deit", {"size": 33, "resample": 3, "do_center_crop": True, "crop_size": 28}),
    ("deit", {"size": {"height": 40, "width": 40}, "crop_size": {"height": 28, "width": 28}}),
    ("convnext", {"size": {"shortest_edge": 28}}),
    ("resnet", {"size": 28, "crop_pct": 0.9, "resample": 2}),
    ("resnet", {"size": {"shortest_edge": 384}, "crop_pct": 0.9}),
    ("dinov2", {"size": {"shortest_edge": 37}, **CUT}),
    ("dinov2", {"size": {"shortest_edge": 28}, "resample": 1, **CUT}),
    ("detr", {"size": {"shortest_edge": 40, "longest_edge": 61}}),
  ],
)
def test_images_are_prepared_as_the_library_does_by_a_processors_file(model_type, fields, tmp_path):
  (tmp_path / published_images.FILE).write_text(json.dumps(MEAN | fields))
  variant = SimpleNamespace(channels=3, resolution=28)
  if model_type == "detr":
    variant = SimpleNamespace(channels=3, queries=3)
  elif model_type == "dinov2":
    variant.resolution = 70  # positions for larger images than the processor makes
  config = {"model_type": model_type}
  task = published_images.read_image_task(variant, config, str(tmp_path), "--workdir")
  for sides_2 in SIZES:
    hf_image, our_image = prepare_images(model_type, tmp_path, task, smooth_image(*sides_2))
    # The library rounds to 8 bits after each of two steps.
    np.testing.assert_allclose(hf_image, our_image, atol=2.01 / 255 / min(task["std"]))
