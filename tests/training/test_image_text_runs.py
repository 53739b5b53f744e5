"""Image-text runs learn to classify and retrieve, resume exactly, and convert to Hugging Face."""

import itertools
import json

import numpy as np
import pytest
from PIL import Image

from t5x_like import evaluate, predict, train
from t5x_like.evals import retrieval
from t5x_like.library.model import load
from t5x_like.report.writer import read_metrics
from tests.runs import assert_same_bits
from tools import convert_hf

pytestmark = pytest.mark.usefixtures("compiled")
NANO = "tests/recipes/nano_clip.py"
COLORS = {
  "red": (230, 40, 40),
  "green": (40, 200, 60),
  "blue": (50, 70, 230),
  "yellow": (230, 220, 60),
}
SHAPES = {
  "square": lambda y, x: (np.abs(y) < 4) & (np.abs(x) < 4),
  "bar": lambda y, x: (np.abs(y) < 2) & (np.abs(x) < 6),
  "cross": lambda y, x: (
    (np.minimum(np.abs(y), np.abs(x)) < 1.5) & (np.maximum(np.abs(y), np.abs(x)) < 6)
  ),
}
KINDS = list(itertools.product(COLORS, SHAPES))


def draw_shape(color: str, shape: str, generator) -> Image.Image:
  y, x = np.mgrid[:16, :16] - generator.uniform(6, 10, (2, 1, 1))
  pixels = generator.integers(0, 60, (16, 16, 3)) + SHAPES[shape](y, x)[..., None] * (
    np.array(COLORS[color]) - 30
  )
  return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  """Return a folder of coloured shapes: captioned pairs to train on, and a folder of each kind."""
  folder = tmp_path_factory.mktemp("shapes")
  generator = np.random.default_rng(0)
  rows = []
  for number, (color, shape) in enumerate(KINDS * 40):
    draw_shape(color, shape, generator).save(folder / f"{number}.png")
    captions = [f"a {color} {shape}", f"this {shape} is {color}", f"{shape}, {color}"]
    rows.append(json.dumps({"image": f"{number}.png", "caption": captions}))
  for split, chosen in (("train", rows[12:]), ("validation", rows[:12])):  # one of each kind
    (folder / f"{split}.jsonl").write_text("\n".join(chosen) + "\n")
  for (color, shape), number in itertools.product(KINDS, range(8)):
    (folder / "kinds" / f"{color} {shape}").mkdir(parents=True, exist_ok=True)
    draw_shape(color, shape, generator).save(
      folder / "kinds" / f"{color} {shape}" / f"{number}.png"
    )
  return folder


def run(workdir, data, *flags) -> int:
  task = {
    "source": f"jsonl:train={data}/train.jsonl,validation={data}/validation.jsonl",
    "folder": str(data),
  }
  task |= {"caption_field": "caption", "cache": str(data / "cache")}
  defaults = (f"--config.task.{key}={value}" for key, value in task.items())
  return train.main([f"--config={NANO}", f"--workdir={workdir}", *defaults, *flags])


@pytest.fixture(scope="module")
def trained_run(data, tmp_path_factory):
  folder = tmp_path_factory.mktemp("learned")
  kinds = {
    "name": "image_classification",
    "source": f"folders:validation={data}/kinds",
    "resolution": 16,
    "crop": 1.0,
  }
  kinds |= {"mean": [0.5], "std": [0.5], "cache": str(data / "cache")}
  zero_shot = {"templates": ["a {}", "{}"], "length": 24, "task": kinds}
  evals = {"loss": {}, "retrieval": {}, "zero_shot": zero_shot}
  steps = ("--config.total_steps=180", "--config.eval_every=180", "--config.checkpoint.every=180")
  schedule = ("--config.schedule.learning_rate=4e-3", "--config.schedule.warmup_steps=20")
  flags = (*steps, *schedule, "--config.batch_size=48", "--config.schedule.total_steps=180")
  assert run(folder / "run", data, *flags, f"--config.evals={json.dumps(evals)}") == 0
  return folder / "run"


@pytest.mark.more
def test_zero_shot_classification_and_retrieval_find_what_was_learned(trained_run):
  rows = read_metrics(trained_run)
  last = {name: value for row in rows for name, value in row.items() if name.startswith("eval/")}
  assert last["eval/zero_shot/top1"] > 50
  assert last["eval/zero_shot/images"] == 96  # of 12 kinds
  prefix = next(name for name in last if name.endswith("/texts")).removesuffix("texts")
  assert (last[f"{prefix}images"], last[f"{prefix}texts"]) == (12, 36)
  assert last[f"{prefix}text_to_image_r1"] > 40
  assert last[f"{prefix}image_to_text_r1"] > 40
  scales = [row["train/logit_scale"] for row in rows if "train/logit_scale" in row]
  assert scales[0] == pytest.approx(1 / 0.07, rel=1e-3)
  assert scales[-1] != scales[0]
  assert max(scales) <= 100 * 1.0001
  # the same on other devices, and in other batches
  other_layout = ("--config.batch_size=40", "--config.mesh.tensor=2")
  assert (
    evaluate.main([f"--workdir={trained_run}", "--evals=zero_shot,retrieval", *other_layout]) == 0
  )
  files = list((trained_run / "evaluations").glob("*.json"))
  assert len(files) == 2
  for path in files:
    label = "eval/zero_shot/" if "zero_shot" in path.name else prefix
    for name, value in json.loads(path.read_text())["metrics"].items():
      assert last[label + name] == pytest.approx(value, abs=3)  # one of what is near to a tie


@pytest.mark.more
def test_predict_gives_an_image_its_best_text(trained_run, data, tmp_path, capsys):
  names = [f"a {color} {shape}" for color, shape in KINDS]
  (tmp_path / "texts.txt").write_text("\n".join(names))
  ask = [f"--workdir={trained_run}", f"--input={data}/kinds", f"--output={tmp_path}/out.jsonl"]
  assert predict.main([*ask, f"--texts={tmp_path}/texts.txt", "--top_k=12", "--batch_size=40"]) == 0
  rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
  assert len(rows) == 96
  assert np.mean([row["prediction"][2:] == row["input"].split("/")[-2] for row in rows]) > 0.5
  for row in rows:
    assert sum(x["probability"] for x in row["predictions"]) == pytest.approx(1, abs=1e-3)
  capsys.readouterr()
  assert predict.main(ask) == 2
  assert (
    "--texts=None: the model is a model of images and texts, expected a file of texts"
    in capsys.readouterr().err
  )
  (tmp_path / "texts.txt").write_text(names[0])
  assert predict.main([*ask, f"--texts={tmp_path}/texts.txt"]) == 2
  assert "--texts: found 1, expected a file of at least two texts" in capsys.readouterr().err


@pytest.mark.more
def test_a_run_is_converted_to_hugging_face_and_back(trained_run, data, tmp_path):
  exported = tmp_path / "there"
  back = tmp_path / "back"
  assert convert_hf.main([f"--input={trained_run}", f"--output={exported}"]) == 0
  assert json.loads((exported / "config.json").read_text())["model_type"] == "clip"
  flags = [
    f"--input={exported}",
    f"--output={back}",
    f"--config={NANO}",
    f"--config.task.cache={data}/cache",
  ]
  assert convert_hf.main(flags) == 0
  original_arrays = load(str(trained_run), batch_size=8).run.arrays
  imported_arrays = load(str(back), batch_size=8).run.arrays
  for name in original_arrays:
    assert np.array_equal(original_arrays[name], imported_arrays[name])


@pytest.mark.more
def test_a_run_starts_from_another_at_another_resolution(trained_run, data, tmp_path):
  size = (
    "--config.model.resolution=24",
    "--config.task.resolution=24",
    "--config.schedule.total_steps=4",
  )
  assert (
    run(tmp_path, data, f"--config.init.workdir={trained_run}", "--config.total_steps=1", *size)
    == 0
  )
  report = json.loads((tmp_path / "init.json").read_text())
  assert report["resized"] == {"image/inputs/position/table": "17 to 37 rows"}
  assert not report["initialised"]


@pytest.mark.more
def test_a_run_stopped_and_resumed_has_the_same_bits(data, tmp_path):
  uninterrupted = tmp_path / "whole"
  parts = tmp_path / "parts"
  total = (
    "--config.schedule.total_steps=4",
    "--config.checkpoint.every=2",
    "--config.optimizer.name=lion",
  )
  total += (
    "--config.schedule.learning_rate=1e-3",
    "--config.objective.chunks=2",
    "--config.batch_size=16",
  )
  assert run(uninterrupted, data, *total, "--config.total_steps=4") == 0
  for steps in (2, 4):
    assert run(parts, data, *total, f"--config.total_steps={steps}") == 0
  assert_same_bits(parts, uninterrupted, 4)


@pytest.mark.parametrize(
  "flags, message",
  [
    (
      ("--config.accumulation_steps=2", "--config.batch_size=16"),
      "config.accumulation_steps: found 2, but contrastive compares all rows",
    ),
    (
      ("--config.objective.name=pairwise_sigmoid",),
      "config.model.bias: found None, pairwise_sigmoid needs one",
    ),
    (('--config.evals={"zero_shot": {}}',), 'set task={"name": "image_classification"'),
    (
      ("--config.objective.name=classification",),
      "config.objective: classification needs the feature 'label'",
    ),
    (("--config.task.channels=1",), "config.model.channels"),
  ],
)
def test_parts_that_do_not_fit_are_refused_in_one_line(flags, message, data, tmp_path, capsys):
  assert run(tmp_path, data, *flags) == 2
  error = capsys.readouterr().err.strip()
  assert message in error
  assert "\n" not in error


def test_ranks_equal_those_of_brute_force():
  generator = np.random.default_rng(0)
  image_NP = generator.standard_normal((300, 4))
  text_CP = generator.standard_normal((700, 4))
  image_C = np.sort(np.concatenate([np.arange(300), generator.integers(0, 300, 400)]))
  of_image, of_text = retrieval.match_ranks(image_NP, text_CP, image_C)
  cosine = image_NP @ text_CP.T
  for n in (0, 255, 256, 299):
    order = image_C[np.argsort(-cosine[n])]
    assert of_image[n] == np.flatnonzero(order == n)[0]
  for c in (0, 255, 256, 699):
    assert np.argsort(-cosine[:, c])[of_text[c]] == image_C[c]
  # all the same
  assert retrieval.match_ranks(np.ones((3, 2)), np.ones((3, 2)), np.arange(3))[0].tolist() == [
    2,
    2,
    2,
  ]
