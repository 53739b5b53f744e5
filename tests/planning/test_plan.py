"""A real plan, and what is said of one that cannot be made."""

import json
import sys

import pytest

from t5x_like import plan
from t5x_like.errors import UserError
from t5x_like.planning import child, hardware

NANO = "--config=tests/recipes/nano.py"
FIELDS = (
  "ring_gigabytes",
  "minimum_ring_gigabytes",
  "temporary_gigabytes",
  "argument_gigabytes",
  "total_gigabytes",
  "compile_seconds",
)


@pytest.fixture
def no_tensorflow(tmp_path, monkeypatch):
  """A tensorflow that cannot be imported, for child processes."""
  for name in ("tensorflow", "tensorflow_datasets"):
    (tmp_path / f"{name}.py").write_text("raise AssertionError('a plan imports tensorflow')\n")
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_a_plan_for_cpus(no_tensorflow, tmp_path, capsys):
  file = tmp_path / "plan.json"
  flags = ("--topology=cpu:8", "--config.mesh.fsdp=4", "--config.mesh.data=2", f"--json={file}")
  assert plan.main([NANO, *flags]) == 0
  found = json.loads(file.read_text())
  assert found["fits"] and all(found[field] > 0 for field in FIELDS)
  assert found["mesh"] == {"data": 2, "fsdp": 4} and found["rows"]["read"] == found["batch_size"]
  # Two float32 gathers and a reduce-scatter over 4, an all-reduce of the fourth over 2; biases and gains are not split.
  least = 4 * found["parameters"] * (3 * 3 / 4 + 2 / 4 * 1 / 2) / 1e9
  assert found["minimum_ring_gigabytes"] == pytest.approx(least, rel=0.1)
  assert found["ring_gigabytes"] > 0.4 * least
  assert sum(row["ring_bytes"] for row in found["collectives"]) == pytest.approx(1e9 * found["ring_gigabytes"])
  assert {axis for row in found["collectives"] for axis in row["axes"].split("+")} <= {"data", "fsdp"}
  model, program = found["model_flops"] / 8, found["hlo_flops"]
  assert 0.9 * model < program < 2 * model
  memory = found["memory"]
  assert memory["params"] == pytest.approx(4 * found["parameters"] / 4, rel=0.1)
  assert memory["arguments"] == pytest.approx(memory["params"] + memory["optimizer"] + memory["batch"], rel=0.1)
  printed = capsys.readouterr().out
  assert all(words in printed for words in ("all-reduce", "data=2 fsdp=4", "attention core: dense", "rows per host"))


@pytest.mark.parametrize(
  "program, words",
  [
    ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed with SIGSEGV (exit code 139)"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL, as when memory runs out (exit code 137)"),
    ("import sys; print('1/0\\nValueError: no'); sys.exit(3)", "failed (exit code 3)"),
    ("import time; time.sleep(60)", "was not done after"),
  ],
)
def test_a_compiler_that_fails_is_a_finding(program, words, monkeypatch, capsys, tmp_path):
  monkeypatch.setattr(child, "COMMAND", (sys.executable, "-c", program))
  file = tmp_path / "plan.json"
  assert plan.main([NANO, "--topology=cpu:8", "--timeout_seconds=1.5", f"--json={file}"]) == plan.EXIT_DOES_NOT_FIT
  out = capsys.readouterr().out
  assert words in out and "Traceback" not in out and len(out.splitlines()) == 2
  assert words in json.loads(file.read_text())["verdict"] and not json.loads(file.read_text())["fits"]


@pytest.mark.parametrize(
  "flags, words",
  [
    (["--topology=v5x:4x4"], "did you mean"),
    (["--topology=v5e"], "expected one like"),
    (["--topology=cpu:8", "--slices=2"], "--slices=2"),
    (["--topology=cpu:8", "--json=/no/such/directory/plan.json"], "no such directory"),
    (["--topology=cpu:8", "--step=fly"], "--step"),
    (["--topology=cpu:8", "--config.nothing=1"], "nothing"),
    (["--topology=v5e:4x4"], "requirements-plan.txt"),
  ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(flags, words, monkeypatch, capsys):
  monkeypatch.delenv(hardware.LIBRARY, raising=False)
  monkeypatch.setattr(hardware.importlib.util, "find_spec", lambda name: None)
  assert plan.main([NANO, *flags]) == 2
  error = capsys.readouterr().err
  assert words in error and len(error.splitlines()) == 1


def test_a_library_that_is_not_there(monkeypatch, tmp_path):
  monkeypatch.setenv(hardware.LIBRARY, str(tmp_path / "libtpu.so"))
  with pytest.raises(UserError, match="no such file"):
    hardware.library()
