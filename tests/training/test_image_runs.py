"""Image runs write pictures, can be converted, and can change resolution and classes."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from PIL import Image

import image_files
from t5x_like import evaluate, train
from t5x_like.architectures.image_encoder import patchify
from t5x_like.library.model import load
from t5x_like.models import vit
from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from t5x_like.nn.layer import Context
from t5x_like.nn.mask import Mask
from t5x_like.report import pictures
from t5x_like.report.writer import read_metrics
from tests.models.families import Case, model
from tests.runs import load_tensors
from tools import convert_hf

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("compiled")]
NANO = "tests/recipes/nano_image.py"
LARGER = (
  "--config.model.resolution=24",
  "--config.task.resolution=24",
  '--config.task.mixing={"mixup": 0.0}',
)
TOTAL = ("--config.total_steps=4", "--config.eval_every=4")


def run(workdir, cache, *flags) -> int:
  defaults = (
    f"--config.task.cache={cache}",
    "--config.schedule.total_steps=4",
    "--config.checkpoint.every=2",
  )
  return train.main([f"--config={NANO}", f"--workdir={workdir}", *defaults, *TOTAL, *flags])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Return a folder with a finished run, `run`, and the cache of its data."""
  folder = tmp_path_factory.mktemp("images")
  evals = {"loss": {}, "image_classification": {}, "few_shot": {"shots": 2}}
  assert run(folder / "run", folder / "cache", f"--config.evals={json.dumps(evals)}") == 0
  return folder


@pytest.fixture(scope="module")
def scores(folder) -> dict:
  """Return the file that `evaluate` writes for the finished run."""
  assert evaluate.main([f"--workdir={folder}/run", "--evals=image_classification"]) == 0
  (path,) = (folder / "run" / "evaluations").glob("4_*.json")
  return json.loads(path.read_text())


def load_arrays(workdir) -> dict:
  return load(str(workdir), batch_size=8).run.arrays


def assert_only_positions_are_resized(workdir):
  report = json.loads((workdir / "init.json").read_text())
  assert report["resized"] == {"inputs/position/table": "17 to 37 rows"}
  assert not report["initialised"]


def test_metrics_of_images_are_written_and_reproduced_by_evaluate(folder, scores):
  rows = read_metrics(folder / "run")
  for row in rows:
    if "train/loss" in row:
      assert row["train/images_per_second"] > 0
      assert "train/tokens_per_second" not in row
  top1 = "eval/digits_image_classification/top1"
  (last,) = [row for row in rows if top1 in row]
  names = {name.rpartition("/")[2] for name in last}
  assert {"top1", "top5", "2_shot_top1", "loss", "accuracy", "unigram_entropy"} <= names
  assert "perplexity" not in names
  assert scores["metrics"]["top1"] == last[top1]
  assert load(str(folder / "run"), batch_size=8).vocabulary.names == tuple("0123456789")
  assert "Images per second" in (folder / "run" / "report.html").read_text()


@pytest.mark.more
def test_run_at_another_resolution_starts_from_interpolated_positions(folder, tmp_path):
  flags = (f"--config.init.workdir={folder}/run", "--config.total_steps=1", *LARGER)
  assert run(tmp_path, folder / "cache", *flags) == 0
  assert_only_positions_are_resized(tmp_path)
  assert np.isfinite(load_arrays(tmp_path)["inputs/position/table"]).all()


@pytest.fixture(scope="module")
def converted(folder):
  """Return a folder with `run`, its conversion `exported`, and that converted back, `imported`."""
  assert convert_hf.main([f"--input={folder}/run", f"--output={folder}/exported"]) == 0
  flags = [f"--config={NANO}", f"--config.task.cache={folder}/cache"]
  paths = [f"--input={folder}/exported", f"--output={folder}/imported"]
  assert convert_hf.main([*paths, *flags]) == 0
  return folder


def test_run_is_converted_to_hugging_face_and_back(converted):
  config = json.loads((converted / "exported" / "config.json").read_text())
  assert config["model_type"] == "vit"
  assert config["id2label"] == {str(n): str(n) for n in range(10)}
  processor = json.loads((converted / "exported" / "preprocessor_config.json").read_text())
  assert processor["size"] == {"shortest_edge": 18}
  assert processor["crop_size"] == {"height": 16, "width": 16}
  imported = load_arrays(converted / "imported")
  for name, array in load_arrays(converted / "run").items():
    assert np.array_equal(imported[name], array), name


@pytest.mark.more
def test_run_at_another_resolution_starts_from_imported_weights(converted, tmp_path):
  flags = (f"--config.init.workdir={converted}/imported", "--config.total_steps=1", *LARGER)
  assert run(tmp_path, converted / "cache", *flags) == 0
  assert_only_positions_are_resized(tmp_path)


@pytest.mark.more
def test_run_on_other_classes_starts_with_a_new_head(folder, tmp_path):
  photo = image_files.encode(np.full((16, 16), 40, np.uint8))
  source = image_files.write_folders(tmp_path / "photos", {"a/1.png": photo, "b/1.png": photo})
  flags = (
    f"--config.init.workdir={folder}/run",
    "--config.model.head.labels=auto",
    "--config.total_steps=1",
    f"--config.task.source={source}",
    "--config.eval_split=train",
  )
  assert run(tmp_path / "run", folder / "cache", *flags) == 0
  assert json.loads((tmp_path / "run" / "config.json").read_text())["model"]["head"]["labels"] == 2
  report = json.loads((tmp_path / "run" / "init.json").read_text())
  assert report["initialised"] == report["ignored"] == ["head/out/bias", "head/out/kernel"]


def test_reports_and_evaluations_have_pictures(folder, scores):
  workdir = folder / "run"
  names = ("augmented", "attention", "confusion_digits_image_classification")
  for name in names:
    image = Image.open(workdir / "pictures" / f"{name}.png")
    assert image.info["Title"]
    assert np.asarray(image.convert("L")).std() > 1
  assert (workdir / "report.html").read_text().count("data:image/png;base64,") == len(names)
  pictures = (workdir / "evaluations" / "pictures").glob("*.png")
  assert {path.stem for path in pictures} == set(names)


def project(x, block, name):
  """Return the queries, keys or values [B, T, N, H] of two heads."""
  kernel = block[f"self_attention/layer/{name}/kernel"]
  projection = x @ kernel + block[f"self_attention/layer/{name}/bias"]
  return projection.reshape(*x.shape[:2], 2, 8)


def test_picture_of_attention_equals_a_rollout_layer_by_layer():
  dims = Dims(16, 2, 2, 8, 16, 2)
  variant = dataclasses.replace(vit.VARIANTS["vit-tiny"], dims=dims, patch=4, resolution=8)
  vit_model = model(Case("vit", "vit", variant))
  image = np.random.default_rng(0).standard_normal((2, 8, 8, 3)).astype(np.float32)
  patches = vit_model.patches(patchify(image, variant))
  tokens = np.concatenate([np.broadcast_to(vit_model.tokens[...], (2, 1, 16)), patches], 1)
  positions = np.arange(5)[None]
  x = vit_model.inputs(tokens, positions, None, None)
  rolled = np.eye(5)
  prefix = "encoder/blocks/"
  for layer in range(2):
    arrays = {}
    for name, array in params.arrays(vit_model).items():
      if name.startswith(prefix):
        arrays[name.removeprefix(prefix)] = array[layer]
    block = jax.tree.unflatten(jax.tree.structure(vit_model.encoder.blocks), list(arrays.values()))
    y = np.asarray(block.self_attention.in_norm(x))
    scores = np.einsum("btnh,bsnh->bnts", project(y, arrays, "query"), project(y, arrays, "key"))
    weights = jax.nn.softmax(scores / 8**0.5, axis=-1)
    rolled = (np.mean(weights, 1) + np.eye(5)) / 2 @ rolled
    x, *_ = block(x, Context(mask=Mask(positions, positions)), None, None)
  copy = params.with_arrays(vit_model, params.arrays(vit_model))
  rollout = pictures._attention_rollout(copy, {"image": image})
  np.testing.assert_allclose(rollout, rolled[:, 0, 1:], rtol=1e-4)


def test_cells_of_the_confusion_matrix_are_darker_for_larger_shares():
  rows = [{"target": "a", "prediction": prediction} for prediction in "aab"]
  picture = pictures.confusion([*rows, {"target": "b", "prediction": "b"}], ("a", "b"))
  shares = {(0, 0): 2 / 3, (1, 0): 1 / 3, (0, 1): 0, (1, 1): 1}
  for (x, y), share in shares.items():
    assert picture.getpixel((17 + 34 * x, 17 + 34 * y))[0] == int(255 - share * (255 - 37))


@pytest.mark.more
def test_probe_of_a_masked_autoencoder_trains_only_a_head(folder, tmp_path):
  """The autoencoder's report has a picture of its reconstructions."""
  slots = {
    "task": {
      "name": "masked_images",
      "source": "digits",
      "resolution": 16,
      "channels": 1,
      "patch": 4,
      "cache": f"{folder}/cache",
    },
    "objective": {"name": "masked_patches"},
    "model.head": {"name": "reconstruction", "depth": 1, "embed": 16, "heads": 2, "mlp": 16},
    "evals": {},
    "total_steps": 2,
  }
  flags = [f"--config.{slot}={json.dumps(value)}" for slot, value in slots.items()]
  assert train.main([f"--config={NANO}", f"--workdir={tmp_path}/mae", *flags]) == 0
  names = {path.stem for path in (tmp_path / "mae" / "pictures").glob("*.png")}
  assert names == {"augmented", "reconstruction"}
  head = {"name": "image_classification", "labels": 10, "pooling": "mean", "norm": "after"}
  probe = (
    f"--config.init.workdir={tmp_path}/mae",
    "--config.tuning.name=head",
    "--config.optimizer.name=lars",
    '--config.evals={"image_classification": {}}',
    f"--config.model.head={json.dumps(head)}",
    "--config.schedule.learning_rate=1.0",
    "--config.schedule.warmup_steps=0",
    "--config.total_steps=2",
  )
  assert run(tmp_path / "probe", folder / "cache", *probe) == 0
  before = load_tensors(tmp_path / "mae", 2)
  after = load_tensors(tmp_path / "probe", 2)
  body = {name for name in after if name.startswith("params/") and "params/head/" not in name}
  assert body
  for name in body:
    assert before[name].tobytes() == after[name].tobytes(), name
  assert np.abs(after["params/head/out/kernel"]).max() > 0
  assert "params/head/norm/scale" in after
  # Only the head has a norm, as in MAE's code for fine-tuning.
  assert "params/encoder/final_norm/scale" in before.keys() - after.keys()


@pytest.mark.parametrize(
  "flag, names",
  [
    ("--config.task.resolution=20", ("config.model.resolution", "[16, 16, 1]", "[20, 20, 1]")),
    ("--config.task.channels=3", ("config.model.channels", "[16, 16, 1]", "[16, 16, 3]")),
    ("--config.model.head.labels=3", ("config.model.head.labels", "found 3", "has 10")),
    ("--config.objective.name=mlm", ("config.objective",)),
  ],
)
def test_incompatible_parts_are_refused(flag, names, folder, tmp_path, capsys):
  assert run(tmp_path, folder / "cache", flag) == 2
  (error,) = capsys.readouterr().err.splitlines()
  for name in names:
    assert name in error
