"""A workdir in a bucket needs only the extra of its scheme (`make test-services`).

The server runs in this process and answers as Google's and as Amazon's storage do.
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
KILL_STEP = 5
RECIPE = "--config=configs/gpt/gpt2_124m.py:debug"
FLAGS = [
  f"--config.total_steps={STEPS}",
  f"--config.eval_every={STEPS}",
  "--config.checkpoint.every=5",
  '--config.evals={"loss": {"max_examples": 16}}',
]


@pytest.fixture(scope="module", params=ADDRESSES)
def bucket_and_python(request, tmp_path_factory):
  """Return (address of a bucket, path of a Python with the extra).

  The environments are in the directory T5X_LIKE_EXTRAS if it is set, else in a temporary one.
  """
  existing_folder = os.environ.get("T5X_LIKE_EXTRAS")
  folder = pathlib.Path(existing_folder or tmp_path_factory.mktemp("extras")) / request.param
  python = folder / "bin" / "python"
  if not python.exists():
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pinned = ["-c", "constraints.txt", "-e", f".[{request.param}]"]
    subprocess.run([*pip, *pinned], cwd=REPO, check=True)
  return ADDRESSES[request.param], str(python)


def test_a_killed_run_in_a_bucket_is_resumed_evaluated_and_predicts(bucket_and_python, tmp_path):
  address, python = bucket_and_python
  server = object_server.Server(tmp_path / "bucket")
  server.root.mkdir()
  workdir = server.root / "run"
  (tmp_path / "lines.txt").write_text("def add(a, b):\n")
  with server.running():
    env = dict(os.environ)
    env.pop("VIRTUAL_ENV", None)
    env.pop("XLA_FLAGS", None)
    env |= object_server.environment(server) | {"PYTHONPATH": str(REPO), "JAX_PLATFORMS": "cpu"}

    def start(module: str, *flags: str) -> subprocess.Popen:
      command = [python, "-m", module, f"--workdir={address}", *flags]
      return subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
      )

    def finish(module: str, *flags: str) -> str:
      process = start(module, *flags)
      output, _ = process.communicate()
      assert process.returncode == 0, output
      return output

    training = start("t5x_like.train", RECIPE, *FLAGS)
    while training.poll() is None and not has_checkpoint(workdir, KILL_STEP):
      time.sleep(0.01)
    training.kill()
    output, _ = training.communicate()
    assert has_checkpoint(workdir, KILL_STEP), output
    assert "resuming" in finish("t5x_like.train", RECIPE, *FLAGS)
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "train/loss" in row] == list(range(1, STEPS + 1))
    assert has_checkpoint(workdir, STEPS)
    assert f"step {STEPS}" in finish("t5x_like.evaluate", "--config.evals.loss.max_examples=8")
    assert list(workdir.glob("evaluations/*.json"))
    finish(
      "t5x_like.predict",
      "--max_new_tokens=4",
      f"--input={tmp_path}/lines.txt",
      f"--output={tmp_path}/out.jsonl",
    )
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 1


def has_checkpoint(workdir: pathlib.Path, step: int) -> bool:
  """Return whether a checkpoint of this step or a later one is complete."""
  manifests = workdir.glob("checkpoints/*-*/manifest.json")
  return any(int(path.parent.name.partition("-")[0]) >= step for path in manifests)
