"""The two ways in which files of DETR name their ResNet: the library's own and timm's."""

import json

import jax
import numpy as np
from safetensors.numpy import load_file, save_file

from interop.test_golden import write
from parity import resnets
from t5x_like.contrib.detection.families import detr
from t5x_like.interop import hf, resnet

PREFIX = detr.BACKBONE


def test_names_of_timm():
  names = {  # from timm's ResNet, as in published files -> as the library's own ResNet has them
    "conv1.weight": "embedder.embedder.convolution.weight",
    "bn1.running_var": "embedder.embedder.normalization.running_var",
    "layer1.0.conv1.weight": "encoder.stages.0.layers.0.layer.0.convolution.weight",
    "layer3.5.bn3.bias": "encoder.stages.2.layers.5.layer.2.normalization.bias",
    "layer4.0.downsample.0.weight": "encoder.stages.3.layers.0.shortcut.convolution.weight",
    "layer4.0.downsample.1.running_mean": (
      "encoder.stages.3.layers.0.shortcut.normalization.running_mean"
    ),
  }
  for timm_name, library_name in names.items():
    assert (
      detr.canonical_name(PREFIX + timm_name) == PREFIX + library_name
      and detr.timm_name(PREFIX + library_name) == PREFIX + timm_name
    )
    assert (
      detr.canonical_name(timm_name) == timm_name
      and detr.canonical_name(PREFIX + library_name) == PREFIX + library_name
    )


def test_a_file_with_timms_names_is_the_same_model_and_is_written_with_them(tmp_path, monkeypatch):
  golden = write("detr", tmp_path / "own")
  values = json.loads(str(golden["config"]))
  backbone = resnets.RESNET
  sizes = dict(
    stem=backbone["embedding_size"],
    widths=tuple(backbone["hidden_sizes"]),
    depths=tuple(backbone["depths"]),
  )
  monkeypatch.setitem(resnet.TIMM_BACKBONES, "resnet50", sizes)
  values |= {"backbone_config": None, "backbone": "resnet50", "use_timm_backbone": True}
  tensors = {
    detr.timm_name(name): x for name, x in load_file(tmp_path / "own" / "model.safetensors").items()
  }
  assert sum(name not in tensors for name in load_file(tmp_path / "own" / "model.safetensors")) > 30
  (tmp_path / "timm").mkdir()
  save_file(tensors, tmp_path / "timm" / "model.safetensors")
  (tmp_path / "timm" / "config.json").write_text(json.dumps(values))
  model = hf.load(str(tmp_path / "timm"))
  batch = {n.removeprefix("batch/"): x for n, x in golden.items() if n.startswith("batch/")}
  outputs = jax.jit(lambda model, batch: model(batch))(model, batch)
  np.testing.assert_allclose(outputs["logits"], golden["outputs/logits"], atol=1e-4)
  hf.save(model, str(tmp_path / "back"))
  back = load_file(tmp_path / "back" / "model.safetensors")
  assert back.keys() == tensors.keys() and all(np.array_equal(back[n], tensors[n]) for n in back)
  assert json.loads((tmp_path / "back" / "config.json").read_text())["backbone"] == "resnet50"
