"""Image runs resume exactly with all their random parts, change resolution, and refuse misfits."""

import dataclasses
import json
import shutil
import sys

import jax
import numpy as np
import pytest

from t5x_like import evaluate, train
from t5x_like.architectures.image_encoder import patchify
from t5x_like.library.model import load
from t5x_like.nn.dims import Dims
from t5x_like.nn.layer import Context
from t5x_like.nn.mask import Mask
from t5x_like.report.writer import read_metrics
from tests.runs import LAUNCHER, assert_same_bits, load_tensors
from tests.runs import run as in_processes
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
def trained_folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("images")
  evals = {"loss": {}, "image_classification": {}, "few_shot": {"shots": 2}}
  assert run(folder / "uninterrupted", folder / "cache", f"--config.evals={json.dumps(evals)}") == 0
  return folder


@pytest.mark.more
def test_a_run_stopped_and_resumed_with_augmentation_mixing_and_dropped_paths_has_the_same_bits(
  trained_folder, tmp_path, capsys
):
  assert run(tmp_path, trained_folder / "cache", "--config.total_steps=2") == 0
  assert run(tmp_path, trained_folder / "cache") == 0
  changes = [line for line in capsys.readouterr().out.splitlines() if "changed config" in line]
  assert changes == ["resuming with a changed config: total_steps: 2 -> 4"]
  assert_same_bits(tmp_path, trained_folder / "uninterrupted", 4)


def test_metrics_of_images_are_written_and_reproduced_by_evaluate(trained_folder, capsys):
  (last,) = [
    row
    for row in read_metrics(trained_folder / "uninterrupted")
    if "eval/digits_image_classification/top1" in row
  ]
  rows = [row for row in read_metrics(trained_folder / "uninterrupted") if "train/loss" in row]
  for row in rows:
    assert row["train/images_per_second"] > 0
    assert "train/tokens_per_second" not in row
  assert {"top1", "top5", "2_shot_top1", "loss", "accuracy"} <= {
    name.split("/")[-1] for name in last
  }
  assert not any("perplexity" in name for name in last)
  assert any("unigram_entropy" in name for name in last)
  flags = [f"--workdir={trained_folder}/uninterrupted", "--evals=image_classification"]
  assert evaluate.main(flags) == 0
  metrics = json.loads(
    next((trained_folder / "uninterrupted" / "evaluations").glob("*.json")).read_text()
  )["metrics"]
  assert metrics["top1"] == last["eval/digits_image_classification/top1"]
  assert load(str(trained_folder / "uninterrupted"), batch_size=8).vocabulary.names == tuple(
    "0123456789"
  )
  assert "Images per second" in (trained_folder / "uninterrupted" / "report.html").read_text()


@pytest.mark.more
def test_another_resolution_starts_from_the_interpolated_positions(
  trained_folder, tmp_path, capsys
):
  assert (
    run(
      tmp_path,
      trained_folder / "cache",
      f"--config.init.workdir={trained_folder}/uninterrupted",
      "--config.total_steps=1",
      *LARGER,
    )
    == 0
  )
  report = json.loads((tmp_path / "init.json").read_text())
  assert report["resized"] == {"inputs/position/table": "17 to 37 rows"}
  assert not report["initialised"]
  arrays = load(str(tmp_path), batch_size=8).run.arrays
  assert np.isfinite(arrays["inputs/position/table"]).all()


def test_a_run_is_converted_to_hugging_face_and_back(trained_folder, tmp_path):
  exported = tmp_path / "there"
  back = tmp_path / "back"
  assert convert_hf.main([f"--input={trained_folder}/uninterrupted", f"--output={exported}"]) == 0
  config = json.loads((exported / "config.json").read_text())
  assert config["model_type"] == "vit"
  assert config["id2label"] == {str(n): str(n) for n in range(10)}
  processor = json.loads((exported / "preprocessor_config.json").read_text())
  assert (processor["size"], processor["crop_size"]) == (
    {"shortest_edge": 18},
    {"height": 16, "width": 16},
  )
  cache = f"--config.task.cache={trained_folder}/cache"
  flags = [f"--input={exported}", f"--output={back}", f"--config={NANO}", cache]
  assert convert_hf.main(flags) == 0
  original_arrays = load(str(trained_folder / "uninterrupted"), batch_size=8).run.arrays
  imported_arrays = load(str(back), batch_size=8).run.arrays
  for name in original_arrays:
    assert np.array_equal(original_arrays[name], imported_arrays[name])


@pytest.mark.more
def test_another_resolution_starts_from_published_weights(trained_folder, tmp_path):
  published = tmp_path / "there"
  back = tmp_path / "back"
  cache = f"--config.task.cache={trained_folder}/cache"
  assert convert_hf.main([f"--input={trained_folder}/uninterrupted", f"--output={published}"]) == 0
  arguments = [f"--input={published}", f"--output={back}", f"--config={NANO}", cache]
  assert convert_hf.main(arguments) == 0
  flags = (f"--config.init.workdir={back}", "--config.total_steps=1", *LARGER)
  assert run(tmp_path / "larger", trained_folder / "cache", *flags) == 0
  report = json.loads((tmp_path / "larger" / "init.json").read_text())
  assert report["resized"] == {"inputs/position/table": "17 to 37 rows"}
  assert not report["initialised"]


@pytest.mark.more
def test_other_classes_get_a_new_head(trained_folder, tmp_path):
  from PIL import Image

  for name in "ab":
    (tmp_path / "photos" / name).mkdir(parents=True)
    Image.new("L", (16, 16), 40).save(tmp_path / "photos" / name / "1.png")
  source = (f"--config.task.source=folders:{tmp_path}/photos", "--config.eval_split=train")
  flags = (
    f"--config.init.workdir={trained_folder}/uninterrupted",
    "--config.model.head.labels=auto",
    "--config.total_steps=1",
    *source,
  )
  assert run(tmp_path / "run", trained_folder / "cache", *flags) == 0
  assert json.loads((tmp_path / "run" / "config.json").read_text())["model"]["head"]["labels"] == 2
  report = json.loads((tmp_path / "run" / "init.json").read_text())
  assert report["initialised"] == report["ignored"] == ["head/out/bias", "head/out/kernel"]


def test_a_report_has_pictures_and_evaluations(trained_folder):
  from PIL import Image

  pictures = {
    path.stem: Image.open(path)
    for path in (trained_folder / "uninterrupted" / "pictures").glob("*.png")
  }
  confusion = "confusion_digits_image_classification"
  assert pictures.keys() == {"augmented", "attention", confusion}
  for image in pictures.values():
    assert image.info["Title"]
    assert np.asarray(image.convert("L")).std() > 1
  assert (trained_folder / "uninterrupted" / "report.html").read_text().count(
    "data:image/png;base64,"
  ) == 3
  flags = [f"--workdir={trained_folder}/uninterrupted", "--evals=image_classification"]
  assert evaluate.main(flags) == 0
  pictures_of_evaluation = {
    path.stem
    for path in (trained_folder / "uninterrupted" / "evaluations" / "pictures").glob("*.png")
  }
  assert pictures_of_evaluation == pictures.keys()


@pytest.mark.more
def test_two_processes_compute_the_scores_and_pictures_of_one(trained_folder, tmp_path):
  """Each process has four devices."""
  arguments = [f"--workdir={trained_folder}/uninterrupted", "--evals=image_classification"]
  assert evaluate.main(arguments) == 0
  (of_one_process,) = (
    json.loads(path.read_text())
    for path in (trained_folder / "uninterrupted" / "evaluations").glob("4_*.json")
  )
  copy = shutil.copytree(
    trained_folder / "uninterrupted",
    tmp_path / "run",
    ignore=shutil.ignore_patterns("evaluations"),
  )
  command = [sys.executable, "-m", "t5x_like.evaluate", f"--workdir={copy}", f"--config={NANO}"]
  flags = (
    f"--config.task.cache={trained_folder}/cache",
    '--config.evals={"image_classification": {}}',
    "--config.batch_size=16",
  )
  code, output = in_processes([*LAUNCHER, "--", *command, *flags])
  assert code == 0, output
  (of_two_processes,) = (
    json.loads(path.read_text()) for path in (copy / "evaluations").glob("4_*.json")
  )
  assert of_two_processes["metrics"]["images"] == 297
  assert of_two_processes == of_one_process
  assert (copy / "evaluations" / "pictures" / "attention.png").is_file()


def test_pictures_show_the_attention_rollout_and_the_confusion_matrix():
  """Both are computed again in numpy, layer by layer and cell by cell."""
  from t5x_like.models import vit
  from t5x_like.nn import params
  from t5x_like.report import pictures
  from tests.models.families import Case, model

  variant = dataclasses.replace(
    vit.VARIANTS["vit-tiny"], dims=Dims(16, 2, 2, 8, 16, 2), patch=4, resolution=8
  )
  built = model(Case("vit", "vit", variant))
  image = np.random.default_rng(0).standard_normal((2, 8, 8, 3)).astype(np.float32)
  copy = params.with_arrays(built, params.arrays(built))
  rollout = np.asarray(pictures._attention_rollout(copy, {"image": image}))
  arrays = params.arrays(built)
  x = built.inputs(_tokens(built, image), np.arange(5)[None], None, None)
  rolled = np.eye(5)
  for layer in range(2):
    layer_arrays = {}
    for name, array in arrays.items():
      if name.startswith("encoder/blocks/"):
        layer_arrays[name.removeprefix("encoder/blocks/")] = array[layer]
    block = jax.tree.unflatten(
      jax.tree.structure(built.encoder.blocks), list(layer_arrays.values())
    )
    y = np.asarray(block.self_attention.in_norm(x))
    q = (
      y @ layer_arrays["self_attention/layer/query/kernel"]
      + layer_arrays["self_attention/layer/query/bias"]
    ).reshape(2, 5, 2, 8)
    k = (
      y @ layer_arrays["self_attention/layer/key/kernel"]
      + layer_arrays["self_attention/layer/key/bias"]
    ).reshape(2, 5, 2, 8)
    weights = jax.nn.softmax(np.einsum("btnh,bsnh->bnts", q, k) / 8**0.5, axis=-1)
    rolled = (np.mean(weights, 1) + np.eye(5)) / 2 @ rolled
    x, *_ = block(x, Context(mask=Mask(np.arange(5)[None], np.arange(5)[None])), None, None)
  np.testing.assert_allclose(rollout, rolled[:, 0, 1:], rtol=1e-4)
  rows = [{"target": "a", "prediction": p} for p in "aab"] + [{"target": "b", "prediction": "b"}]
  drawn = pictures.confusion(rows, ("a", "b"))
  dark = [drawn.getpixel((15 + 34 * x + 2, 15 + 34 * y + 2))[0] for y in (0, 1) for x in (0, 1)]
  assert dark == [int(255 - share * (255 - 37)) for share in (2 / 3, 1 / 3, 0, 1)]


def _tokens(vit, image):
  x = vit.patches(patchify(image, vit.variant))
  return np.concatenate([np.broadcast_to(vit.tokens[...], (2, 1, 16)), x], 1)


@pytest.mark.more
def test_a_probe_of_a_masked_autoencoder_trains_a_head_alone(trained_folder, tmp_path):
  """The autoencoder's report shows what it reconstructs."""
  task = {"name": "masked_images", "source": "digits", "resolution": 16, "channels": 1, "patch": 4}
  head = {"name": "reconstruction", "depth": 1, "embed": 16, "heads": 2, "mlp": 16}
  slots = {
    "task": task | {"cache": f"{trained_folder}/cache"},
    "objective": {"name": "masked_patches"},
    "model.head": head,
  }
  flags = [f"--config.{slot}={json.dumps(value)}" for slot, value in slots.items()]
  mae = [*flags, "--config.total_steps=2", "--config.evals={}"]
  assert train.main([f"--config={NANO}", f"--workdir={tmp_path}/mae", *mae]) == 0
  assert {path.stem for path in (tmp_path / "mae" / "pictures").glob("*.png")} == {
    "augmented",
    "reconstruction",
  }
  probe = (
    "--config.tuning.name=head",
    "--config.optimizer.name=lars",
    '--config.evals={"image_classification": {}}',
  )
  probe += (
    '--config.model.head={"name": "image_classification", "labels": 10, "pooling": '
    '"mean", "norm": "after"}',
  )
  rate = (
    "--config.schedule.learning_rate=1.0",
    "--config.schedule.warmup_steps=0",
    "--config.total_steps=2",
  )
  probe_flags = (f"--config.init.workdir={tmp_path}/mae", *probe, *rate)
  assert run(tmp_path / "probe", trained_folder / "cache", *probe_flags) == 0
  before = load_tensors(tmp_path / "mae", 2)
  after = load_tensors(tmp_path / "probe", 2)
  body = [
    name for name in after if name.startswith("params/") and not name.startswith("params/head/")
  ]
  assert body
  assert all(before[name].tobytes() == after[name].tobytes() for name in body)
  assert np.abs(after["params/head/out/kernel"]).max() > 0
  assert "params/head/norm/scale" in after
  # one norm, as MAE's code fine-tunes
  assert "params/encoder/final_norm/scale" in before.keys() - after.keys()


@pytest.mark.parametrize(
  "flag, message",
  [
    (
      "--config.task.resolution=20",
      "config.model.resolution: the model is for images of [16, 16, 1], found [20, 20, 1]",
    ),
    (
      "--config.task.channels=3",
      "config.model.channels: the model is for images of [16, 16, 1], found [16, 16, 3]",
    ),
    (
      "--config.model.head.labels=3",
      "config.model.head.labels: found 3, but task image_classification has 10",
    ),
    ("--config.objective.name=mlm", "config.objective"),
  ],
)
def test_parts_that_do_not_fit_are_refused_in_one_line(
  flag, message, trained_folder, tmp_path, capsys
):
  assert run(tmp_path, trained_folder / "cache", flag) == 2
  error = capsys.readouterr().err.strip()
  assert message in error
  assert "\n" not in error
