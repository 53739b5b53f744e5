"""Models of images against timm, and against `transformers` at another resolution than a file's."""

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
TIMM = {  # architecture, arguments, side of the images
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


def made(architecture: str, arguments: dict, directory):
  """Save a model of timm with the values of `cases.tensor`; return it as loaded from there."""
  from timm.models import save_for_hf

  save_for_hf(timm.create_model(architecture, **arguments), directory, safe_serialization=True)
  path = directory / "model.safetensors"
  save_file(
    {n: cases.tensor(n, x.shape) for n, x in load_file(path).items()},
    path,
    metadata={"format": "pt"},
  )
  return read(directory)


def read(directory):
  return timm.create_model(f"local-dir:{directory}", pretrained=True).eval()


def run(model, image_BYXC: np.ndarray) -> np.ndarray:
  with torch.no_grad():
    return model(torch.tensor(image_BYXC).permute(0, 3, 1, 2)).numpy()


@pytest.mark.parametrize("name", TIMM)
def test_timm_has_the_same_logits_and_gets_the_same_files_back(name, tmp_path):
  architecture, arguments, side = TIMM[name]
  if "img_size" not in arguments:  # of a network for any
    arguments = arguments | dict(pretrained_cfg_overlay=dict(input_size=(3, side, side)))
  theirs = made(architecture, arguments, tmp_path / "theirs")
  shape = (3, side, side, arguments.get("in_chans", 3))
  image = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
  model = hf.load(str(tmp_path / "theirs"))
  expected = run(theirs, image)
  output = "logits" if arguments["num_classes"] else "pooled"
  got = np.asarray(jax.jit(lambda model, image: model({"image": image}))(model, image)[output])
  distance = np.abs(got - expected).max()
  print(f"{name}: {distance:.2e} of {np.abs(expected).max():.3g}")
  assert got.shape == expected.shape and distance <= 1e-4 * max(1, np.abs(expected).max())

  hf.save(model, str(tmp_path / "back"))
  before, after = (
    load_file(tmp_path / place / "model.safetensors") for place in ("theirs", "back")
  )
  same = {n: x for n, x in before.items() if not n.endswith("num_batches_tracked")}
  assert same.keys() == after.keys() and all(np.array_equal(same[n], after[n]) for n in after)
  assert np.array_equal(run(read(tmp_path / "back"), image), expected)
  model.origin = dataclasses.replace(
    model.origin, config=json.dumps({"architecture": architecture})
  )
  hf.save(model, str(tmp_path / "anew"))  # from the design alone
  assert np.array_equal(run(read(tmp_path / "anew"), image), expected)


def test_a_detector_with_a_dilated_backbone(tmp_path):
  own = dict(use_timm_backbone=True, backbone_config=None, backbone="resnet18", dilation=True)
  case = dataclasses.replace(
    cases.CASES["detr"], values=cases.DETR | own | dict(use_pretrained_backbone=False)
  )
  theirs = reference.make(case, tmp_path / "theirs")
  batch = cases.inputs(case, 0, 0)
  model = hf.load(str(tmp_path / "theirs"))
  assert model.backbone.stages[-1][1].units[0].conv.dilation == 2
  expected = reference.run(case, theirs, batch)
  with torch.no_grad():
    features = theirs.model.backbone.model(torch.tensor(batch["image"]).permute(0, 3, 1, 2))[
      -1
    ].permute(0, 2, 3, 1)
  # Of the backbone alone: its values are so large here that attention makes much of their last
  # digits.
  assert (
    np.abs(model.backbone(batch["image"]) - features.numpy()).max()
    <= 1e-5 * np.abs(features.numpy()).max()
  )
  hf.save(model, str(tmp_path / "back"))
  del model.origin
  hf.save(model, str(tmp_path / "anew"))
  for place in ("back", "anew"):
    again = reference.run(case, reference.read(case, tmp_path / place), batch)
    assert all(np.array_equal(again[output], values) for output, values in expected.items())


@pytest.mark.parametrize("name", ["dinov2", "dinov2-registers"])
@pytest.mark.parametrize("sides", [(9, 9), (21, 21), (12, 27)])
def test_dinov2_at_another_resolution(name, sides, tmp_path):
  case = cases.CASES[name]
  theirs = reference.make(case, tmp_path / "theirs")
  model = hf.load(str(tmp_path / "theirs"))
  image = np.random.default_rng(7).standard_normal((2, *sides, 3)).astype(np.float32)
  expected = reference.run(case, theirs, {"image": image})["logits"]
  other = type(model)(
    nnx.Rngs(params=0), variant=dataclasses.replace(model.variant, resolution=sides)
  )
  arrays = params.arrays(model)
  name = "inputs/position/table"
  arrays[name] = other.inputs.position.resize(arrays[name], model.inputs.position)
  assert (
    np.abs(params.with_arrays(other, arrays)({"image": image})["logits"] - expected).max() <= 1e-4
  )


OBLONG = {
  "vit": (15, 24),
  "swin": (15, 26),
  "swinv2": (26, 18),
  "convnext": (41, 25),
  "resnet": (45, 70),
}


@pytest.mark.parametrize("name", OBLONG)
def test_images_that_are_not_square(name, tmp_path):
  case = cases.CASES[name]
  sides = OBLONG[name]
  # the networks take any
  takes = {"image_size": list(sides)} if name not in ("convnext", "resnet") else {}
  theirs = reference.make(
    dataclasses.replace(case, values=case.values | takes), tmp_path / "theirs"
  )
  path = tmp_path / "theirs" / "config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | {"image_size": list(sides)}))
  image = np.random.default_rng(7).standard_normal((2, *sides, 3)).astype(np.float32)
  model = hf.load(str(tmp_path / "theirs"))
  expected = reference.run(case, theirs, {"image": image})["logits"]
  assert np.abs(model({"image": image})["logits"] - expected).max() <= 1e-4 * max(
    1, np.abs(expected).max()
  )
  del model.origin
  hf.save(model, str(tmp_path / "anew"))
  assert json.loads((tmp_path / "anew" / "config.json").read_text())["image_size"] == list(sides)
