"""The launcher starts, stops and restarts processes together, and passes on how they ended."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.runs

REPO = pathlib.Path(__file__).resolve().parents[2]
LAUNCHER = [
  sys.executable,
  str(REPO / "launch" / "local.py"),
  "--devices_per_process=2",
  "--grace_seconds=2",
]


def command(*options, program):
  return [*LAUNCHER, *options, "--", sys.executable, "-c", program]


def launch(*options, program, seconds=600, **environment):
  env = {**os.environ, **environment}
  return subprocess.run(
    command(*options, program=program),
    capture_output=True,
    text=True,
    timeout=seconds,
    env=env,
    cwd="/",
  )


def start(*options, program):
  return subprocess.Popen(
    command(*options, program=program),
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    cwd="/",
  )


ME = "import os, sys, time, signal\nme = os.environ['JAX_PROCESS_ID']\n"


def test_two_processes_train_with_their_own_devices():
  program = (
    f"import sys; sys.path[:0] = [{str(REPO)!r}]\n"
    "from t5x_like.parallel import distributed\ndistributed.initialize()\n"
    "import jax, jax.numpy as jnp\nfrom jax.experimental import multihost_utils\n"
    "print(jax.process_index(), jax.local_device_count(), jax.device_count())\n"
    "print('sum', multihost_utils.process_allgather(jnp.int32(jax.process_index() + 1)).sum())\n"
  )
  process = launch(
    program=program,
    XLA_FLAGS="--xla_force_host_platform_device_count=7 --xla_cpu_enable_fast_math=false",
  )
  assert process.returncode == 0, process.stderr
  assert {"[p0] 0 2 4", "[p0] sum 3", "[p1] 1 2 4", "[p1] sum 3"} <= set(
    process.stdout.splitlines()
  )


def test_when_one_process_dies_the_others_are_stopped_even_if_they_ignore_signals():
  program = ME + (
    "if me == '1': time.sleep(0.5); os.kill(os.getpid(), signal.SIGKILL)\n"
    "signal.signal(signal.SIGTERM, lambda *_: print('deaf', flush=True))\nprint('up', flush=True)\n"
    "while True: time.sleep(1)\n"
  )
  started = time.time()
  process = launch("--processes=3", program=program)
  assert process.returncode == 128 + signal.SIGKILL
  assert time.time() - started < 20
  assert "process 1 failed: killed by SIGKILL" in process.stderr
  assert "(1 failures, 0 preemptions)" in process.stderr
  assert "[p0] deaf" in process.stdout
  assert "[p2] deaf" in process.stdout


def test_failures_are_restarted_up_to_the_limit(tmp_path):
  program = ME + (
    f"path = {str(tmp_path)!r} + '/' + me\n"
    "open(path, 'a').write('x')\nn = len(open(path).read())\n"
    "if me == '0' and n < 3: sys.exit(69 if n < 2 else 7)\n"
    "time.sleep(1 if n < 3 else 0)\n"
  )
  process = launch("--restarts=2", program=program)
  assert process.returncode == 0, process.stderr
  assert (tmp_path / "0").read_text() == "xxx", process.stderr
  assert "restart 2 of 2" in process.stderr
  assert "(2 failures before)" in process.stderr
  (tmp_path / "0").unlink()
  process = launch("--restarts=1", program=program)
  assert process.returncode == 7
  assert "exit code 69" in process.stderr
  assert "1 restarts allowed (2 failures, 0 preemptions)" in process.stderr


def test_a_killed_slice_is_left_out_and_taken_back(tmp_path):
  """The run saves when the slice is back."""
  program = ME + (
    f"folder = {str(tmp_path)!r}\n"
    "def save(*_):\n"
    "  print('saved', flush=True)\n"
    "  sys.exit(75)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "host, size = os.environ['T5X_LIKE_HOST'], os.environ['JAX_NUM_PROCESSES']\n"
    "print('host', host, 'is', me, 'of', size, flush=True)\n"
    "is_first = not os.path.exists(folder + '/killed')\n"
    "if is_first and host == '1':\n"
    "  open(folder + '/killed', 'w')\n"
    "  os.kill(os.getppid(), signal.SIGKILL)\n"  # launch/member.py, and so this process too
    "if is_first or size == '2': time.sleep(300)\n"
  )
  flags = ("--processes=4", "--slices=2", "--least_slices=1", "--restarts=1")
  process = launch(*flags, "--return_seconds=20", "--rejoin_seconds=4", program=program)
  assert process.returncode == 0, process.stdout
  out = process.stdout
  assert "slice 0 is lost; 1 of 2 slices go on" in out
  assert {"[p2] host 2 is 0 of 2", "[p3] host 3 is 1 of 2"} <= set(out.splitlines())
  assert "slice 0 is back" in out
  assert out.count("saved") >= 2
  assert "[p0] host 0 is 0 of 4" in out.partition("slice 0 is back")[2]
  assert "all 4 processes succeeded" in out
  assert "the simulated slice 0 starts again" in process.stderr


def test_a_signal_ends_elastic_slices_after_a_save():
  program = ME + (
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\nprint('up', flush=True)\n"
    "time.sleep(300)\n"
  )
  process = start("--processes=2", "--slices=2", "--least_slices=1", program=program)
  lines = [process.stdout.readline() for _ in range(4)]
  assert sum("up" in line for line in lines) == 2, lines
  process.send_signal(signal.SIGTERM)
  process.communicate(timeout=600)
  assert process.returncode == 75


def test_user_errors_and_preemptions_are_passed_on_and_not_retried():
  for code, message in [
    (2, "fix the error first"),
    (3, "fix the error"),
    (4, "fix the error"),
    (75, "preempted"),
  ]:
    process = launch("--restarts=5", program=ME + f"sys.exit({code})")
    assert process.returncode == code
    assert message in process.stderr
    assert "restart 1" not in process.stderr


def test_the_cause_is_reported_before_its_consequence():
  program = ME + (
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"  # it was about to
    "if me == '0': time.sleep(1); sys.exit(69)\n"
    "while True: time.sleep(0.1)\n"
  )
  process = launch("--restarts=5", program=program)
  assert process.returncode == 3
  assert "process 1 failed: exit code 3" in process.stderr
  assert "restart 1" not in process.stderr


def test_signals_are_passed_on_and_waited_for():
  for number in (signal.SIGTERM, signal.SIGINT):
    program = ME + (
      "def stop(*_): time.sleep(0.3); print('saved', flush=True); "
      f"sys.exit(75)\nsignal.signal({int(number)}, stop)\n"
      "print('up', flush=True)\nwhile True: time.sleep(0.1)\n"
    )
    process = start("--restarts=3", "--grace_seconds=60", program=program)
    assert {process.stdout.readline(), process.stdout.readline()} == {"[p0] up\n", "[p1] up\n"}
    process.send_signal(number)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 75, err
    assert "[p0] saved" in out, err
    assert "[p1] saved" in out, err


def test_a_killed_launcher_leaves_nothing_behind():
  process = start(program=ME + "print(os.getpid(), flush=True)\nwhile True: time.sleep(0.1)\n")
  pids = [int(process.stdout.readline().split()[1]) for _ in range(2)]
  process.kill()
  process.communicate(timeout=600)
  deadline = time.time() + 300
  while any(is_alive(pid) for pid in pids) and time.time() < deadline:
    time.sleep(0.05)
  assert not any(is_alive(pid) for pid in pids)


def is_alive(pid):
  try:
    state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
  except FileNotFoundError:
    return False
  return state != "Z"


def test_bad_flags_are_refused_in_one_line():
  with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
    process = launch(f"--port={port}", program="")
    assert process.returncode == 2
    expected = (
      f"error: --port={port}: Address already in use; end the job that uses it, or omit --port\n"
    )
  assert process.stderr == expected
  process = subprocess.run(LAUNCHER, capture_output=True, text=True, timeout=600)
  assert process.returncode == 2
  assert process.stderr.startswith("error: no command; give it after --")
  assert launch("--processes=0", program="").stderr == "error: --processes=0: expected at least 1\n"
  assert (
    "found 3 processes, expected a multiple of 2"
    in launch("--processes=3", "--slices=2", program="").stderr
  )
  process = subprocess.run(
    [*LAUNCHER, "--", "no-such-program"], capture_output=True, text=True, timeout=600
  )
  assert process.returncode == 2
  assert "error: no-such-program: No such file or directory" in process.stdout


def test_a_dry_run_prints_what_would_run():
  flags = ("--processes=2", "--port=8476", "--dry_run")
  process = launch(*flags, program="print('no')  # --api_key=hush")
  lines = process.stdout.splitlines()
  assert process.returncode == 0
  assert len(lines) == 2
  assert "no\n" not in process.stdout
  assert "hush" not in process.stdout
  for i, line in enumerate(lines):
    assert f"JAX_PROCESS_ID={i}" in line
    assert "127.0.0.1:8476" in line
