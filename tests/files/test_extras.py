"""A workdir in a bucket, with what the extra of its scheme installs and nothing else: `make
test-services`.

The server is this process's, on this machine, and speaks as Google's and as Amazon's storage.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from tests import object_server

pytestmark = pytest.mark.services
REPO = pathlib.Path(__file__).resolve().parents[2]
ADDRESSES = {"gcs": "gs://bucket/run", "s3": "s3://bucket/run"}
STEPS = 20
HALF = 10
RECIPE = "--config=configs/gpt/gpt2_124m.py:debug"
FLAGS = [
  f"--config.total_steps={STEPS}",
  f"--config.eval_every={STEPS}",
  "--config.checkpoint.every=5",
]
FLAGS += ['--config.evals={"loss": {"max_examples": 16}}']


@pytest.fixture(scope="module", params=ADDRESSES)
def installed(request, tmp_path_factory):
  """(address, python of an environment with the extra). T5X_LIKE_EXTRAS names a directory of those
  that exist."""
  made = os.environ.get("T5X_LIKE_EXTRAS")
  folder = pathlib.Path(made or tmp_path_factory.mktemp("extras")) / request.param
  python = folder / "bin" / "python"
  if not python.exists():
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pinned = ["-c", "constraints.txt"] if sys.version_info[:2] == (3, 11) else []
    install = [
      python,
      "-m",
      "pip",
      "install",
      "--quiet",
      "--disable-pip-version-check",
      *pinned,
      "-e",
    ]
    subprocess.run([*install, f".[{request.param}]"], cwd=REPO, check=True)
  return ADDRESSES[request.param], str(python)


def test_train_kill_resume_evaluate_predict(installed, tmp_path):
  address, python = installed
  server = object_server.Server(tmp_path / "bucket")
  server.root.mkdir()
  workdir = server.root / "run"
  (tmp_path / "lines.txt").write_text("def add(a, b):\n")
  with server.running():
    env = {
      key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "XLA_FLAGS")
    }
    env |= object_server.environment(server) | {"PYTHONPATH": str(REPO), "JAX_PLATFORMS": "cpu"}

    def begun(module: str, *flags: str) -> subprocess.Popen:
      command = [python, "-m", module, f"--workdir={address}", *flags]
      return subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
      )

    def done(module: str, *flags: str) -> str:
      process = begun(module, *flags)
      told, _ = process.communicate()
      assert process.returncode == 0, told
      return told

    killed = begun("t5x_like.train", RECIPE, *FLAGS)
    while killed.poll() is None and not committed(workdir, HALF // 2):
      time.sleep(0.01)
    killed.kill()
    told, _ = killed.communicate()
    assert committed(workdir, HALF // 2), told
    assert "resuming" in done("t5x_like.train", RECIPE, *FLAGS)
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "train/loss" in row] == list(range(1, STEPS + 1))
    assert committed(workdir, STEPS)
    assert f"step {STEPS}" in done("t5x_like.evaluate", "--config.evals.loss.max_examples=8")
    assert list(workdir.glob("evaluations/*.json"))
    done(
      "t5x_like.predict",
      "--max_new_tokens=4",
      f"--input={tmp_path}/lines.txt",
      f"--output={tmp_path}/out.jsonl",
    )
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 1


def committed(workdir: pathlib.Path, step: int) -> bool:
  """Whether a checkpoint of this step or a later one is complete."""
  found = workdir.glob("checkpoints/*-*/manifest.json")
  return any(int(path.parent.name.partition("-")[0]) >= step for path in found)
