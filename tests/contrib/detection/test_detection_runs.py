"""Detection runs resume exactly, write scores and detections, and convert to Hugging Face."""

import json

import numpy as np
import pytest

from t5x_like import evaluate, predict, train
from t5x_like.data.images import store
from t5x_like.library.model import load
from t5x_like.report.writer import read_metrics
from tools import convert_hf

pytestmark = [pytest.mark.usefixtures("compiled"), pytest.mark.more]
RECIPE = "configs/detr/base.py:debug"
RESNET = '{"name": "resnet", "stem": 8, "widths": [16], "depths": [1]}'
FLAGS = (
  "--config.model.queries=12",
  "--config.model.labels=10",
  "--config.model.dropout=0.1",
  f"--config.model.backbone={RESNET}",
  "--config.task.boxes=6",
  '--config.task.augmentations=["flip", {"name": "scale_jitter", "scale": [0.5, 1.5]}]',
  "--config.peak_flops=1e11",
  "--config.eval_every=4",
  "--config.checkpoint.every=2",
  '--config.evals={"loss": {"max_examples": 8}, "detection": {"max_examples": 8}}',
)


def run(workdir, cache, *flags) -> int:
  return train.main(
    [f"--config={RECIPE}", f"--workdir={workdir}", f"--config.task.cache={cache}", *FLAGS, *flags]
  )


@pytest.fixture(scope="module")
def trained_folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("detection")
  assert run(folder / "uninterrupted", folder / "cache", "--config.total_steps=4") == 0
  return folder


def test_scores_and_detections_are_written(trained_folder, capsys):
  (last,) = [
    row
    for row in read_metrics(trained_folder / "uninterrupted")
    if "eval/digit_scenes_object_detection/AP" in row
  ]
  assert {"loss", "class_loss", "giou_loss", "AP50", "images"} <= {
    name.split("/")[-1] for name in last
  }
  assert "what was found" in (trained_folder / "uninterrupted" / "report.html").read_text()
  assert (
    trained_folder / "uninterrupted" / "pictures" / "boxes_digit_scenes_object_detection.png"
  ).stat().st_size > 1_000
  assert evaluate.main([f"--workdir={trained_folder}/uninterrupted", "--evals=detection"]) == 0
  folder = trained_folder / "uninterrupted" / "evaluations"
  metrics = json.loads(next(folder.glob("*.json")).read_text())["metrics"]
  assert metrics["AP"] == last["eval/digit_scenes_object_detection/AP"]
  rows = [
    json.loads(line) for path in folder.rglob("*.jsonl") for line in path.read_text().splitlines()
  ]
  assert [row["image"] for row in rows] == list(range(8))
  assert len(rows[0]["detections"]) == 12


def test_predictions_equal_the_evaluations_detections(trained_folder, tmp_path):
  assert evaluate.main([f"--workdir={trained_folder}/uninterrupted", "--evals=detection"]) == 0
  expected = (
    next((trained_folder / "uninterrupted" / "evaluations").rglob("*.jsonl"))
    .read_text()
    .splitlines()
  )
  images = store.open_store(
    "digit_scenes", "validation", label_field=None, cache=str(trained_folder / "cache")
  )
  for n, data in enumerate(images.read(np.arange(8))):
    (tmp_path / f"{n}.png").write_bytes(data)
  (tmp_path / "9.png").write_bytes(b"none")
  ask = [
    f"--workdir={trained_folder}/uninterrupted",
    f"--input={tmp_path}",
    f"--output={tmp_path}/out.jsonl",
  ]
  assert predict.main([*ask, "--top_k=12", "--batch_size=4"]) == 0
  *predictions, broken = [
    json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()
  ]
  assert broken == {"input": f"{tmp_path}/9.png", "error": "not a readable image"}
  for prediction, detection in zip(predictions, expected, strict=True):
    prediction = prediction["detections"]
    detection = json.loads(detection)["detections"]
    assert [x["score"] for x in prediction] == pytest.approx(
      [x["score"] for x in detection], abs=2e-3
    )
    boxes = {(x["label"], round(x["score"], 2)): x["box"] for x in prediction}
    assert any(
      boxes.get((x["label"], round(x["score"], 2))) == pytest.approx(x["box"], abs=0.5)
      for x in detection
    )
  (tmp_path / "out.jsonl").unlink()
  assert predict.main(ask) == 0
  rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()[:-1]]
  sure = [[x for x in row["detections"] if x["score"] >= 0.5] for row in predictions]
  assert [row["detections"] for row in rows] == sure


def test_a_run_is_converted_to_hugging_face_and_back(trained_folder, tmp_path):
  exported = tmp_path / "there"
  back = tmp_path / "back"
  assert convert_hf.main([f"--input={trained_folder}/uninterrupted", f"--output={exported}"]) == 0
  config = json.loads((exported / "config.json").read_text())
  assert config["model_type"] == "detr"
  assert config["id2label"] == {str(n): str(n) for n in range(10)}
  flags = (
    f"--config.task.cache={trained_folder}/cache",
    "--config.task.boxes=6",
    "--config.model.labels=3",
  )
  arguments = [f"--input={exported}", f"--output={back}", f"--config={RECIPE}", *flags]
  assert convert_hf.main(arguments) == 0
  original_arrays = load(str(trained_folder / "uninterrupted"), batch_size=8).run.arrays
  imported_arrays = load(str(back), batch_size=8).run.arrays
  assert original_arrays.keys() == imported_arrays.keys()
  for name in original_arrays:
    assert np.array_equal(original_arrays[name], imported_arrays[name])


@pytest.mark.parametrize(
  "flag, message",
  [
    (
      "--config.model.labels=3",
      "config.model.labels: found 3, but task object_detection has 10 classes",
    ),
    ("--config.model.queries=5", "config.model.queries: found 5, but images have up to 6 boxes"),
    ("--config.task.boxes=3", "config.task.boxes: found 3, but image"),
    ("--config.objective.name=classification", "config.objective"),
    ("--config.task.channels=1", "config.task.mean: found"),
  ],
)
def test_parts_that_do_not_fit_are_refused_in_one_line(
  flag, message, trained_folder, tmp_path, capsys
):
  assert run(tmp_path, trained_folder / "cache", flag) == 2
  error = capsys.readouterr().err.strip()
  assert message in error
  assert "\n" not in error
