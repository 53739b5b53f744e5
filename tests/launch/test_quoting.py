"""Hostile values stay values in the scripts, directives and manifests of every route."""

import json
import os
import pathlib
import re
import subprocess
import sys
import types

import pytest

from launch import commands, gke, local, sky, slurm, tpu_hosts, tpu_vm
from t5x_like.errors import UserError

HOSTILE = [
  "; touch PWNED",
  "$(touch PWNED)",
  "`touch PWNED`",
  "'; touch PWNED; '",
  '"; touch PWNED; "',
  "x' && touch PWNED #",
  "a  b",
  "#x",
  "*",
  "~",
  "$HOME",
  "$$x",
  "back\\",
  "{a,b}!x",
  "<(touch PWNED)",
  "tab\tbed",
  "é世界",
]
BROKEN = ["a\ntouch PWNED", "a\r\ntouch PWNED", "a\0b", "a\x1bb", "a\u2028b", "a\udcffb"]
COMMAND = ("python", "-m", "my.train")


def job(workdir: str, *words: str, **environment: str):
  return commands.Job("name", [*COMMAND, f"--workdir={workdir}", *words], workdir, environment)


@pytest.fixture
def run(tmp_path):
  """Run a script with fake `python`, `srun`, `scontrol`; return the arguments of `python`."""
  programs = tmp_path / "bin"
  programs.mkdir()
  record = f'printf "%s\\0" "$@" "${{VALUE-}}" END >> {tmp_path}/words'
  for name, text in {
    "python": record,
    "srun": 'shift; "$@"',
    "scontrol": "false",
    "sleep": "true",
  }.items():
    (programs / name).write_text(f"#!/bin/bash\n{text}\n")
    (programs / name).chmod(0o755)
  (tmp_path / "here").mkdir()

  def run(script: str, shell: str = "bash") -> list[list[str]]:
    env = {
      "PATH": f"{programs}:/usr/bin:/bin",
      "SLURM_JOB_ID": "7",
      "SKYPILOT_NUM_NODES": "1",
      "HOME": "/home/other",
    }
    (tmp_path / "words").unlink(missing_ok=True)
    file = tmp_path / "here" / "script.sh"
    file.write_text(script)
    assert subprocess.run([shell, "-n", str(file)], capture_output=True, text=True).stderr == ""
    subprocess.run(
      [shell, str(file)], cwd=tmp_path / "here", env=env, capture_output=True, timeout=60
    )
    assert not list(tmp_path.rglob("PWNED"))
    assert not pathlib.Path("PWNED").exists()
    lines = (tmp_path / "words").read_text().split("\0END\0")[:-1]
    return [line.split("\0") for line in lines]

  return run


FLAGS = {
  "accelerator": "a",
  "accelerators": "H100:8",
  "account": "",
  "chips_per_host": 4,
  "directory": "",
  "gpus_per_node": 0,
  "grace_seconds": 5,
  "host_directory": "",
  "image": "i",
  "least_slices": None,
  "limit": None,
  "max_hours": 1.0,
  "nodes": 1,
  "partition": "",
  "restarts": 0,
  "runtime_version": "",
  "sbatch": [],
  "secret": "",
  "service_account": "",
  "slices": 1,
  "spot": False,
  "tasks_per_node": None,
  "time": "",
  "topology": "4x4",
}


def flags(**changes):
  """Return the flags of all routes."""
  return types.SimpleNamespace(**FLAGS | changes)


@pytest.mark.parametrize("value", HOSTILE)
def test_every_route_passes_values_unchanged(value, run, tmp_path):
  launched = job(value, value, f"--x={value}", VALUE=value)
  check = ["-m", "launch.preflight", f"--workdir={value}"]
  train = [*COMMAND[1:], f"--workdir={value}", value]
  expected = [[*check, value], [*train, f"--x={value}", value]]
  on_tpus = [[*check, "--platform=tpu", value], expected[1]]
  jobset = gke.manifest(launched, flags())
  container = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"][
    "containers"
  ][0]
  env = {variable["name"]: expand_kubernetes(variable["value"]) for variable in container["env"]}
  script = expand_kubernetes(container["command"][2])
  assert env == {"VALUE": value}
  assert run(f"{commands.export_lines(env)[0]}\n{script}\n") == on_tpus
  assert run(sky.task(launched, flags())["run"]) == expected
  assert run(tpu_hosts._script(launched)) == on_tpus
  directory = tmp_path / f"d {value}"
  directory.mkdir()
  if not set(value) & set("\\'\""):  # a directive cannot carry these; see below
    assert run(slurm.script(launched, flags(directory=str(directory)), "log")) == expected
  assert list(directory.iterdir()) == []


@pytest.mark.parametrize("value", HOSTILE)
def test_the_hosts_of_elastic_slices_get_values_unchanged(value, run):
  launched = job(value, value, f"--x={value}", VALUE=value)
  elastic = flags(slices=2, least_slices=1)
  jobset = gke.manifest(launched, elastic)
  container = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"][
    "containers"
  ][0]
  scripts = [
    expand_kubernetes(container["command"][2]),
    slurm.script(launched, elastic, "log", 1, "export T5X_LIKE_JOB_KEY=x"),
  ]
  for script in scripts:
    (words,) = run(f"{commands.export_lines({'VALUE': value})[0]}\n{script}\n")
    assert words[:3] == ["-m", "launch.member", f"--meeting={value}/elastic"]
    assert words[-1] == value
    bash, c, line = words[words.index("--") + 1 : -1]
    train = [*COMMAND[1:], f"--workdir={value}", value, f"--x={value}", ""]
    assert [bash, c] == ["bash", "-c"]
    assert run(line)[-1] == train


def expand_kubernetes(text: str) -> str:
  """Expand a text as Kubernetes does: `$(NAME)` is a variable, `$$` a dollar."""

  def expand(match: re.Match) -> str:
    assert match[0] != "$(", f"a variable: {text[match.start() :][:20]}"
    return "$"

  return re.sub(r"\$\$|\$\(|\$", expand, text)


def test_a_reference_of_kubernetes_stays_text():
  text = json.dumps(gke.manifest(job("gs://b/$(SECRET)'"), flags()))
  assert "$$(SECRET)" in text
  assert "/$(SECRET)" not in text


@pytest.mark.parametrize("value", [*HOSTILE, *BROKEN])
def test_directives_of_slurm_that_are_not_one_line_are_refused(value, run):
  for key, directive_value in (
    ("--partition", flags(partition=value)),
    ("--account", flags(account=value)),
    ("--time", flags(time=value)),
    ("--comment", flags(sbatch=[f"--comment={value}"])),
  ):
    try:
      script = slurm.script(job("/runs/a"), directive_value, "/runs/a/slurm.log")
    except UserError as error:
      assert str(error).startswith(f"{key}: found ")
      assert len(str(error).splitlines()) == 1
      assert value in BROKEN or set(value) & set("\\'\"")
      continue
    assert value not in BROKEN
    assert not set(value) & set("\\'\"")
    assert sum(line.startswith("#SBATCH") for line in script.splitlines()) >= 8
    (line,) = [line for line in script.splitlines() if f"{key}=" in line]
    assert line in (f"#SBATCH {key}={value}", f"#SBATCH '{key}={value}'")
    run(script)


ROUTES = {
  "slurm": (
    slurm.main,
    ["start", "--dry_run"],
    ("--partition", "--account", "--time", "--directory", "--env=A", "--name"),
  ),
  "gke": (
    gke.main,
    ["start", "--dry_run", "--image=i"],
    ("--image", "--accelerator", "--secret", "--service_account", "--env=A", "--topology"),
  ),
  "sky": (
    sky.main,
    ["start", "--dry_run"],
    ("--accelerators", "--runtime_version", "--env=A", "--secret"),
  ),
  "tpu_vm": (
    tpu_vm.main,
    ["start", "--dry_run", "--project=p", "--zone=z"],
    ("--zone", "--project", "--accelerator_type", "--runtime_version", "--env=A"),
  ),
}


@pytest.mark.parametrize("value", BROKEN)
@pytest.mark.parametrize("route", ROUTES)
def test_values_of_several_lines_are_refused(route, value, capsys, monkeypatch, tmp_path):
  main, words, keys = ROUTES[route]
  monkeypatch.chdir(tmp_path)
  remote = "/runs" if route == "slurm" else "gs://bucket"

  def assert_refused(arguments, key=""):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert "one line without control characters" in line
    assert key in line
    assert not out

  train = ["--", *COMMAND, f"--workdir={remote}/a"]
  for key in keys:
    assert_refused([*words, f"{key}={value}", *train], key.partition("=")[0])
  assert_refused([*words, "--", *COMMAND, f"--workdir={remote}/{value}"], "--workdir")
  assert_refused([*words, *train, f"--config.x={value}"], "--config.x")
  assert_refused([*words, *train, value])
  if "\0" not in value:
    monkeypatch.setenv("A", value)
    assert_refused([*words, "--env=A", *train], "--env=A")


@pytest.mark.parametrize("value", ["a\ntouch PWNED", "$(touch PWNED)", "'; touch PWNED; '"])
def test_local_processes_get_arguments_unchanged(value, capfdbinary):
  """There is no script, so an argument may have several lines."""
  program = "import sys; print(ascii(sys.argv[1]))"
  assert local.main(["--processes=1", "--", sys.executable, "-S", "-c", program, value]) == 0
  assert capfdbinary.readouterr().out == b"[p0] " + ascii(value).encode() + b"\n"


def test_nul_is_refused(capsys):
  assert local.main(["--processes=1", "--", "true", "a\0b"]) == 2
  assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_workdir_that_looks_like_a_flag_is_refused(capsys):
  assert slurm.main(["logs", "--dry_run", "--", *COMMAND, "--workdir=--follow"]) == 2
  assert (
    "--workdir=--follow: found a flag, expected a directory; write it as ./--follow"
    in capsys.readouterr().err
  )


def test_secrets_in_values_of_several_lines_are_not_printed(capsys, monkeypatch):
  monkeypatch.setenv("API_KEY", "s3cr3t\nvalue")
  flags = ["start", "--dry_run", "--env=API_KEY", "--", *COMMAND, "--workdir=/runs/a"]
  assert slurm.main(flags) == 2
  assert "s3cr3t" not in "".join(capsys.readouterr())
  assert os.environ["API_KEY"]


@pytest.mark.parametrize(
  "value", ["abc's3cr3t", "tok en's3cr3t me", 'x"s3cr3t"y', "a\\'s3cr3t' b", "s3cr3t"]
)
@pytest.mark.parametrize("name", ["WANDB_API_KEY", "SSH_KEY", "DB_PASSWORD2"])
def test_secrets_with_quotes_are_not_printed(name, value, capsys, monkeypatch):
  monkeypatch.setenv(name, value)
  arguments = [
    f"--{name.lower()}={value}",
    f"--{name.lower()}",
    value,
    f"--config.trackers.mlflow.uri=http://me:{value}@h",
  ]
  train = [*COMMAND, "--workdir=/runs/a", *arguments]
  assert slurm.main(["start", "--dry_run", f"--env={name}", "--", *train]) == 0
  assert local.main(["--dry_run", "--", *train]) == 0
  out, err = capsys.readouterr()
  assert "s3cr3t" not in out + err
  assert f"export {name}=***" in out


def test_a_script_is_private_from_its_first_byte_and_follows_no_link(tmp_path, monkeypatch):
  modes = []
  write = commands.os.open

  def open_and_note(path, flags, mode=0o777, **options):
    number = write(path, flags, mode, **options)
    modes.append(os.fstat(number).st_mode & 0o777)
    return number

  monkeypatch.setattr(commands.os, "open", open_and_note)
  script = tmp_path / "slurm.sh"
  victim = tmp_path / "victim"
  victim.write_text("precious")
  script.write_text("old")
  script.chmod(0o644)
  commands.Shell(False).write(script, "export TOKEN=1")
  assert modes == [0o600]
  assert script.stat().st_mode & 0o777 == 0o600
  script.unlink()
  script.symlink_to(victim)
  commands.Shell(False).write(script, "export TOKEN=1")
  assert victim.read_text() == "precious"
  assert script.read_text() == "export TOKEN=1"
  assert not script.is_symlink()
  assert sorted(path.name for path in tmp_path.iterdir()) == ["slurm.sh", "victim"]
