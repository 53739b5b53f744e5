"""`tools.benchmark marks` runs with jax, flax, optax and numpy alone, on one GPU."""

import json
import os
import pathlib
import subprocess
import sys
import types

import pytest

from tools.benchmark import __main__ as benchmark
from tools.benchmark import marks

pytestmark = pytest.mark.runs

REPO = pathlib.Path(__file__).resolve().parents[2]
BLOCKED = ("tensorflow", "tensorflow_datasets", "ml_collections", "sentencepiece")
BLOCK = f"""
import sys
class Finder:
  def find_spec(self, name, path=None, target=None):
    if name.partition(".")[0] in {BLOCKED}:
      raise ModuleNotFoundError(f"blocked: {{name}}", name=name)
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
  "name",
  [n if n.startswith("T5") else pytest.param(n, marks=pytest.mark.more) for n in marks.MARKS],
)
def test_a_mark_needs_no_packages_of_data_or_recipes(name, tmp_path):
  (tmp_path / "sitecustomize.py").write_text(BLOCK)
  command = [
    sys.executable,
    "-m",
    "tools.benchmark",
    "marks",
    "--small",
    "--steps=1",
    f"--only={name}",
  ]
  env = os.environ | {"PYTHONPATH": f"{tmp_path}:{REPO}"}
  process = subprocess.run(
    [*command, f"--output={tmp_path}/out"], cwd=REPO, env=env, capture_output=True, text=True
  )
  assert process.returncode == 0, process.stdout + process.stderr
  (figures,) = json.loads(process.stdout.splitlines()[-1]).values()
  assert figures["milliseconds_by_kind"]["matrix products"] > 0
  assert figures["model_flops"] > 1e6
  assert f"| {name} | {figures['seconds_per_step']:.4f} |" in process.stdout
  assert json.loads((tmp_path / "out" / "marks.json").read_text()) == {name: figures}


@pytest.mark.more
def test_a_step_of_images_is_timed(compiled, one_device, capsys):
  assert not benchmark.main(
    ["step", "--config=configs/vit/base.py:debug", "--steps=1", "--warmup=0", "--batch=2"]
  )
  out = capsys.readouterr().out
  assert "a fixed batch of 2 images." in out
  assert json.loads(out.splitlines()[-1])["model_flops"] > 0


@pytest.mark.parametrize(
  "flags, message",
  [
    (["--only=elmo"], "--only=elmo: no mark has this in its name; there are decoder of 1.3 B"),
    (["--steps=0"], "--steps: found 0, expected at least 1"),
    (["--here"], "--here: found 5 marks, expected one; name it with --only"),
  ],
)
def test_bad_flags_are_refused_in_one_line(flags, message, capsys):
  assert benchmark.main(["marks", *flags]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert message in line


def test_a_mark_uses_the_first_gpu_unless_another_is_named(monkeypatch, capsys):
  """If no step can be measured, each attempt prints its reason."""
  visible_devices = []

  def run(command, env, stderr, **options):
    visible_devices.append(env["CUDA_VISIBLE_DEVICES"])
    stderr.write("RESOURCE_EXHAUSTED: out of memory")
    return types.SimpleNamespace(returncode=1, stdout="")

  monkeypatch.setattr(marks.subprocess, "run", run)
  for variable in (None, "3"):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable:
      monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert benchmark.main(["marks", "--only=T5"]) == 2
    printed = capsys.readouterr()
    assert "RESOURCE_EXHAUSTED: out of memory\nexit code 1" in printed.out
    assert ("no step could be measured") in printed.err
  assert visible_devices == ["0", "3"]
