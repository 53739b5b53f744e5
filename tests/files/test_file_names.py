"""Names read from files of others lead to no path outside their directory."""

import contextlib
import io
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from t5x_like import evaluate, vocabularies
from t5x_like.benchmarks import predictions
from t5x_like.checkpoints import manifest as checkpoint_manifest
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.corpora import builtin
from t5x_like.data import task
from t5x_like.data.images import store as image_store
from t5x_like.errors import DamageError, UserError
from t5x_like.files import file_names
from t5x_like.interop.tensor_files import TensorFiles
from t5x_like.training import workdir
from tests import published, stores
from tools import convert_hf, prepare_data

pytestmark = pytest.mark.runs

HOSTILE = [
  "x/../../../elsewhere",
  "..",
  ".",
  "",
  "/etc/passwd",
  "a/b",
  "a\\b",
  "a\nb",
  "a\0b",
  "a\x7fb",
  "\ud800",
  "n" * 201,
  "界" * 67,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_paths_and_unprintable_text_are_no_names(name):
  assert not file_names.is_name(name)
  with pytest.raises(
    UserError, match=r"store: name: found .*, expected a name of 1 to 200 bytes"
  ) as error:
    file_names.check_name("store: name", name)
  assert str(error.value).isascii()
  assert "\n" not in str(error.value)
  assert len(str(error.value)) < 320


def test_names_may_hold_spaces_dots_and_other_scripts():
  for name in (
    "corpus",
    "c4_en-1.0",
    "validation[:200]",
    "日本",
    "n" * 200,
    "...",
    "-x",
    "a b",
    "$HOME",
  ):
    assert file_names.check_name("x", name) == name
  assert not any(map(file_names.is_name, (None, 3, ["a"], b"a")))


def test_only_relative_paths_without_escapes_stay_inside():
  assert all(map(file_names.is_inside, ("a", "a/b.jpg", "./a", "a//b")))
  assert not any(
    map(file_names.is_inside, ("/a", "../a", "a/../../b", "a/..", "", ".", "a/\0", None))
  )


@contextlib.contextmanager
def nothing_else_written(root: pathlib.Path, *writable: pathlib.Path):
  """Checks that no file under `root` appears or changes, except in the writable directories."""

  def modification_times():
    times = {}
    for path in root.rglob("*"):
      is_writable = any(path.is_relative_to(folder) for folder in writable)
      if path.is_file() and not is_writable:
        times[path] = path.stat().st_mtime_ns
    return times

  before = modification_times()
  yield
  assert modification_times() == before


def check_refusal(capsys, exit_code, *words):
  lines = capsys.readouterr().err.strip().splitlines()
  assert exit_code == 2, lines
  assert len(lines) == 1, lines
  assert all(word in lines[0] for word in words), lines


@pytest.fixture
def copied(trained, tmp_path):
  """A run in a deep directory, which may be changed."""
  workdir = tmp_path / "a" / "b" / "run"
  shutil.copytree(trained, workdir)
  return workdir


@pytest.mark.parametrize("key", ["name", "split"])
def test_a_foreign_store_writes_no_files_elsewhere(copied, tmp_path, capsys, key):
  store = tmp_path / "store"
  shutil.copytree(builtin.prepare(), store)
  hostile = "x/../../../elsewhere"
  stores.edit(store / "validation", lambda manifest: manifest.update({key: hostile}), checked=True)
  with nothing_else_written(tmp_path, copied / "data"):
    exit_code = evaluate.main([f"--workdir={copied}", f"--config.task.store={store}"])
  check_refusal(
    capsys, exit_code, f"{store}/validation/manifest.json: {key}: found 'x/../../../elsewhere'"
  )


def test_nor_do_splits_and_evaluators_of_a_foreign_config(copied, tmp_path, capsys):
  file = copied / "config.json"
  saved = json.loads(file.read_text())
  for changes, key in (
    ({"evals": {"/elsewhere/x": {"name": "loss"}}}, "config.evals"),
    ({"eval_split": "../../../store/validation"}, "config.task: its split"),
    ({"evals": {"loss": {"name": "loss", "split": "../x"}}}, "config.evals.loss.task: its split"),
    ({"phases": {"a/x": {"until": 1}}}, "config.phases"),
  ):
    file.write_text(json.dumps(saved | changes))
    with nothing_else_written(tmp_path, copied / "data"):
      check_refusal(capsys, evaluate.main([f"--workdir={copied}"]), key, "expected a")


def test_a_foreign_vocabulary_writes_nothing_beside_an_export(copied, tmp_path, capsys):
  """A published vocabulary names the files that it brings, which an export writes."""
  tokenizer = tmp_path / "hf"
  tokenizer.mkdir()
  made: Tokenizer = published.byte_level(published.BART)
  made.save(str(tokenizer / "tokenizer.json"))
  (tokenizer / "tokenizer_config.json").write_text(
    json.dumps({"eos_token": "</s>", "pad_token": "<pad>"})
  )
  shutil.rmtree(copied / "vocabulary")
  vocabularies.load(str(tokenizer)).save(copied / "vocabulary")
  target = tmp_path / "PWNED"
  bait = copied / "vocabulary" / "huggingface." / str(target)[1:]
  bait.parent.mkdir(parents=True)
  bait.write_text("payload")
  manifest = json.loads((copied / "vocabulary" / "vocabulary.json").read_text())
  manifest["files"][f"huggingface./{target}"] = {"bytes": 7}
  (copied / "vocabulary" / "vocabulary.json").write_text(json.dumps(manifest))
  exit_code = convert_hf.main([f"--input={copied}", f"--output={tmp_path}/export"])
  assert not target.exists()
  check_refusal(capsys, exit_code, f"{copied}/vocabulary/vocabulary.json: files: found ")


def test_a_store_is_not_made_under_a_name_that_cannot_be_read(tmp_path, capsys):
  (tmp_path / "a.jsonl").write_text('{"text": "one"}\n' * 20)
  exit_code = prepare_data.main(
    [
      f"--source=jsonl:{tmp_path}/a.jsonl",
      "--vocabulary=bytes",
      f"--output={tmp_path}/out",
      "--name=../x",
    ]
  )
  check_refusal(capsys, exit_code, "--name: found '../x'")
  assert not (tmp_path / "out").exists()


def test_examples_of_a_foreign_cache_stay_inside(tmp_path):
  (tmp_path / "a.tsv").write_text("a\tb\nx\ty\n")
  arguments = dict(
    source=f"tsv:{tmp_path}/a.tsv", inputs="{a}", targets="{b}", cache=str(tmp_path / "cache")
  )
  task.build("text_to_text", "train", **arguments)
  (store,) = (tmp_path / "cache").glob("a-*")
  stores.edit(store, lambda manifest: manifest["arrays"][0].update(name="../x"), checked=True)
  with pytest.raises(UserError, match=r"manifest.json: arrays: found '\.\./x', expected a name"):
    task.build("text_to_text", "train", **arguments)


def test_a_checkpoint_names_no_tensor_elsewhere(copied, tmp_path, capsys):
  manifest_file = copied / "checkpoints" / "4" / "manifest" / "metadata"
  saved = json.loads(manifest_file.read_text())
  some = next(name for name in saved["tensors"] if name.startswith("params/"))

  def restore():
    with Checkpoints(str(copied / "checkpoints")) as checkpoints:
      checkpoints.restore(lambda tensors: {}, 4)

  restore()
  for tensors in (
    {**saved["tensors"], "params/../../../elsewhere": saved["tensors"][some]},
    {**saved["tensors"], "/etc/passwd": saved["tensors"][some]},
  ):
    manifest = {key: value for key, value in saved.items() if key != "digest"} | {
      "tensors": tensors
    }
    manifest["digest"] = checkpoint_manifest.digest(manifest)
    manifest_file.write_text(json.dumps(manifest))
    with pytest.raises(DamageError, match="which no checkpoint has"):
      restore()
  exit_code = evaluate.main([f"--workdir={copied}", "--step=4"])
  lines = capsys.readouterr().err.strip().splitlines()
  assert exit_code == 4, lines
  assert len(lines) == 1, lines
  assert "which no checkpoint has" in lines[0], lines


@pytest.mark.parametrize(
  "file", ["../outside.safetensors", "/outside.safetensors", "a/b.safetensors", 3, None]
)
def test_an_index_of_tensors_names_files_of_its_directory(tmp_path, file):
  directory = tmp_path / "model"
  directory.mkdir()
  save_file({"x": np.zeros(2, np.float32)}, tmp_path / "outside.safetensors")
  (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": file}}))
  with pytest.raises(
    UserError,
    match=r"model\.safetensors\.index\.json: (weight_map: found .*, expected a|found "
    r"no 'weight_map')",
  ):
    TensorFiles(directory, lambda name: name)


def picture(path: pathlib.Path) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  data = io.BytesIO()
  Image.new("RGB", (8, 8)).save(data, "PNG")
  path.write_bytes(data.getvalue())


def test_records_name_images_of_the_folder_that_is_given(tmp_path):
  picture(tmp_path / "secret.png")
  picture(tmp_path / "images" / "a.png")

  def opened(name, folder):
    (tmp_path / "records.jsonl").write_text(json.dumps({"image": name, "caption": "a"}) + "\n")
    arguments = dict(
      image_field="image", label_field=None, cache=str(tmp_path / "cache"), folder=folder
    )
    return image_store.open_store(f"jsonl:{tmp_path}/records.jsonl", "train", **arguments)

  assert opened("a.png", str(tmp_path / "images")).num_images == 1
  assert opened(str(tmp_path / "secret.png"), "").num_images == 1
  for name in ("../secret.png", str(tmp_path / "secret.png")):
    with pytest.raises(
      UserError,
      match=r"records.jsonl:1: found .* in field 'image', expected a "
      r"path below",
    ):
      opened(name, str(tmp_path / "images"))


def test_a_suite_reads_no_group_of_another_directory(tmp_path):
  with pytest.raises(UserError, match="the group of a score: found '..'"):
    predictions.read_predictions(str(tmp_path), "..")


def test_small_files_of_a_workdir_have_names(tmp_path):
  for name in ("../x.json", "a/b.json", "/x"):
    with pytest.raises(UserError, match="a file's name: found"):
      workdir.write_json(tmp_path / "w", name, {})
  assert not os.path.exists(tmp_path / "x.json")


def test_a_task_of_another_split_than_a_name_is_refused():
  with pytest.raises(UserError, match=r"config.task: its split: found '../train', expected a name"):
    task.build("span_corruption", "../train", store="builtin")
