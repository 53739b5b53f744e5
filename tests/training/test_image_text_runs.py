"""Image-text runs learn to classify and retrieve, and can be converted to Hugging Face."""

import itertools
import json

import numpy as np
import pytest
from PIL import Image

import json_lines
from t5x_like import evaluate, predict, train
from t5x_like.evals import retrieval
from t5x_like.library.model import load
from t5x_like.report.writer import read_metrics
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
  """Return a folder of coloured shapes: images with captions, and a folder of each kind."""
  folder = tmp_path_factory.mktemp("shapes")
  generator = np.random.default_rng(0)
  rows = []
  for number, (color, shape) in enumerate(KINDS * 40):
    draw_shape(color, shape, generator).save(folder / f"{number}.png")
    captions = [f"a {color} {shape}", f"this {shape} is {color}", f"{shape}, {color}"]
    rows.append({"image": f"{number}.png", "caption": captions})
  json_lines.write(folder / "validation.jsonl", rows[: len(KINDS)])  # one of each kind
  json_lines.write(folder / "train.jsonl", rows[len(KINDS) :])
  for color, shape in KINDS:
    kind = folder / "kinds" / f"{color} {shape}"
    kind.mkdir(parents=True)
    for number in range(8):
      draw_shape(color, shape, generator).save(kind / f"{number}.png")
  return folder


def run(workdir, data, *flags) -> int:
  source = f"jsonl:train={data}/train.jsonl,validation={data}/validation.jsonl"
  task = {"source": source, "folder": data, "caption_field": "caption", "cache": data / "cache"}
  task_flags = [f"--config.task.{key}={value}" for key, value in task.items()]
  return train.main([f"--config={NANO}", f"--workdir={workdir}", *task_flags, *flags])


@pytest.fixture(scope="module")
def trained_run(data, tmp_path_factory):
  workdir = tmp_path_factory.mktemp("learned") / "run"
  kinds = {
    "name": "image_classification",
    "source": f"folders:validation={data}/kinds",
    "resolution": 16,
    "crop": 1.0,
    "mean": [0.5],
    "std": [0.5],
    "cache": str(data / "cache"),
  }
  zero_shot = {"templates": ["a {}", "{}"], "length": 24, "task": kinds}
  evals = {"loss": {}, "retrieval": {}, "zero_shot": zero_shot}
  flags = (
    "--config.total_steps=180",
    "--config.eval_every=180",
    "--config.checkpoint.every=180",
    "--config.schedule.learning_rate=4e-3",
    "--config.schedule.warmup_steps=20",
    "--config.schedule.total_steps=180",
    "--config.batch_size=48",
    f"--config.evals={json.dumps(evals)}",
  )
  assert run(workdir, data, *flags) == 0
  return workdir


@pytest.mark.more
def test_run_learns_zero_shot_classification_and_retrieval(trained_run):
  rows = read_metrics(trained_run)
  last = {name: value for row in rows for name, value in row.items() if name.startswith("eval/")}
  assert last["eval/zero_shot/top1"] > 50
  assert last["eval/zero_shot/images"] == 8 * len(KINDS)
  prefix = next(name for name in last if name.endswith("/texts")).removesuffix("texts")
  assert last[f"{prefix}images"] == len(KINDS)
  assert last[f"{prefix}texts"] == 3 * len(KINDS)
  assert last[f"{prefix}text_to_image_r1"] > 40
  assert last[f"{prefix}image_to_text_r1"] > 40
  scales = [row["train/logit_scale"] for row in rows if "train/logit_scale" in row]
  assert scales[0] == pytest.approx(1 / 0.07, rel=1e-3)
  assert scales[-1] != scales[0]
  assert max(scales) <= 100 * 1.0001
  # Evaluations on another mesh and in other batches have the same scores.
  other_layout = ("--config.batch_size=40", "--config.mesh.tensor=2")
  flags = [f"--workdir={trained_run}", "--evals=zero_shot,retrieval", *other_layout]
  assert evaluate.main(flags) == 0
  files = list((trained_run / "evaluations").glob("*.json"))
  assert len(files) == 2
  for path in files:
    label = "eval/zero_shot/" if "zero_shot" in path.name else prefix
    for name, value in json.loads(path.read_text())["metrics"].items():
      assert last[label + name] == pytest.approx(
        value, abs=3
      )  # a near tie may be decided otherwise


@pytest.mark.more
def test_predict_finds_the_best_text_of_an_image(trained_run, data, tmp_path, capsys):
  texts = tmp_path / "texts.txt"
  texts.write_text("\n".join(f"a {color} {shape}" for color, shape in KINDS))
  flags = [f"--workdir={trained_run}", f"--input={data}/kinds", f"--output={tmp_path}/out.jsonl"]
  assert predict.main([*flags, f"--texts={texts}", "--top_k=12", "--batch_size=40"]) == 0
  rows = json_lines.read(tmp_path / "out.jsonl")
  assert len(rows) == 8 * len(KINDS)
  correct = [row["prediction"] == f"a {row['input'].split('/')[-2]}" for row in rows]
  assert np.mean(correct) > 0.5
  for row in rows:
    assert sum(x["probability"] for x in row["predictions"]) == pytest.approx(1, abs=1e-3)
  capsys.readouterr()
  assert predict.main(flags) == 2
  assert "--texts=None" in capsys.readouterr().err
  texts.write_text("a red square")
  assert predict.main([*flags, f"--texts={texts}"]) == 2
  assert "--texts: found 1, expected a file of at least two texts" in capsys.readouterr().err


@pytest.mark.more
def test_run_is_converted_to_hugging_face_and_back(trained_run, data, tmp_path):
  exported = tmp_path / "exported"
  imported = tmp_path / "imported"
  assert convert_hf.main([f"--input={trained_run}", f"--output={exported}"]) == 0
  assert json.loads((exported / "config.json").read_text())["model_type"] == "clip"
  flags = [f"--config={NANO}", f"--config.task.cache={data}/cache"]
  assert convert_hf.main([f"--input={exported}", f"--output={imported}", *flags]) == 0
  imported_arrays = load(str(imported), batch_size=8).run.arrays
  for name, array in load(str(trained_run), batch_size=8).run.arrays.items():
    assert np.array_equal(imported_arrays[name], array), name


@pytest.mark.more
def test_run_starts_from_another_run_at_another_resolution(trained_run, data, tmp_path):
  flags = (
    f"--config.init.workdir={trained_run}",
    "--config.total_steps=1",
    "--config.schedule.total_steps=4",
    "--config.model.resolution=24",
    "--config.task.resolution=24",
  )
  assert run(tmp_path, data, *flags) == 0
  report = json.loads((tmp_path / "init.json").read_text())
  assert report["resized"] == {"image/inputs/position/table": "17 to 37 rows"}
  assert not report["initialised"]


@pytest.mark.parametrize(
  "flags, message",
  [
    (
      ("--config.accumulation_steps=2", "--config.batch_size=16"),
      "config.accumulation_steps: found 2",
    ),
    (("--config.objective.name=pairwise_sigmoid",), "config.model.bias: found None"),
    (('--config.evals={"zero_shot": {}}',), 'set task={"name": "image_classification"'),
    (("--config.objective.name=classification",), "config.objective: classification needs"),
    (("--config.task.channels=1",), "config.model.channels"),
  ],
)
def test_incompatible_parts_are_refused(flags, message, data, tmp_path, capsys):
  assert run(tmp_path, data, *flags) == 2
  (error,) = capsys.readouterr().err.splitlines()
  assert message in error


def test_ranks_equal_brute_force():
  generator = np.random.default_rng(0)
  image_NP = generator.standard_normal((300, 4))
  text_CP = generator.standard_normal((700, 4))
  image_C = np.sort(np.concatenate([np.arange(300), generator.integers(0, 300, 400)]))
  image_ranks, text_ranks = retrieval.match_ranks(image_NP, text_CP, image_C)
  cosine = image_NP @ text_CP.T
  for n in (0, 255, 256, 299):
    order = image_C[np.argsort(-cosine[n])]
    assert image_ranks[n] == np.flatnonzero(order == n)[0]
  for c in (0, 255, 256, 699):
    assert np.argsort(-cosine[:, c])[text_ranks[c]] == image_C[c]


def test_equal_vectors_have_the_last_rank():
  ones = np.ones((3, 2))
  image_ranks, _ = retrieval.match_ranks(ones, ones, np.arange(3))
  assert image_ranks.tolist() == [2, 2, 2]
