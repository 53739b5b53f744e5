"""Start real runs in processes of their own, watch and stop them, and compare their bits."""

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

import tests.recipes.nano  # noqa: F401 -- registers the variant of the runs
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
  """Return the train command."""
  return [
    sys.executable,
    "-m",
    "t5x_like.train",
    f"--config={recipe}",
    f"--workdir={workdir}",
    *flags,
  ]


def environment(devices: int = 1, cache=None) -> dict[str, str]:
  """Return the environment of a run on simulated devices, with a compilation cache at `cache`."""
  flags = re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", ""))
  flags = f"{flags} --xla_force_host_platform_device_count={devices}".strip()
  variables = os.environ | {"XLA_FLAGS": flags}
  if cache:
    variables["JAX_COMPILATION_CACHE_DIR"] = str(cache)
  return variables


class Process:
  """A running command; the end of its `with` block kills its process group.

  Args:
    command: a program and its arguments.
    devices: number of simulated devices.
    cache: the directory of a compilation cache.
  """

  def __init__(self, command: list[str], *, devices: int = 1, cache=None):
    # A pipe would fill up, because it is not read while the command runs.
    self._output = tempfile.TemporaryFile("w+")
    self._popen = subprocess.Popen(
      command,
      cwd=REPO,
      env=environment(devices, cache),
      stdin=subprocess.DEVNULL,
      stdout=self._output,
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )

  def until(self, condition, seconds: float = 600) -> bool:
    """Wait until `condition()` is true; return False if the process ended before."""
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
    """Return the process ids of a launcher's workers, in the order of their start."""
    path = pathlib.Path(f"/proc/{self._popen.pid}/task/{self._popen.pid}/children")
    return [int(pid) for pid in path.read_text().split()]

  def output_so_far(self) -> str:
    """Return the output so far."""
    return os.pread(self._output.fileno(), 2**24, 0).decode(errors="replace")

  def kill(self) -> str:
    """Send SIGKILL and return the output."""
    self._popen.kill()
    return self.end()[1]

  def end(self, seconds: float = 600) -> tuple[int, str]:
    """Wait for the end; return (exit code, output)."""
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


def run(command: list[str], *, devices: int = 1, cache=None) -> tuple[int, str]:
  """Run a command; return (exit code, output)."""
  with Process(command, devices=devices, cache=cache) as process:
    return process.end()


def run_to_end(command: list[str], *, devices: int = 1, cache=None) -> str:
  """Run a command that must succeed, and return its output."""
  code, output = run(command, devices=devices, cache=cache)
  assert code == 0, output
  return output


def count_metrics(workdir) -> int:
  """Return the number of complete lines of metrics: one per finished step in most runs."""
  try:
    return (pathlib.Path(workdir) / "metrics.jsonl").read_bytes().count(b"\n")
  except FileNotFoundError:
    return 0


def steps_being_saved(workdir) -> list[int]:
  """Return the steps whose save has begun and is not committed."""
  folders = (pathlib.Path(workdir) / "checkpoints").glob("*.orbax-checkpoint-tmp*")
  return [int(path.name.split(".")[0]) for path in folders]


def losses(workdir) -> list[tuple[int, float]]:
  return [(row["step"], row["train/loss"]) for row in read_metrics(workdir) if "train/loss" in row]


def fingerprints(workdir, step: int) -> dict:
  """Return shape, type and fingerprint of every tensor in the manifest of a checkpoint."""
  path = pathlib.Path(workdir) / "checkpoints" / str(step) / "manifest" / "metadata"
  return json.loads(path.read_text())["tensors"]


def steps(workdir) -> list[int]:
  folder = pathlib.Path(workdir) / "checkpoints"
  return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


def load_tensors(workdir, step: int) -> dict[str, np.ndarray]:
  """Return every tensor of a checkpoint, parameters and optimizer state, by name."""
  from t5x_like.checkpoints.manager import Checkpoints
  from t5x_like.checkpoints.manifest import flatten
  from t5x_like.training.build import build_parts
  from t5x_like.training.open_with_recipe import open_with_recipe
  from t5x_like.training.state import to_tree

  run = open_with_recipe(str(workdir), None, ['mesh={"data": -1}'], rows=True)
  abstract = to_tree(build_parts(run.config).state)
  with Checkpoints(pathlib.Path(workdir) / "checkpoints") as checkpoints:
    _, tree, _ = checkpoints.restore(abstract, step)
  return {name: np.asarray(x) for name, x in flatten(tree).items()}


def assert_same_bits(workdir, expected_workdir, step: int) -> None:
  """Assert that two runs have the same parameters and optimizer state, bit by bit."""
  assert fingerprints(workdir, step) == fingerprints(expected_workdir, step)
  tensors = load_tensors(workdir, step)
  expected = load_tensors(expected_workdir, step)
  assert tensors.keys() == expected.keys()
  assert any(name.split("/")[0] not in ("step", "params") for name in tensors)
  for name, x in tensors.items():
    assert x.dtype == expected[name].dtype, name
    assert x.tobytes() == expected[name].tobytes(), name


@contextlib.contextmanager
def hide_other_devices():
  """Hide all devices but the first, to compile and run programs faster if no layout matters."""
  with pytest.MonkeyPatch.context() as patch:
    first = jax.devices()[:1]
    patch.setattr(jax, "devices", lambda *_: first)
    patch.setattr(jax, "device_count", lambda *_: 1)
    yield
