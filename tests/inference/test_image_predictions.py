"""`predict` classifies image files as the evaluation does and reports files that are no images."""

import json
import shutil

import numpy as np
import pytest

import json_lines
from image_files import VARIED_FILES, write_folders
from t5x_like import evaluate, predict, train
from t5x_like.data.images import store

pytestmark = pytest.mark.runs

NANO = "tests/recipes/nano_image.py"


@pytest.fixture(scope="module")
def trained_on_digits(tmp_path_factory, compiled):
  folder = tmp_path_factory.mktemp("digits")
  flags = (
    f"--config.task.cache={folder}/cache",
    "--config.total_steps=4",
    "--config.schedule.learning_rate=0.01",
  )
  assert train.main([f"--config={NANO}", f"--workdir={folder}/run", *flags]) == 0
  return folder


def classify_files(folder, source, *flags) -> list[dict]:
  output = folder / "out.jsonl"
  files = [f"--input={source}", f"--output={output}"]
  assert predict.main([f"--workdir={folder}/run", *files, *flags]) == 0
  return json_lines.read(output)


@pytest.mark.more
def test_predictions_of_files_equal_those_of_the_evaluation(trained_on_digits):
  folder = trained_on_digits
  evals_flag = '--config.evals={"image_classification": {"max_examples": 20}}'
  assert evaluate.main([f"--workdir={folder}/run", evals_flag]) == 0
  expected = json_lines.read(next((folder / "run" / "evaluations").glob("*.jsonl")))
  images = store.open_store("digits", "validation", cache=str(folder / "cache")).read(np.arange(20))
  for number, image_bytes in enumerate(images):
    path = folder / "files" / f"{number % 2}" / f"{number:02}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(image_bytes)
  rows = classify_files(folder, folder / "files", "--batch_size=8", "--top_k=10")
  paths = sorted(str(path) for path in (folder / "files").rglob("*.png"))
  assert [row["input"] for row in rows] == paths
  row_by_number = {int(row["input"][-6:-4]): row for row in rows}
  for number, expected_row in enumerate(expected):
    assert row_by_number[number]["prediction"] == expected_row["prediction"]
  for row in rows:
    p = [prediction["probability"] for prediction in row["predictions"]]
    assert sum(p) == pytest.approx(1, abs=1e-4)
    assert p == sorted(p, reverse=True)
    assert row["probability"] == p[0]
    assert {prediction["label"] for prediction in row["predictions"]} == set("0123456789")
  # A pattern of paths, with the default of five labels.
  row_of_0, row_of_1 = classify_files(folder, f"{folder}/files/*/0[01].png")
  assert len(row_of_0["predictions"]) == len(row_of_1["predictions"]) == 5
  assert row_of_0["prediction"] == row_by_number[0]["prediction"]
  # A single file.
  (row,) = classify_files(folder, folder / "files" / "1" / "01.png")
  assert row["predictions"] == row_of_1["predictions"]


def test_odd_files_are_classified_or_reported_and_counted(trained_on_digits, tmp_path, capsys):
  write_folders(tmp_path / "odd", VARIED_FILES)
  rows = {}
  for row in classify_files(trained_on_digits, tmp_path / "odd"):
    rows[row["input"].rpartition("odd/")[2]] = row
  assert rows.keys() == VARIED_FILES.keys()
  errors = {name: row["error"] for name, row in rows.items() if "error" in row}
  assert errors == {
    "b/broken.jpg": "not a readable image",
    "b/notes.txt": "not a readable image",
    "b/empty.png": "not a readable image",
    "b/huge.png": "more than 67,108,864 pixels",
  }
  for name in rows.keys() - errors.keys():
    assert 0.1 <= rows[name]["probability"] <= 1
  message = "4 of 12 files skipped (1 more than 67,108,864 pixels, 3 not a readable image)"
  assert message in capsys.readouterr().out


@pytest.mark.parametrize(
  ("source", "flags", "words"),
  [
    ("nowhere", (), "--input=nowhere: found no file, expected an image, a folder of images"),
    ("{tmp}/bad", (), "found no image; 2 of 2 files skipped (2 not a readable image)"),
    ("{tmp}/bad", ("--beams=2",), "--beams=2: the model classifies images and generates nothing"),
    ("{tmp}/bad", ("--top_k=0",), "--top_k=0: expected at least 1"),
  ],
)
def test_an_impossible_classification_is_one_line(
  source, flags, words, trained_on_digits, tmp_path, capsys
):
  write_folders(tmp_path / "bad", {"x.jpg": b"?", "y.jpg": b""})
  command = [
    f"--workdir={trained_on_digits}/run",
    f"--input={source.format(tmp=tmp_path)}",
    "--output=-",
    *flags,
  ]
  assert predict.main(command) == 2
  error = capsys.readouterr().err.strip().splitlines()
  assert words in error[-1]
  assert not any("Traceback" in line for line in error)


def test_a_model_without_classes_is_refused(trained_on_digits, tmp_path, capsys):
  copy = shutil.copytree(trained_on_digits / "run", tmp_path / "run")
  config = json.loads((copy / "config.json").read_text())
  config["model"]["head"] = {"name": "patch_colours"}
  (copy / "config.json").write_text(json.dumps(config))
  assert predict.main([f"--workdir={copy}", "--input=tests", "--output=-"]) == 2
  assert "the model's head (ColourHead) gives images no classes" in capsys.readouterr().err
