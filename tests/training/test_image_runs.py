"""Runs on images: exact resume with everything random that there is, another resolution, and what cannot be."""

import json

import numpy as np
import pytest

from t5x_like import evaluate, train
from t5x_like.training.trained import open_model
from t5x_like.training.writer import read_metrics
from tests.runs import assert_same_bits
from tools import convert_hf

pytestmark = pytest.mark.usefixtures("compiled")
NANO = "tests/recipes/nano_image.py"
TOTAL = ("--config.total_steps=4", "--config.eval_every=4")


def run(workdir, cache, *flags) -> int:
  usual = (f"--config.task.cache={cache}", "--config.schedule.total_steps=4", "--config.checkpoint.every=2")
  return train.main([f"--config={NANO}", f"--workdir={workdir}", *usual, *TOTAL, *flags])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  folder = tmp_path_factory.mktemp("images")
  evals = {"loss": {}, "image_classification": {}, "few_shot": {"shots": 2}}
  assert run(folder / "whole", folder / "cache", f"--config.evals={json.dumps(evals)}") == 0
  return folder


def test_a_run_stopped_and_resumed_with_augmentation_mixing_and_dropped_paths_has_the_same_bits(whole, tmp_path):
  assert run(tmp_path, whole / "cache", "--config.total_steps=2") == 0
  assert run(tmp_path, whole / "cache") == 0
  assert_same_bits(tmp_path, whole / "whole", 4)


def test_metrics_of_images_are_written_and_found_again(whole, capsys):
  (last,) = [row for row in read_metrics(whole / "whole") if "eval/digits_image_classification/top1" in row]
  rows = [row for row in read_metrics(whole / "whole") if "train/loss" in row]
  assert all(row["train/images_per_second"] > 0 and "train/tokens_per_second" not in row for row in rows)
  assert {"top1", "top5", "2_shot_top1", "loss", "accuracy"} <= {name.split("/")[-1] for name in last}
  assert evaluate.main([f"--workdir={whole}/whole", "--evals=image_classification"]) == 0
  found = json.loads(next((whole / "whole" / "evaluations").glob("*.json")).read_text())["metrics"]
  assert found["top1"] == last["eval/digits_image_classification/top1"]
  assert open_model(str(whole / "whole"), 8).vocabulary.names == tuple("0123456789")
  assert "Images per second" in (whole / "whole" / "report.html").read_text()


def test_another_resolution_starts_from_the_interpolated_positions(whole, tmp_path, capsys):
  size = ("--config.model.resolution=24", "--config.task.resolution=24", '--config.task.mixing={"mixup": 0.0}')
  assert run(tmp_path, whole / "cache", f"--config.init.workdir={whole}/whole", "--config.total_steps=1", *size) == 0
  report = json.loads((tmp_path / "init.json").read_text())
  assert report["resized"] == {"inputs/position/table": "17 to 37 rows"} and not report["initialised"]
  arrays = open_model(str(tmp_path), 8).run.arrays
  assert np.isfinite(arrays["inputs/position/table"]).all()


def test_a_run_goes_to_hugging_face_and_back(whole, tmp_path):
  there, back = tmp_path / "there", tmp_path / "back"
  assert convert_hf.main([f"--input={whole}/whole", f"--output={there}"]) == 0
  config = json.loads((there / "config.json").read_text())
  assert config["model_type"] == "vit" and config["id2label"] == {str(n): str(n) for n in range(10)}
  cache = f"--config.task.cache={whole}/cache"
  assert convert_hf.main([f"--input={there}", f"--output={back}", f"--config={NANO}", cache]) == 0
  one, other = (open_model(str(path), 8).run.arrays for path in (whole / "whole", back))
  assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
  "flag, words",
  [
    (
      "--config.task.resolution=20",
      "config.model.resolution: the model is for images of [16, 16, 1], found [20, 20, 1]",
    ),
    ("--config.task.channels=3", "config.model.channels: the model is for images of [16, 16, 1], found [16, 16, 3]"),
    ("--config.model.head.labels=3", "config.model.head.labels: found 3, but task image_classification has 10"),
    ("--config.objective.name=mlm", "config.objective"),
  ],
)
def test_what_does_not_fit_is_one_line(flag, words, whole, tmp_path, capsys):
  assert run(tmp_path, whole / "cache", flag) == 2
  error = capsys.readouterr().err.strip()
  assert words in error and "\n" not in error
