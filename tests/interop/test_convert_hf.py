"""Workdir -> Hugging Face directory -> workdir: the same weights, and training goes on from
them."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from t5x_like import train
from t5x_like.interop import hf
from t5x_like.nn import params
from t5x_like.saved_model import open_saved_model
from tools import convert_hf

pytestmark = pytest.mark.runs

NANO = "tests/recipes/nano.py"


def arrays(workdir, step):
  return open_saved_model(str(workdir)).restore(step)[1]


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
  """The Hugging Face directory of a trained run."""
  path = tmp_path_factory.mktemp("exported") / "model"
  assert convert_hf.main([f"--input={trained}", f"--output={path}", "--step=4"]) == 0
  return path


def test_a_workdir_becomes_a_directory_with_its_weights(trained, exported):
  mine = arrays(trained, 4)
  loaded = params.arrays(hf.load(str(exported)))
  assert mine.keys() == loaded.keys()
  assert all(np.array_equal(mine[n], loaded[n]) for n in mine)
  assert json.loads((exported / "config.json").read_text())["model_type"] == "t5"


def test_a_directory_becomes_a_workdir_that_trains(exported, tmp_path):
  workdir = tmp_path / "run"
  assert convert_hf.main([f"--input={exported}", f"--output={workdir}", f"--config={NANO}"]) == 0
  start = arrays(workdir, 0)
  loaded = params.arrays(hf.load(str(exported)))
  assert all(np.array_equal(start[n], loaded[n]) for n in start)
  flags = ["--config.total_steps=1", "--config.eval_every=1"]
  assert train.main([f"--config={NANO}", f"--workdir={workdir}", *flags]) == 0
  after = arrays(workdir, 1)
  assert any(not np.array_equal(start[n], after[n]) for n in start)


def refusal(capsys, *flags) -> str:
  capsys.readouterr()
  assert convert_hf.main(list(flags)) == 2
  (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
  return line


def test_refusals(exported, trained, tmp_path, capsys):
  out = f"--output={tmp_path / 'new'}"
  assert "--config: missing" in refusal(capsys, f"--input={exported}", out)
  assert "not empty" in refusal(
    capsys, f"--input={exported}", f"--output={trained}", f"--config={NANO}"
  )
  assert "config.json is not there" in refusal(capsys, f"--input={tmp_path}", out)
  flags = ("--config=configs/bart/base.py:debug",)
  assert f"found 'bart', but {exported} holds 't5'; use a recipe" in refusal(
    capsys, f"--input={exported}", out, *flags
  )
  flags = (f"--config={NANO}", "--sentinels=<unused{}>")
  assert "has no tokenizer to take them from" in refusal(capsys, f"--input={exported}", out, *flags)


def test_damaged_directories_are_refused_by_name(exported, tmp_path, capsys):
  out = f"--output={tmp_path / 'new'}"
  config = json.loads((exported / "config.json").read_text())
  tensors = load_file(exported / "model.safetensors")

  def damaged(name, tensors=tensors, **changes) -> str:
    path = tmp_path / name
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(
      json.dumps({k: v for k, v in (config | changes).items() if v is not ...})
    )
    return refusal(capsys, f"--input={path}", out, f"--config={NANO}")

  name = "encoder.block.1.layer.0.SelfAttention.q.weight"
  without = {n: x for n, x in tensors.items() if n != name}
  assert f"tensor {name!r} is missing" in damaged("missing", without)
  assert "tensor 'extra' is unknown" in damaged(
    "unknown", tensors | {"extra": np.zeros(3, np.float32)}
  )
  assert f"tensor {name!r} has shape [3, 32]" in damaged(
    "shape", tensors | {name: np.zeros((3, 32), np.float32)}
  )
  assert "field 'novelty' is 3" in damaged("field", novelty=3)
  assert "field 'is_decoder' is True" in damaged("decoder", is_decoder=True)
  assert "field 'd_model' is missing" in damaged("incomplete", d_model=...)
  assert "model_type is 't6', expected one of" in damaged("type", model_type="t6")
  (tmp_path / "missing" / "model.safetensors").write_bytes(b"\0" * 50)
  missing = f"--input={tmp_path / 'missing'}"
  assert "model.safetensors: cannot be read" in refusal(capsys, missing, out, f"--config={NANO}")
  (tmp_path / "missing" / "model.safetensors").rename(tmp_path / "missing" / "pytorch_model.bin")
  said = refusal(capsys, missing, out, f"--config={NANO}")
  assert "found neither model.safetensors nor" in said and "pytorch_model.bin is a pickle" in said
