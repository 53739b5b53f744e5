"""Classes of images by the door: those of the evaluation, whatever file they come in, and what is
no image is told."""

import json
import shutil

import numpy as np
import pytest

from image_files import ODD, folders
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


def ask(folder, source, *flags) -> list[dict]:
  output = folder / "out.jsonl"
  assert (
    predict.main([f"--workdir={folder}/run", f"--input={source}", f"--output={output}", *flags])
    == 0
  )
  return [json.loads(line) for line in output.read_text().splitlines()]


@pytest.mark.more
def test_predictions_are_those_of_the_evaluation(trained_on_digits, capsys):
  folder = trained_on_digits
  assert (
    evaluate.main(
      [f"--workdir={folder}/run", '--config.evals={"image_classification": {"max_examples": 20}}']
    )
    == 0
  )
  expected = next((folder / "run" / "evaluations").glob("*.jsonl")).read_text().splitlines()
  images = store.open_store("digits", "validation", cache=str(folder / "cache")).read(np.arange(20))
  for number, data in enumerate(images):
    (folder / "files" / f"{number % 2}").mkdir(parents=True, exist_ok=True)
    (folder / "files" / f"{number % 2}" / f"{number:02}.png").write_bytes(data)
  rows = ask(folder, folder / "files", "--batch_size=8", "--top_k=10")
  assert [row["input"] for row in rows] == sorted(
    str(path) for path in (folder / "files").rglob("*.png")
  )
  found = {int(row["input"][-6:-4]): row for row in rows}
  assert [found[n]["prediction"] for n in range(20)] == [
    json.loads(line)["prediction"] for line in expected
  ]
  for row in rows:
    p = [each["probability"] for each in row["predictions"]]
    assert (
      sum(p) == pytest.approx(1, abs=1e-4)
      and p == sorted(p, reverse=True)
      and row["probability"] == p[0]
    )
    assert {each["label"] for each in row["predictions"]} == set("0123456789")
  one = ask(folder, f"{folder}/files/*/0[01].png")
  assert [len(row["predictions"]) for row in one] == [5, 5] and one[0]["prediction"] == found[0][
    "prediction"
  ]
  assert ask(folder, folder / "files" / "1" / "01.png")[0]["predictions"] == one[1]["predictions"]


def test_odd_files_are_classified_or_told_and_counted(trained_on_digits, tmp_path, capsys):
  folders(tmp_path / "odd", ODD)
  rows = {
    row["input"].rpartition("odd/")[2]: row for row in ask(trained_on_digits, tmp_path / "odd")
  }
  errors = {name: row["error"] for name, row in rows.items() if "error" in row}
  bad = {name: "not a readable image" for name in ("b/broken.jpg", "b/notes.txt", "b/empty.png")}
  assert errors == bad | {"b/huge.png": "more than 67,108,864 pixels"} and rows.keys() == ODD.keys()
  assert all(0.1 <= row["probability"] <= 1 for name, row in rows.items() if name not in errors)
  told = "4 of 12 files skipped (1 more than 67,108,864 pixels, 3 not a readable image)"
  assert told in capsys.readouterr().out


@pytest.mark.parametrize(
  ("source", "flags", "words"),
  [
    ("nowhere", (), "--input=nowhere: found no file, expected an image, a folder of images"),
    ("{tmp}/bad", (), "found no image; 2 of 2 files skipped (2 not a readable image)"),
    ("{tmp}/bad", ("--beams=2",), "--beams=2: the model classifies images and generates nothing"),
    ("{tmp}/bad", ("--top_k=0",), "--top_k=0: expected at least 1"),
  ],
)
def test_what_cannot_be_is_one_line(source, flags, words, trained_on_digits, tmp_path, capsys):
  folders(tmp_path / "bad", {"x.jpg": b"?", "y.jpg": b""})
  given = [
    f"--workdir={trained_on_digits}/run",
    f"--input={source.format(tmp=tmp_path)}",
    "--output=-",
    *flags,
  ]
  assert predict.main(given) == 2
  error = capsys.readouterr().err.strip().splitlines()
  assert words in error[-1] and not any("Traceback" in line for line in error)


def test_without_classes_there_is_no_answer(trained_on_digits, tmp_path, capsys):
  copy = shutil.copytree(trained_on_digits / "run", tmp_path / "run")
  config = json.loads((copy / "config.json").read_text())
  config["model"]["head"] = {"name": "patch_colours"}
  (copy / "config.json").write_text(json.dumps(config))
  assert predict.main([f"--workdir={copy}", "--input=tests", "--output=-"]) == 2
  assert "the model's head (ColourHead) gives images no classes" in capsys.readouterr().err
