"""A detector follows its data and images: the number of classes, processors, buckets."""

import json
from types import SimpleNamespace

import pytest

from t5x_like import recipes, train
from t5x_like.interop import published_images
from t5x_like.training import class_count
from t5x_like.training.build import assemble
from t5x_like.training.resolve import resolve
from tests.runs import fingerprints

PIXELS = {"mean": (0.4,), "std": (0.1, 0.2, 0.3)}


@pytest.mark.parametrize(
  ("overrides", "labels"), [([], 3), (["model.labels=auto"], 3), (["model.labels=91"], 91)]
)
def test_a_detector_counts_its_classes_unless_a_number_is_given(overrides, labels):
  config = resolve(recipes.load("configs/detr/base.py", overrides))
  assert class_count.fill_class_count(config, 3).model.labels == labels


def test_the_processor_of_a_detector_is_read_back(tmp_path):
  task = {
    "source": "digits",
    "split": "train",
    "name": "object_detection",
    "shortest": 64,
    "resolution": 99,
    **PIXELS,
  }
  (tmp_path / published_images.FILE).write_text(json.dumps(published_images.processor_config(task)))
  variant = SimpleNamespace(channels=3, resolution=99, queries=5)
  task_arguments = published_images.read_image_task(variant, {}, str(tmp_path), "--workdir")
  expected = {"mean": (0.4,) * 3, "std": PIXELS["std"], "channels": 3, "shortest": 64}
  assert task_arguments | expected == task_arguments


def test_a_run_takes_the_number_from_its_data(tmp_path):
  (tmp_path / "cache").mkdir()
  overrides = [f"task.cache={tmp_path}/cache"]
  config = recipes.load("configs/detr/blood_cells.py:debug", overrides)
  assembly = assemble(config, str(tmp_path / "run"))
  assert assembly.config.model.labels == 10
  assert assembly.identity["model"]["labels"] == 10


def train_detector(folder, name: str, backbone: dict, steps: int, capsys) -> str:
  """Train a detector on images cut to thirds of 96 pixels; return the output."""
  flags = ["--config=configs/detr/base.py:debug", f"--config.model.backbone={json.dumps(backbone)}"]
  flags += [
    "--config.model.queries=12",
    "--config.model.dropout=0.1",
    "--config.task.boxes=6",
    "--config.evals={}",
  ]
  flags += [
    "--config.task.resolution=96",
    '--config.task.augmentations=["flip"]',
    f"--config.task.cache={folder}",
  ]
  flags += ["--config.checkpoint.every=2", "--config.peak_flops=1e11", "--config.tuning.name=all"]
  flags += [
    "--config.task.buckets=3",
    f"--config.total_steps={steps}",
    f"--workdir={folder}/{name}",
  ]
  assert train.main(flags) == 0
  return capsys.readouterr().out


@pytest.mark.runs
@pytest.mark.more
@pytest.mark.usefixtures("compiled", "one_device")
def test_a_detector_learns_from_cut_images_and_resumes(tmp_path, capsys):
  backbone = {"name": "resnet", "stem": 8, "widths": [16], "depths": [1]}
  output = train_detector(tmp_path, "whole", backbone, 4, capsys)
  assert "the first batch of images of 64 x 64 pixels" in output
  for steps in (2, 4):
    train_detector(tmp_path, "resumed", backbone, steps, capsys)
  assert fingerprints(tmp_path / "resumed", 4) == fingerprints(tmp_path / "whole", 4)


@pytest.mark.runs
@pytest.mark.more
@pytest.mark.usefixtures("compiled", "one_device")
def test_images_are_not_cut_before_a_backbone_with_group_norm(tmp_path, capsys):
  output = train_detector(tmp_path, "group", {"name": "small_cnn", "widths": [8, 16]}, 1, capsys)
  assert (
    "in the backbone SmallCnn, cells far from the padding depend on it; batches are not cut"
    in output
  )
