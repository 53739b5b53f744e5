"""Image models have timm's outputs, and those of `transformers` at other resolutions."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

torch = pytest.importorskip("torch")  # before tensorflow, after which triton cannot be loaded
timm = pytest.importorskip("timm")

from parity import cases, reference  # noqa: E402
from t5x_like.interop import hf  # noqa: E402
from t5x_like.nn import params  # noqa: E402

pytestmark = pytest.mark.parity
VIT = dict(img_size=15, patch_size=3, embed_dim=16, depth=2, num_heads=4, mlp_ratio=1.5)
TIMM = {  # name of a test -> timm's architecture, its arguments, side of the images
  "vit": ("vit_tiny_patch16_224", VIT | dict(num_classes=5), 15),
  "vit-mean": (
    "vit_small_patch16_224",
    VIT | dict(num_classes=3, global_pool="avg", class_token=False, init_values=1e-3, in_chans=1),
    15,
  ),
  "resnet": ("resnet50", dict(layers=(1, 2, 1, 1), channels=(4, 8, 8, 6), num_classes=5), 43),
  "resnet-dilated": (
    "resnet18",
    dict(layers=(2, 1, 1, 2), channels=(8, 8, 12, 16), num_classes=0, output_stride=16),
    61,
  ),
  "vit-body": ("vit_base_patch32_384", VIT | dict(num_classes=0, qkv_bias=False), 15),
}


def save_random_model(architecture: str, arguments: dict, directory):
  """Save a model of timm with the values of `cases.tensor`; return the saved model."""
  from timm.models import save_for_hf

  save_for_hf(timm.create_model(architecture, **arguments), directory, safe_serialization=True)
  path = directory / "model.safetensors"
  tensors = {name: cases.tensor(name, array.shape) for name, array in load_file(path).items()}
  save_file(tensors, path, metadata={"format": "pt"})
  return load_timm(directory)


def load_timm(directory):
  return timm.create_model(f"local-dir:{directory}", pretrained=True).eval()


def run(model, images_BYXC: np.ndarray) -> np.ndarray:
  with torch.no_grad():
    return model(torch.tensor(images_BYXC).permute(0, 3, 1, 2)).numpy()


@pytest.mark.parametrize("name", TIMM)
def test_timm_has_the_same_logits_and_gets_the_same_files_back(name, tmp_path):
  architecture, arguments, side = TIMM[name]
  if "img_size" not in arguments:  # a convolutional network takes images of any size
    arguments = arguments | dict(pretrained_cfg_overlay=dict(input_size=(3, side, side)))
  original = tmp_path / "original"
  exported = tmp_path / "exported"
  timm_model = save_random_model(architecture, arguments, original)
  shape = (3, side, side, arguments.get("in_chans", 3))
  images = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
  model = hf.load(str(original))
  expected = run(timm_model, images)
  outputs = jax.jit(lambda model, images: model({"image": images}))(model, images)
  values = np.asarray(outputs["logits" if arguments["num_classes"] else "pooled"])
  largest = np.abs(expected).max()
  distance = np.abs(values - expected).max()
  print(f"{name}: {distance:.2e} of {largest:.3g}")
  assert values.shape == expected.shape
  assert distance <= 1e-4 * max(1, largest)

  hf.save(model, str(exported))
  before = load_file(original / "model.safetensors")
  after = load_file(exported / "model.safetensors")
  for tensor in list(before):
    if tensor.endswith("num_batches_tracked"):  # no model reads it, so it is not written
      del before[tensor]
  assert before.keys() == after.keys()
  for tensor, array in before.items():
    assert np.array_equal(array, after[tensor]), tensor
  assert np.array_equal(run(load_timm(exported), images), expected)
  architecture_only = json.dumps({"architecture": architecture})
  model.origin = dataclasses.replace(model.origin, config=architecture_only)
  hf.save(model, str(tmp_path / "exported_from_design"))
  assert np.array_equal(run(load_timm(tmp_path / "exported_from_design"), images), expected)


def test_a_detector_with_a_dilated_backbone_equals_the_librarys(tmp_path):
  values = cases.CASES["detr"].values | dict(
    use_timm_backbone=True,
    use_pretrained_backbone=False,
    backbone_config=None,
    backbone="resnet18",
    dilation=True,
  )
  case = dataclasses.replace(cases.CASES["detr"], values=values)
  hf_model = reference.make(case, tmp_path / "original")
  batch = cases.inputs(case, 0, 0)
  model = hf.load(str(tmp_path / "original"))
  assert model.backbone.stages[-1][1].units[0].conv.dilation == 2
  expected = reference.run(case, hf_model, batch)
  images_BCYX = torch.tensor(batch["image"]).permute(0, 3, 1, 2)
  with torch.no_grad():
    features_BCYX = hf_model.model.backbone.model(images_BCYX)[-1]
  features = features_BCYX.permute(0, 2, 3, 1).numpy()
  # Only the backbone is compared: its values are so large here that attention amplifies the
  # differences of their last digits.
  distance = np.abs(model.backbone(batch["image"]) - features).max()
  assert distance <= 1e-5 * np.abs(features).max()
  hf.save(model, str(tmp_path / "exported"))
  del model.origin
  hf.save(model, str(tmp_path / "exported_from_design"))
  for directory in ("exported", "exported_from_design"):
    outputs = reference.run(case, reference.read(case, tmp_path / directory), batch)
    for output, hf_values in expected.items():
      assert np.array_equal(outputs[output], hf_values), (directory, output)


@pytest.mark.parametrize("name", ["dinov2", "dinov2-registers"])
@pytest.mark.parametrize("sides", [(9, 9), (21, 21), (12, 27)])
def test_dinov2_at_another_resolution_resizes_positions_as_the_library_does(name, sides, tmp_path):
  case = cases.CASES[name]
  hf_model = reference.make(case, tmp_path / "original")
  model = hf.load(str(tmp_path / "original"))
  images = np.random.default_rng(7).standard_normal((2, *sides, 3)).astype(np.float32)
  expected = reference.run(case, hf_model, {"image": images})["logits"]
  variant = dataclasses.replace(model.variant, resolution=sides)
  resized = type(model)(nnx.Rngs(params=0), variant=variant)
  arrays = params.arrays(model)
  table = "inputs/position/table"
  arrays[table] = resized.inputs.position.resize(arrays[table], model.inputs.position)
  logits = params.with_arrays(resized, arrays)({"image": images})["logits"]
  assert np.abs(logits - expected).max() <= 1e-4


OBLONG = {
  "vit": (15, 24),
  "swin": (15, 26),
  "swinv2": (26, 18),
  "convnext": (41, 25),
  "resnet": (45, 70),
}


@pytest.mark.parametrize("name", OBLONG)
def test_images_that_are_not_square_have_the_librarys_logits(name, tmp_path):
  case = cases.CASES[name]
  sides = OBLONG[name]
  image_size = {"image_size": list(sides)}
  if name not in ("convnext", "resnet"):  # convolutional networks take images of any size
    case = dataclasses.replace(case, values=case.values | image_size)
  hf_model = reference.make(case, tmp_path / "original")
  path = tmp_path / "original" / "config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | image_size))
  images = np.random.default_rng(7).standard_normal((2, *sides, 3)).astype(np.float32)
  model = hf.load(str(tmp_path / "original"))
  expected = reference.run(case, hf_model, {"image": images})["logits"]
  distance = np.abs(model({"image": images})["logits"] - expected).max()
  assert distance <= 1e-4 * max(1, np.abs(expected).max())
  del model.origin
  hf.save(model, str(tmp_path / "exported"))
  config = json.loads((tmp_path / "exported" / "config.json").read_text())
  assert config["image_size"] == list(sides)
