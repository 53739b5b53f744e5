"""Published image encoders are fine-tuned to classify and become the backbone of a detector."""

import json

import numpy as np
import pytest

from interop.test_golden import write
from t5x_like import evaluate, train
from t5x_like.report.writer import read_metrics
from tools import convert_hf

pytestmark = [pytest.mark.usefixtures("compiled"), pytest.mark.more]
MODELS = {  # family, side of the images, whether the directory is converted first
  "dinov2-registers": ("dinov2", 15, False),
  "vit-body": ("vit", 15, True),
  "resnet": ("resnet", 45, False),
  "convnext": ("convnext", 41, True),
}
SHORT = (
  "--config.total_steps=2",
  "--config.eval_every=2",
  "--config.batch_size=8",
  "--config.tuning.name=all",
)


def start_of(name, folder, cache):
  """Return (a workdir or the directory of a case of `parity.cases`, the flags of its family)."""
  family, side, converted = MODELS[name]
  write(name, folder / "theirs")
  recipe = f"--config=configs/{family}/base.py:debug"
  flags = (
    recipe,
    f"--config.model.resolution={side}",
    f"--config.task.resolution={side}",
    f"--config.task.cache={cache}",
  )
  if not converted:
    return folder / "theirs", flags
  assert convert_hf.main([f"--input={folder}/theirs", f"--output={folder}/imported", *flags]) == 0
  return folder / "imported", flags


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
  return tmp_path_factory.mktemp("images")


@pytest.mark.parametrize("name", MODELS)
def test_published_encoders_start_a_classifier_and_then_a_detector(name, cache, tmp_path):
  start, flags = start_of(name, tmp_path, cache)
  head = {"name": "image_classification"}
  more_flags = (f"--config.init.workdir={start}", f"--config.model.head={json.dumps(head)}", *SHORT)
  assert train.main([*flags, f"--workdir={tmp_path}/tuned", *more_flags]) == 0
  report = json.loads((tmp_path / "tuned" / "init.json").read_text())
  assert report["loaded"]
  assert all(tensor.startswith("head/") for tensor in report["initialised"])
  assert evaluate.main([f"--workdir={tmp_path}/tuned", "--evals=image_classification"]) == 0

  detector = ("--config=configs/detr/base.py:debug", "--config.model.queries=12")
  detector += (
    "--config.task.boxes=6",
    f"--config.task.cache={cache}",
    f"--config.init.workdir={start}",
    *SHORT,
  )
  evals = '--config.evals={"loss": {"max_examples": 4}, "detection": {"max_examples": 4}}'
  assert train.main([*detector, f"--workdir={tmp_path}/detector", evals]) == 0
  report = json.loads((tmp_path / "detector" / "init.json").read_text())
  assert report["loaded"]
  assert not any(tensor.startswith("backbone/") for tensor in report["initialised"])
  assert all(tensor.startswith("head/") for tensor in report["ignored"])
  (last,) = [
    row for row in read_metrics(tmp_path / "detector") if any(key.endswith("/AP") for key in row)
  ]
  assert all(np.isfinite(value) for key, value in last.items() if key.endswith("/loss"))
