"""The package runs from a clone and, with `make test-install`, from its wheel alone."""

import os
import pathlib
import subprocess
import sys
import tomllib
import zipfile

import pytest

from t5x_like import recipes

REPO = pathlib.Path(__file__).resolve().parents[1]
EXTRAS = {"tpu", "cuda12", "gcs", "s3", "hf", "eval", "plan", "beam", "test"}


def test_every_optional_dependency_has_an_extra():
  project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
  assert set(project["optional-dependencies"]) >= EXTRAS
  assert [path.name for path in REPO.glob("requirements*.txt")] == ["requirements.txt"]


def test_recipes_are_found_from_any_directory(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert "configs/t5/base.py" in recipes.names()
  # quickstart.py imports another recipe.
  assert recipes.load("configs/t5/quickstart.py:debug").total_steps == 2
  # A recipe of the user, in the current directory, that imports one of the package.
  recipe = tmp_path / "configs" / "mine" / "other.py"
  recipe.parent.mkdir(parents=True)
  recipe.write_text(
    "from configs.t5 import base\n\n\ndef get_config():\n  return base.get_config('small')\n"
  )
  assert "configs/mine/other.py" in recipes.names()
  assert recipes.load("configs/mine/other.py").model.variant == "t5-v1_1-small"


@pytest.mark.parametrize(
  "arguments, code, message",
  [([], 0, "convert_hf"), (["trian"], 2, "did you mean 'train'"), (["train"], 2, "--config")],
)
def test_the_first_argument_selects_the_program(arguments, code, message):
  # A subprocess, since a program may replace its process by one with other environment variables.
  command = [sys.executable, "-m", "t5x_like", *arguments]
  process = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
  assert process.returncode == code
  assert message in process.stdout + process.stderr


@pytest.mark.install
def test_the_wheel_runs_every_program_from_an_empty_directory(tmp_path):
  """Only the wheel and requirements.txt are installed; one top-level name is added, and everything
  runs by name."""

  env = dict(os.environ)
  env.pop("PYTHONPATH", None)
  env.pop("VIRTUAL_ENV", None)

  def run(*arguments, code=0):
    command = [str(argument) for argument in arguments]
    process = subprocess.run(
      command, cwd=tmp_path / "empty", env=env, capture_output=True, text=True
    )
    assert process.returncode == code, process.stdout + process.stderr
    return process.stdout

  (tmp_path / "empty").mkdir()
  run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={tmp_path}", REPO)
  (wheel,) = tmp_path.glob("*.whl")
  top_level_names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
  packages = {name for name in top_level_names if not name.endswith(".dist-info")}
  assert packages == {"t5x_like"}
  run(sys.executable, "-m", "venv", tmp_path / "venv")
  bin_ = tmp_path / "venv" / "bin"
  run(bin_ / "pip", "install", "--quiet", "-c", REPO / "constraints.txt", wheel)
  assert "train, evaluate" in run(bin_ / "t5x-like")
  assert "RECIPE" in run(bin_ / "python", "-m", "t5x_like.train", "--help")
  run(bin_ / "t5x-like", "train", "--config=configs/t5/quickstart.py:debug", "--workdir=run")
  run(bin_ / "t5x-like", "evaluate", "--workdir=run")
  run(bin_ / "t5x-like", "convert_hf", "--input=run", "--output=exported")
  assert (tmp_path / "empty" / "exported" / "model.safetensors").exists()
  for tool in (
    "benchmark",
    "score",
    "average",
    "ladder",
    "coordinates",
    "encoder_table",
    "write_reference",
  ):
    assert "usage: " in run(bin_ / "t5x-like", tool, "--help")
  run(bin_ / "python", "-c", "import configs", code=1)
