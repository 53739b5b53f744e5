"""Names that are read from foreign files never lead to paths outside their directory."""

import contextlib
import json
import pathlib
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from t5x_like import evaluate, vocabularies
from t5x_like.benchmarks import predictions
from t5x_like.checkpoints import manifest as checkpoint_manifest
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.corpora import builtin
from t5x_like.data import task
from t5x_like.errors import DamageError, UserError
from t5x_like.files import file_names
from t5x_like.interop.tensor_files import TensorFiles
from t5x_like.training import workdir
from tests import published, stores
from tests.refusals import refuses
from tools import convert_hf, prepare_data

pytestmark = pytest.mark.runs

HOSTILE_NAMES = [
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


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_paths_and_unprintable_text_are_not_names(name):
  assert not file_names.is_name(name)
  with pytest.raises(UserError, match="store: name: found .*, expected a name") as refusal:
    file_names.check_name("store: name", name)
  message = str(refusal.value)
  assert message.isascii()
  assert "\n" not in message
  assert len(message) < 320  # long names are shortened


def test_names_may_hold_spaces_dots_and_other_scripts():
  for name in ("c4_en-1.0", "validation[:200]", "日本", "n" * 200, "...", "-x", "a b", "$HOME"):
    assert file_names.check_name("x", name) == name
  for value in (None, 3, ["a"], b"a"):
    assert not file_names.is_name(value)


def test_only_relative_paths_without_escapes_stay_inside():
  for path in ("a", "a/b.jpg", "./a", "a//b"):
    assert file_names.is_inside(path)
  for path in ("/a", "../a", "a/../../b", "a/..", "", ".", "a/\0", None):
    assert not file_names.is_inside(path)


@contextlib.contextmanager
def assert_writes_only_in(root: pathlib.Path, *writable: pathlib.Path):
  """Assert that no file under `root` appears or changes, except in the writable directories."""

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


def assert_refused(capsys, exit_code, *words, expected_code=2):
  (line,) = capsys.readouterr().err.strip().splitlines()
  assert exit_code == expected_code, line
  for word in words:
    assert word in line


@pytest.fixture
def foreign_run(trained, tmp_path):
  """Return the workdir of a run, which tests may change, deep enough for `../../..` to show."""
  workdir = tmp_path / "a" / "b" / "run"
  shutil.copytree(trained, workdir)
  return workdir


@pytest.mark.parametrize("key", ["name", "split"])
def test_foreign_store_writes_no_files_elsewhere(foreign_run, tmp_path, capsys, key):
  store = tmp_path / "store"
  shutil.copytree(builtin.prepare(), store)
  hostile = "x/../../../elsewhere"
  stores.edit(store / "validation", lambda manifest: manifest.update({key: hostile}), checked=True)
  with assert_writes_only_in(tmp_path, foreign_run / "data"):
    exit_code = evaluate.main([f"--workdir={foreign_run}", f"--config.task.store={store}"])
  assert_refused(
    capsys, exit_code, f"{store}/validation/manifest.json: {key}: found 'x/../../../elsewhere'"
  )


def test_names_in_a_foreign_config_write_no_files_elsewhere(foreign_run, tmp_path, capsys):
  file = foreign_run / "config.json"
  saved = json.loads(file.read_text())
  for changes, key in (
    ({"evals": {"/elsewhere/x": {"name": "loss"}}}, "config.evals"),
    ({"eval_split": "../../../store/validation"}, "config.task: its split"),
    ({"evals": {"loss": {"name": "loss", "split": "../x"}}}, "config.evals.loss.task: its split"),
    ({"phases": {"a/x": {"until": 1}}}, "config.phases"),
  ):
    file.write_text(json.dumps(saved | changes))
    with assert_writes_only_in(tmp_path, foreign_run / "data"):
      assert_refused(capsys, evaluate.main([f"--workdir={foreign_run}"]), key, "expected a")


def test_foreign_vocabulary_writes_nothing_outside_an_export(foreign_run, tmp_path, capsys):
  """A published vocabulary lists its own files, which an export writes."""
  tokenizer = tmp_path / "hf"
  tokenizer.mkdir()
  published.byte_level(published.BART).save(str(tokenizer / "tokenizer.json"))
  (tokenizer / "tokenizer_config.json").write_text(
    json.dumps({"eos_token": "</s>", "pad_token": "<pad>"})
  )
  shutil.rmtree(foreign_run / "vocabulary")
  vocabularies.load(str(tokenizer)).save(foreign_run / "vocabulary")
  target = tmp_path / "PWNED"
  payload = foreign_run / "vocabulary" / "huggingface." / str(target)[1:]
  payload.parent.mkdir(parents=True)
  payload.write_text("payload")
  manifest = json.loads((foreign_run / "vocabulary" / "vocabulary.json").read_text())
  manifest["files"][f"huggingface./{target}"] = {"bytes": 7}
  (foreign_run / "vocabulary" / "vocabulary.json").write_text(json.dumps(manifest))
  exit_code = convert_hf.main([f"--input={foreign_run}", f"--output={tmp_path}/export"])
  assert not target.exists()
  assert_refused(capsys, exit_code, f"{foreign_run}/vocabulary/vocabulary.json: files: found ")


def test_store_is_not_made_under_an_invalid_name(tmp_path, capsys):
  (tmp_path / "a.jsonl").write_text('{"text": "one"}\n' * 20)
  flags = [f"--source=jsonl:{tmp_path}/a.jsonl", "--vocabulary=bytes", "--name=../x"]
  exit_code = prepare_data.main([*flags, f"--output={tmp_path}/out"])
  assert_refused(capsys, exit_code, "--name: found '../x'")
  assert not (tmp_path / "out").exists()


def test_arrays_of_a_foreign_cache_stay_inside_it(tmp_path):
  (tmp_path / "a.tsv").write_text("a\tb\nx\ty\n")
  arguments = dict(
    source=f"tsv:{tmp_path}/a.tsv", inputs="{a}", targets="{b}", cache=str(tmp_path / "cache")
  )
  task.build("text_to_text", "train", **arguments)
  (store,) = (tmp_path / "cache").glob("a-*")
  stores.edit(store, lambda manifest: manifest["arrays"][0].update(name="../x"), checked=True)
  with pytest.raises(UserError, match=r"manifest.json: arrays: found '\.\./x', expected a name"):
    task.build("text_to_text", "train", **arguments)


def test_checkpoint_with_a_path_for_a_tensor_name_is_refused(foreign_run, tmp_path, capsys):
  manifest_file = foreign_run / "checkpoints" / "4" / "manifest" / "metadata"
  saved = json.loads(manifest_file.read_text())
  parameter = next(name for name in saved["tensors"] if name.startswith("params/"))

  def restore():
    with Checkpoints(str(foreign_run / "checkpoints")) as checkpoints:
      checkpoints.restore(lambda tensors: {}, 4)

  restore()
  for name in ("params/../../../elsewhere", "/etc/passwd"):
    manifest = saved | {"tensors": saved["tensors"] | {name: saved["tensors"][parameter]}}
    manifest.pop("digest")
    manifest["digest"] = checkpoint_manifest.digest(manifest)
    manifest_file.write_text(json.dumps(manifest))
    with pytest.raises(DamageError, match="which no checkpoint has"):
      restore()
  exit_code = evaluate.main([f"--workdir={foreign_run}", "--step=4"])
  assert_refused(capsys, exit_code, "which no checkpoint has", expected_code=4)


@pytest.mark.parametrize(
  "file", ["../outside.safetensors", "/outside.safetensors", "a/b.safetensors"]
)
def test_tensor_index_may_name_only_files_of_its_directory(tmp_path, file):
  directory = tmp_path / "model"
  directory.mkdir()
  save_file({"x": np.zeros(2, np.float32)}, tmp_path / "outside.safetensors")
  (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": file}}))
  with refuses("model.safetensors.index.json: weight_map: found "):
    TensorFiles(directory, lambda name: name)


@pytest.mark.parametrize(
  "call, words",
  [
    (lambda folder: predictions.read_predictions(str(folder), ".."), "the group of a score: found"),
    (
      lambda folder: workdir.write_json(folder, "../x.json", {}),
      "a file's name: found '../x.json'",
    ),
    (lambda folder: workdir.write_json(folder, "a/b.json", {}), "a file's name: found 'a/b.json'"),
    (lambda folder: workdir.write_json(folder, "/x", {}), "a file's name: found '/x'"),
    (
      lambda folder: task.build("span_corruption", "../train", store="builtin"),
      "config.task: its split: found '../train', expected a name",
    ),
  ],
)
def test_path_in_place_of_a_name_is_refused(call, words, tmp_path):
  with refuses(words):
    call(tmp_path / "folder")
  assert not list(tmp_path.iterdir())
