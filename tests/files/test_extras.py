"""A workdir in a bucket needs only the optional dependencies of its scheme (`make test-services`).

The server runs in this process and answers like the storage of Google and of Amazon.
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
URLS = {"gcs": "gs://bucket/run", "s3": "s3://bucket/run"}
STEPS = 20
KILL_STEP = 5
RECIPE = "--config=configs/gpt/gpt2_124m.py:debug"
FLAGS = [
  f"--config.total_steps={STEPS}",
  f"--config.eval_every={STEPS}",
  "--config.checkpoint.every=5",
  '--config.evals={"loss": {"max_examples": 16}}',
]


@pytest.fixture(scope="module", params=URLS)
def bucket_and_python(request, tmp_path_factory):
  """Return (URL of a workdir, path of a Python interpreter with the extra).

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
  return URLS[request.param], str(python)


def test_killed_run_in_a_bucket_can_be_resumed_evaluated_and_used_for_prediction(
  bucket_and_python, tmp_path
):
  url, python = bucket_and_python
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
      command = [python, "-m", module, f"--workdir={url}", *flags]
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
