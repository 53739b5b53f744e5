"""Real runs in processes of their own: started, watched, stopped, and read back bit by bit."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np
import pytest

import tests.recipes.nano  # noqa: F401 -- the variant that the runs are of
from t5x_like.report.writer import read_metrics

REPO = pathlib.Path(__file__).resolve().parents[1]
NANO = "tests/recipes/nano.py"
LAUNCHER = [
  sys.executable,
  "launch/local.py",
  "--processes=2",
  "--devices_per_process=4",
  "--grace_seconds=5",
]


def train(workdir, *flags, recipe=NANO) -> list[str]:
  """The train command."""
  return [
    sys.executable,
    "-m",
    "t5x_like.train",
    f"--config={recipe}",
    f"--workdir={workdir}",
    *flags,
  ]


def environment(devices: int = 1, cache=None) -> dict[str, str]:
  """The environment of a run on so many simulated devices, compiling through the cache at
  `cache`."""
  flags = re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", ""))
  env = os.environ | {
    "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count={devices}".strip()
  }
  return env | {"JAX_COMPILATION_CACHE_DIR": str(cache)} if cache else env


class Process:
  """A run in flight. A context manager: leaving it kills what is left of it."""

  def __init__(self, command: list[str], **where):
    self._output = tempfile.TemporaryFile("w+")  # not a pipe: nobody reads while it runs
    self._popen = subprocess.Popen(
      command,
      cwd=REPO,
      env=environment(**where),
      stdin=subprocess.DEVNULL,
      stdout=self._output,
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )

  def until(self, condition, seconds: float = 600) -> bool:
    """Waits for `condition()`; False if the process ended before it came true."""
    deadline = time.monotonic() + seconds
    while not condition():
      if self._popen.poll() is not None:
        return False
      assert time.monotonic() < deadline, self.kill()
      time.sleep(0.0005)
    return True

  @property
  def pid(self) -> int:
    return self._popen.pid

  def send(self, number: int) -> None:
    self._popen.send_signal(number)

  def children(self) -> list[int]:
    """Process ids of the workers of a launcher, in the order they were started."""
    path = pathlib.Path(f"/proc/{self._popen.pid}/task/{self._popen.pid}/children")
    return [int(pid) for pid in path.read_text().split()]

  def output_so_far(self) -> str:
    """What it has said so far."""
    return os.pread(self._output.fileno(), 2**24, 0).decode(errors="replace")

  def kill(self) -> str:
    """SIGKILL; returns what it had said."""
    self._popen.kill()
    return self.end()[1]

  def end(self, seconds: float = 600) -> tuple[int, str]:
    """Waits for it; (exit code, everything it said)."""
    try:
      code = self._popen.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
      self._popen.kill()
      raise
    self._output.seek(0)
    return code, self._output.read()

  def __enter__(self) -> "Process":
    return self

  def __exit__(self, *_) -> None:
    if self._popen.poll() is None:
      os.killpg(self._popen.pid, signal.SIGKILL)
      self._popen.wait()
    self._output.close()


def run(command: list[str], **where) -> tuple[int, str]:
  with Process(command, **where) as process:
    return process.end()


def count_metrics(workdir) -> int:
  """How many whole lines of metrics there are: one per finished step, when nothing else is
  written."""
  try:
    return (pathlib.Path(workdir) / "metrics.jsonl").read_bytes().count(b"\n")
  except FileNotFoundError:
    return 0


def steps_being_saved(workdir) -> list[int]:
  """The steps of which a save has begun and is not committed."""
  found = (pathlib.Path(workdir) / "checkpoints").glob("*.orbax-checkpoint-tmp*")
  return [int(path.name.split(".")[0]) for path in found]


def losses(workdir) -> list[tuple[int, float]]:
  return [(row["step"], row["train/loss"]) for row in read_metrics(workdir) if "train/loss" in row]


def fingerprints(workdir, step: int) -> dict:
  """Shape, type and fingerprint of every tensor, as the manifest of a checkpoint has them."""
  path = pathlib.Path(workdir) / "checkpoints" / str(step) / "manifest" / "metadata"
  return json.loads(path.read_text())["tensors"]


def steps(workdir) -> list[int]:
  folder = pathlib.Path(workdir) / "checkpoints"
  return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


def load_tensors(workdir, step: int) -> dict[str, np.ndarray]:
  """Every tensor of a checkpoint, parameters and optimizer state, by name."""
  from t5x_like.checkpoints.manager import Checkpoints
  from t5x_like.checkpoints.manifest import flatten
  from t5x_like.training import open_with_recipe
  from t5x_like.training.build import build_parts
  from t5x_like.training.state import to_tree

  run = open_with_recipe.open_with_recipe(str(workdir), None, ['mesh={"data": -1}'], rows=True)
  abstract = to_tree(build_parts(run.config).state)
  with Checkpoints(pathlib.Path(workdir) / "checkpoints") as checkpoints:
    _, tree, _ = checkpoints.restore(abstract, step)
  return {name: np.asarray(x) for name, x in flatten(tree).items()}


def assert_same_bits(workdir, other, step: int) -> None:
  """Parameters and optimizer state of two runs are the same, by the manifests' fingerprints and as
  read back."""
  assert fingerprints(workdir, step) == fingerprints(other, step)
  ours = load_tensors(workdir, step)
  theirs = load_tensors(other, step)
  assert ours.keys() == theirs.keys() and any(
    n.split("/")[0] not in ("step", "params") for n in ours
  )
  for name, x in ours.items():
    assert x.dtype == theirs[name].dtype and x.tobytes() == theirs[name].tobytes(), name


@contextlib.contextmanager
def hide_other_devices():
  """Hides all devices but the first: programs that no layout changes compile and run in fewer
  seconds."""
  with pytest.MonkeyPatch.context() as patch:
    first = jax.devices()[:1]
    patch.setattr(jax, "devices", lambda *_: first)
    patch.setattr(jax, "device_count", lambda *_: 1)
    yield
