"""SLURM jobs start, stop and restart by the batch script, alone and in a real cluster."""

import json
import os
import subprocess
import sys
import time

import pytest
import slurm_cluster

from launch import slurm
from runs import NANO, REPO, environment, losses, run, train


def write_program(folder, name, text):
  path = folder / name
  path.write_text(f"#!/bin/bash\n{text}\n")
  path.chmod(0o755)


@pytest.fixture
def programs(tmp_path, monkeypatch):
  """Write SLURM's programs as scripts; `sbatch` runs its script at once."""
  folder = tmp_path / "bin"
  folder.mkdir()
  write_program(folder, "squeue", f"cat {tmp_path}/queue 2>/dev/null || true")
  write_program(folder, "srun", 'shift; exec "$@"')
  write_program(
    folder,
    "python",
    f'[ "$2" = launch.preflight ] && {{ echo "$@" >> {tmp_path}/checked; exit 0; }}; exit 9',
  )
  write_program(folder, "scontrol", f'echo "$@" >> {tmp_path}/scontrol; false')
  write_program(
    folder,
    "sbatch",
    f'echo 7; SLURM_JOB_ID=7 bash "${{@: -1}}" > {tmp_path}/out 2>&1; echo $? > {tmp_path}/code',
  )
  monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
  return tmp_path


def start(folder, *words, flags=(), program="pass", action="start"):
  workdir = f"--workdir={folder}/a run"
  return slurm.main([action, *flags, "--", sys.executable, "-S", "-c", program, workdir, *words])


@pytest.mark.parametrize(
  "code, requeued",
  [(0, False), (2, False), (3, False), (4, False), (69, True), (75, True), (1, True)],
)
def test_exit_codes_decide_about_the_queue(code, requeued, programs):
  assert start(programs, program=f"import sys; sys.exit({code})") == 0
  assert (programs / "code").read_text().strip() == str(code)
  assert (programs / "scontrol").exists() == requeued
  assert (programs / "checked").read_text() == f"-m launch.preflight --workdir={programs}/a run\n"
  if requeued:
    assert (programs / "scontrol").read_text() == "requeue 7\n"


def test_a_host_that_fails_the_check_trains_nothing(programs):
  write_program(programs / "bin", "python", "exit 69")
  assert start(programs, program=f"open({str(programs / 'trained')!r}, 'w')") == 0
  assert (programs / "code").read_text().strip() == "69"
  assert not (programs / "trained").exists()
  assert (programs / "scontrol").read_text() == "requeue 7\n"


def test_one_task_with_an_error_to_mend_ends_the_job(programs):
  """SLURM kills the other tasks, and srun passes on the highest code."""
  write_program(
    programs / "bin", "srun", 'shift; SLURM_PROCID=0 "$@"; SLURM_PROCID=1 "$@"; code=$?; exit $code'
  )
  assert (
    start(programs, program="import os, sys; sys.exit((2, 137)[int(os.environ['SLURM_PROCID'])])")
    == 0
  )
  assert (programs / "code").read_text().strip() == "2"
  assert not (programs / "scontrol").exists()
  # The code of the previous start no longer counts.
  assert start(programs, program="import sys; sys.exit(137)") == 0
  assert (programs / "code").read_text().strip() == "137"
  assert (programs / "scontrol").exists()


def test_a_task_saves_although_only_its_shell_gets_term(programs):
  up = programs / "up"
  wait = f"until [ -e {up} ] || ! kill -0 $! 2>/dev/null; do sleep 0.1; done"
  write_program(programs / "bin", "srun", f'shift; "$@" & {wait}; kill -TERM $!; wait $!')
  write_program(programs / "bin", "python", "exit 0")  # the check before
  handler = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))"
  program = f"import signal, sys, time; {handler}; open({str(up)!r}, 'w'); time.sleep(60)"
  assert start(programs, program=program) == 0
  assert (programs / "code").read_text().strip() == "75"
  assert (programs / "scontrol").read_text() == "requeue 7\n"


def test_restarts_are_limited(programs, monkeypatch):
  monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
  assert start(programs, flags=["--restarts=2"], program="import sys; sys.exit(69)") == 0
  assert not (programs / "scontrol").exists()


def test_the_command_arrives_as_given_and_secrets_are_not_printed(programs, monkeypatch, capsys):
  monkeypatch.setenv("HF_TOKEN", "s3cr3t'; touch pwned #")
  arguments = ["--x=$(touch pwned)", "'; touch pwned; '", "a  b", "`touch pwned`"]
  program = "import json, os, sys; print(json.dumps([sys.argv[2:], os.environ['HF_TOKEN']]))"
  assert (
    start(
      programs, *arguments, flags=["--env=HF_TOKEN", "--sbatch=--exclude=n[1-3]"], program=program
    )
    == 0
  )
  assert json.loads((programs / "out").read_text()) == [arguments, "s3cr3t'; touch pwned #"]
  assert not list(programs.rglob("pwned"))
  assert not (REPO / "pwned").exists()
  script = programs / "a run" / "slurm.sh"
  assert script.stat().st_mode & 0o077 == 0
  script.unlink()
  assert (
    start(
      programs,
      *arguments,
      flags=["--env=HF_TOKEN", "--dry_run", "--gpus_per_node=8"],
      program=program,
    )
    == 0
  )
  out = "".join(capsys.readouterr())
  assert "s3cr3t" not in out
  assert "HF_TOKEN=***" in out
  assert "#SBATCH --signal=TERM@120" in out
  # One process for each GPU.
  assert "#SBATCH --ntasks-per-node=8\n" in out
  assert "#SBATCH --gpus-per-node=8\n" in out
  assert "sbatch --parsable" in out
  assert not script.exists()


def test_a_job_in_the_queue_is_left_alone(programs, capsys):
  (programs / "queue").write_text("41 RUNNING\n")
  assert start(programs) == 0
  assert not (programs / "code").exists()
  assert "is job 41 already, running" in capsys.readouterr().err
  assert start(programs, action="status") == 0
  assert "job 41, running" in capsys.readouterr().out


def test_stop_lets_a_running_job_save_for_good(programs):
  write_program(programs / "bin", "scancel", f'echo "$@" >> {programs}/scancel')
  (programs / "queue").write_text("41 RUNNING\n42 PENDING\n")
  (programs / "a run").mkdir()
  assert start(programs, action="stop") == 0
  assert (programs / "scancel").read_text() == "--signal=TERM 41\n42\n"
  (programs / "queue").unlink()
  stop = programs / "a run" / "slurm.stop"
  assert stop.exists()
  assert (
    start(
      programs, program=f"import pathlib, sys; pathlib.Path({str(stop)!r}).touch(); sys.exit(75)"
    )
    == 0
  )
  assert (programs / "code").read_text().strip() == "75"
  assert not (programs / "scontrol").exists()


def record_member(folder, code):
  """Let `python -m launch.member` record its arguments and end with a code."""
  write_program(
    folder / "bin",
    "python",
    f'echo "$T5X_LIKE_JOB_KEY $JAX_LOCAL_DEVICE_IDS" >> {folder}/keys; '
    f'printf "%s\\n" "$@" >> {folder}/member; exit {code}',
  )


SLICES = ("--slices=3", "--least_slices=2", "--nodes=4", "--tasks_per_node=2", "--gpus_per_node=2")


def test_each_slice_is_a_batch_job_whose_tasks_join_the_others(programs, monkeypatch):
  record_member(programs, 0)
  monkeypatch.setenv("SLURM_PROCID", "5")
  monkeypatch.setenv("SLURM_LOCALID", "1")
  assert start(programs, "--x=$(touch pwned)", flags=SLICES) == 0
  lines = (programs / "member").read_text().splitlines()
  starts = [index for index, line in enumerate(lines) if line == "launch.member"]
  assert len(starts) == 3
  assert lines.count(f"--meeting={programs}/a run/elastic") == 3
  assert lines.count("--hosts_per_slice=8") == 3
  assert lines.count("--least_slices=2") == 3
  assert lines.count("--worker=5") == 3
  assert [line for line in lines if line.startswith("--slice=")] == [
    "--slice=0",
    "--slice=1",
    "--slice=2",
  ]
  assert len(set((programs / "keys").read_text().splitlines())) == 1
  assert (programs / "keys").read_text().splitlines()[0].endswith(" 1")
  assert not list(programs.rglob("pwned"))
  names = []
  for slice_ in range(3):
    text = (programs / "a run" / f"slurm-{slice_}.sh").read_text()
    names += [line for line in text.splitlines() if "--job-name" in line]
  assert len(set(names)) == 3


@pytest.mark.parametrize(
  "code, returns", [(0, False), (1, False), (2, False), (69, False), (75, True), (137, True)]
)
def test_a_slice_that_was_lost_returns_to_the_queue(code, returns, programs):
  """Failures of the job itself are not repeated by its slices."""
  record_member(programs, code)
  assert start(programs, flags=SLICES) == 0
  assert (programs / "code").read_text().strip() == str(code)
  assert (programs / "scontrol").exists() == returns


def test_a_slice_that_left_the_queue_is_submitted_again_and_joins(programs, capsys):
  record_member(programs, 0)
  assert start(programs, flags=SLICES) == 0
  before = [(programs / "a run" / f"slurm-{slice_}.sh").read_text() for slice_ in range(3)]
  # Slices 0 and 2 are in the queue.
  name = "--name=a-run-"
  write_program(
    programs / "bin", "squeue", rf'case "$*" in *{name}*-1\ *) ;; *) echo 41 RUNNING;; esac'
  )
  assert start(programs, flags=SLICES) == 0
  after = [(programs / "a run" / f"slurm-{slice_}.sh").read_text() for slice_ in range(3)]
  assert before == after
  assert len(set((programs / "keys").read_text().splitlines())) == 1
  assert (programs / "member").read_text().count("launch.member") == 4
  assert capsys.readouterr().err.count("is queued or running already") == 2


def test_bad_flags_are_refused_in_one_line(programs, capsys):
  assert slurm.main(["start", "--", "python", "x.py", "--workdir=gs://bucket/run"]) == 2
  flags = ["start", "--directory=/project", "--", "python", "x.py", "--workdir=runs/here"]
  assert slurm.main(flags) == 2
  assert start(programs, flags=["--sbatch=rm -rf /"]) == 2
  write_program(
    programs / "bin", "sbatch", "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1"
  )
  assert start(programs) == 2
  assert start(programs, flags=["--slices=2", "--least_slices=3"]) == 2
  lines = capsys.readouterr().err.splitlines()
  assert "--least_slices=3: expected 1 to --slices=2" in lines.pop()
  assert "share" in lines[0]
  assert "absolute path, as the job runs in /project" in lines[1]
  assert len(lines) == 4
  assert "--sbatch" in lines[2]
  assert "invalid partition" in lines[3]


real = pytest.mark.skipif(
  bool(slurm_cluster.missing()), reason="no SLURM; on Debian: apt-get install slurm-wlm"
)
WAITS = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(75)))
print("up", os.environ["SLURM_PROCID"], flush=True)
last = pathlib.Path(sys.argv[1].partition("=")[2], "last")
time.sleep(1 if last.exists() else 120)
"""


class RealJob:
  """A job of the launcher in a real cluster, and its log."""

  def __init__(self, folder, environment: dict[str, str], flags: list[str]):
    self._environment = environment
    self._flags = flags
    self._log = folder / "slurm.log"

  def ask(self, *words: str) -> str:
    """Return the output of a command."""
    process = subprocess.run(
      words, env=self._environment, cwd=REPO, capture_output=True, text=True, timeout=600
    )
    assert process.returncode == 0, process
    return process.stdout

  def launch(self, action: str) -> str:
    return self.ask(sys.executable, "launch/slurm.py", action, *self._flags)

  def send_term(self) -> None:
    """Send TERM to the tasks, as SLURM does before a time limit."""
    self.ask("scancel", "--signal=TERM", self.ask("squeue", "--noheader", "--format=%i").strip())

  def wait_for_end(self) -> None:
    self.wait(lambda: "not queued" in self.launch("status"))

  def wait(self, condition, seconds: float = 400) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
      assert time.monotonic() < deadline, self.log()[-3000:]
      time.sleep(0.2)

  def log(self) -> str:
    return self._log.read_text() if self._log.exists() else ""


@real
def test_a_real_queue_stops_jobs_and_takes_them_back(tmp_path):
  """Two tasks are stopped for good, then given TERM as before a time limit."""
  workdir = tmp_path / "a run"
  flags = ["--tasks_per_node=2", "--", sys.executable, "-S", "-c", WAITS, f"--workdir={workdir}"]
  (tmp_path / "cluster").mkdir()
  with slurm_cluster.cluster(tmp_path / "cluster") as variables:
    job = RealJob(workdir, variables, flags)
    job.launch("start")
    job.wait(lambda: job.log().count("up") == 2)
    job.launch("stop")
    job.wait_for_end()
    assert job.log().count("saved") == 2
    assert "into the queue" not in job.log()
    job.launch("start")
    job.wait(lambda: job.log().count("up") == 4)
    (workdir / "last").touch()
    job.send_term()
    job.wait(lambda: job.log().count("up") == 6)
    job.wait_for_end()
    assert job.log().count("saved") == 4
    assert job.log().count("back into the queue (restart 1)") == 1


@real
@pytest.mark.heavy
def test_a_job_that_is_cancelled_and_resubmitted_resumes(tmp_path):
  """Two tasks are cancelled, submitted again, then given TERM, which requeues them."""
  flags = ("--config.total_steps=60", "--config.checkpoint.every=20", "--config.mesh.fsdp=4")
  workdir = tmp_path / "run"
  cache = tmp_path / "compiled"
  launch_flags = ["--tasks_per_node=2", "--restarts=3", "--", *train(workdir, *flags, recipe=NANO)]

  def last_step() -> int:
    if not (workdir / "metrics.jsonl").exists():
      return 0
    return max((step for step, _ in losses(workdir)), default=0)

  (tmp_path / "cluster").mkdir()
  with slurm_cluster.cluster(tmp_path / "cluster") as variables:
    for name in ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR"):
      variables[name] = environment(4, cache)[name]
    job = RealJob(workdir, variables, launch_flags)
    job.launch("start")
    job.launch("start")  # does nothing
    assert len(job.ask("squeue", "--noheader").splitlines()) == 1
    job.wait(lambda: last_step() > 3)
    job.launch("stop")
    job.wait_for_end()
    stopped = last_step()
    assert 3 < stopped < 60
    assert "exit code 75: back" not in job.log()
    job.launch("start")
    job.wait(lambda: f"from step {stopped} of 60" in job.log())
    job.wait(lambda: last_step() > stopped + 3)
    job.send_term()
    job.wait(lambda: "exit code 75: back into the queue (restart 1)" in job.log())
    job.wait_for_end()
  assert last_step() == 60
  code, output = run(train(tmp_path / "whole", *flags), devices=8, cache=cache)
  assert code == 0, output
  resumed_losses = losses(workdir)
  uninterrupted_losses = losses(tmp_path / "whole")
  assert [step for step, _ in resumed_losses] == list(range(1, 61))
  assert max(abs(a - b) for (_, a), (_, b) in zip(resumed_losses, uninterrupted_losses)) < 1e-5
