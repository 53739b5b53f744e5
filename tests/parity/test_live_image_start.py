"""Models of images that `transformers` made, through the doors without a conversion: predicted with, and fine-tuned."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")  # before tensorflow, after which triton cannot be loaded

import transformers  # noqa: E402
from PIL import Image  # noqa: E402

from t5x_like import predict, train  # noqa: E402
from tools import convert_hf  # noqa: E402

pytestmark = pytest.mark.parity
SIDE = 16


@pytest.fixture
def published(tmp_path):
  """Return (the directory of a grey ViT of ten classes with its processor, the model)."""
  torch.manual_seed(0)
  sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
  names = {n: f"digit {n}" for n in range(10)}
  config = transformers.ViTConfig(**sizes, image_size=SIDE, patch_size=4, num_channels=1, id2label=names)
  model = transformers.ViTForImageClassification(config).eval()
  torch.nn.init.normal_(model.classifier.weight)
  model.save_pretrained(tmp_path / "theirs")
  pixels = {"image_mean": [0.4], "image_std": [0.3], "size": {"height": SIDE, "width": SIDE}}
  (tmp_path / "theirs" / "preprocessor_config.json").write_text(json.dumps(pixels))
  return tmp_path / "theirs", model


def logits(model, image_YX: np.ndarray) -> np.ndarray:
  with torch.no_grad():
    return model(torch.tensor((image_YX / 255 - 0.4) / 0.3, dtype=torch.float32)[None, None]).logits[0].numpy()


def test_predictions_of_a_directory_are_those_of_the_library(published, tmp_path):
  directory, model = published
  image = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE)).astype(np.uint8)
  Image.fromarray(image).save(tmp_path / "one.png")
  out = tmp_path / "out.jsonl"
  assert predict.main([f"--workdir={directory}", f"--input={tmp_path}/one.png", f"--output={out}", "--top_k=10"]) == 0
  found = {one["label"]: one["probability"] for one in json.loads(out.read_text())["predictions"]}
  expected = torch.softmax(torch.tensor(logits(model, image)), 0).numpy()
  np.testing.assert_allclose([found[f"digit {n}"] for n in range(10)], expected, atol=1e-4)


def test_a_run_starts_from_a_directory_and_goes_back(published, tmp_path):
  """After a step too small to move a weight, the library finds the same logits."""
  directory, model = published
  flags = [f"--config.init.workdir={directory}", f"--config.task.cache={tmp_path}", "--config.total_steps=1"]
  flags += ['--config.model.head={"name": "image_classification"}', "--config.schedule.learning_rate=1e-12"]
  run = ["--config=tests/recipes/nano_image.py", f"--workdir={tmp_path}/run", "--config.schedule.warmup_steps=0"]
  assert train.main([*run, *flags, "--config.task.mixing.probability=0.0"]) == 0
  report = json.loads((tmp_path / "run" / "init.json").read_text())
  assert not report["initialised"] and not report["ignored"]
  assert convert_hf.main([f"--input={tmp_path}/run", f"--output={tmp_path}/back"]) == 0
  back = transformers.ViTForImageClassification.from_pretrained(tmp_path / "back").eval()
  image = np.random.default_rng(1).integers(0, 256, (SIDE, SIDE))
  np.testing.assert_allclose(logits(back, image), logits(model, image), atol=1e-5)
