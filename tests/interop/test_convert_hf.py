"""A workdir becomes a Hugging Face directory with its weights, and this a workdir that trains."""

import json

import numpy as np
import pytest

from t5x_like import train
from t5x_like.interop import hf
from t5x_like.nn import params
from t5x_like.saved_model import open_saved_model
from tools import convert_hf

pytestmark = pytest.mark.runs

NANO = "--config=tests/recipes/nano.py"


def arrays_of(workdir, step):
  return open_saved_model(str(workdir)).restore(step)[1]


def assert_same(actual, expected):
  assert actual.keys() == expected.keys()
  for name, array in expected.items():
    assert np.array_equal(actual[name], array), name


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
  """Return the Hugging Face directory of a trained run."""
  path = tmp_path_factory.mktemp("exported") / "model"
  assert convert_hf.main([f"--input={trained}", f"--output={path}", "--step=4"]) == 0
  return path


def test_a_workdir_becomes_a_directory_with_its_weights(trained, exported):
  assert_same(params.arrays(hf.load(str(exported))), arrays_of(trained, 4))
  assert json.loads((exported / "config.json").read_text())["model_type"] == "t5"


def test_a_directory_becomes_a_workdir_that_trains(exported, tmp_path):
  assert convert_hf.main([f"--input={exported}", f"--output={tmp_path}/run", NANO]) == 0
  start = arrays_of(tmp_path / "run", 0)
  assert_same(start, params.arrays(hf.load(str(exported))))
  flags = ["--config.total_steps=1", "--config.eval_every=1"]
  assert train.main([NANO, f"--workdir={tmp_path}/run", *flags]) == 0
  after = arrays_of(tmp_path / "run", 1)
  assert any(not np.array_equal(start[name], after[name]) for name in start)


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--input={exported}"], "--config: missing"),
    (["--input={exported}", "--output={trained}", NANO], "not empty"),
    (["--input={tmp_path}"], "config.json is not there"),
    (["--input={exported}", "--config=configs/bart/base.py:debug"], "found 'bart', but"),
    (["--input={exported}", NANO, "--sentinels=<unused{{}}>"], "has no tokenizer"),
  ],
)
def test_a_bad_command_is_refused(flags, message, exported, trained, tmp_path, capsys):
  folders = dict(exported=exported, trained=trained, tmp_path=tmp_path)
  flags = [f"--output={tmp_path}/new", *(flag.format(**folders) for flag in flags)]
  assert convert_hf.main(flags) == 2
  assert message in capsys.readouterr().err
