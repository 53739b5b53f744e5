"""GKE and SkyPilot get valid manifests and commands, and hosts are checked before a job."""

import json
import os
import pathlib
import re
import subprocess
import sys
import time

import fsspec
import pytest

from launch import commands, gke, preflight, sky

REPO = pathlib.Path(__file__).resolve().parents[2]
WORKDIR = "--workdir=gs://bucket/runs/T5 base"
TRAIN = ("--", "python", "-m", "t5x_like.train", WORKDIR)
COMMAND = (
  "--",
  "python",
  "-m",
  "my.train",
  "--config=configs/t5/base.py",
  WORKDIR,
  "--x=$(touch pwned)'",
)


@pytest.fixture
def program(tmp_path, monkeypatch):
  """Return `make(name, script)`: a program that logs arguments and input to tmp_path/calls."""

  def make(name, script="true"):
    path = tmp_path / name
    path.write_text(f'#!/bin/bash\nprintf "%s\\n" "$*" >> {tmp_path}/calls\n{script}\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return lambda: (tmp_path / "calls").read_text()

  return make


GKE = (
  "--image=registry/project:1",
  "--topology=4x4",
  "--slices=2",
  "--spot",
  "--env=HF_HOME=/tmp/hf",
  "--secret=keys",
  "--host_directory=/dev/shm/t5x_like",
)


def apply_jobset(tmp_path, program, answer=""):
  calls = program(
    "kubectl",
    f"case \"$1\" in get) printf %s '{answer}' ;; apply) cat > {tmp_path}/manifest ;; esac",
  )
  assert gke.main(["start", *GKE, *COMMAND]) == 0
  return calls(), (tmp_path / "manifest")


def test_a_jobset_follows_its_schema(tmp_path, program):
  models = pytest.importorskip("kubeflow_trainer_api.models")
  calls, file = apply_jobset(tmp_path, program)
  manifest = json.loads(file.read_text())
  read = models.JobsetV1alpha2JobSet.from_dict(manifest)
  # The manifest has only fields of the schema, with the right types.
  assert read.to_dict() == manifest
  assert "delete" not in calls
  assert "apply --filename=-" in calls
  (slice_,) = manifest["spec"]["replicatedJobs"]
  job = slice_["template"]["spec"]
  # 16 chips, 4 to a host
  assert slice_["replicas"] == 2
  assert job["parallelism"] == job["completions"] == 4
  pod = job["template"]["spec"]
  (container,) = pod["containers"]
  assert container["resources"]["limits"] == {"google.com/tpu": 4}
  assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
  assert container["volumeMounts"] == [{"name": "host", "mountPath": "/dev/shm/t5x_like"}]
  assert pod["volumes"][0]["hostPath"]["path"] == "/dev/shm/t5x_like"
  # Root opens the directory for the user of the image.
  (init_container,) = pod["initContainers"]
  assert init_container["command"][-1] == "/dev/shm/t5x_like"
  assert init_container["securityContext"] == {"runAsUser": 0}
  # Kubernetes replaces $$ by $.
  bash, c, script = (argument.replace("$$", "$") for argument in container["command"])
  echo = f"python() {{ printf '%s\\n' \"$@\"; }}; {script.replace('exec ', '')}"
  assert "export T5X_LIKE_JOB_KEY=" in script
  process = subprocess.run([bash, c, echo], capture_output=True, text=True, cwd=tmp_path)
  assert process.stdout.splitlines() == [
    "-m",
    "launch.preflight",
    WORKDIR,
    "--platform=tpu",
    "-m",
    "my.train",
    "--config=configs/t5/base.py",
    WORKDIR,
    COMMAND[-1],
  ]
  assert not (tmp_path / "pwned").exists()
  assert job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [2, 3, 4]
  assert job["activeDeadlineSeconds"] == 168 * 3600
  assert manifest["spec"]["ttlSecondsAfterFinished"] == 7 * 24 * 3600
  final_reasons = manifest["spec"]["failurePolicy"]["rules"][0]["onJobFailureReasons"]
  # Otherwise the JobSet would start again after its lifetime.
  assert final_reasons == ["PodFailurePolicy", "DeadlineExceeded"]


def test_an_elastic_jobset_replaces_lost_pods_and_runs_the_command_through_its_hosts(
  tmp_path, program
):
  models = pytest.importorskip("kubeflow_trainer_api.models")
  program("kubectl", f'case "$1" in apply) cat > {tmp_path}/manifest ;; esac')
  assert gke.main(["start", *GKE, "--least_slices=1", *COMMAND]) == 0
  manifest = json.loads((tmp_path / "manifest").read_text())
  assert models.JobsetV1alpha2JobSet.from_dict(manifest).to_dict() == manifest
  assert manifest["spec"]["successPolicy"] == {"operator": "Any"}
  job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
  first, second = job["podFailurePolicy"]["rules"]
  # The job controller creates pods of lost nodes again; other failures count.
  assert first == {
    "action": "Ignore",
    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
  }
  assert second["onExitCodes"]["values"] == [2, 3, 4]
  (container,) = job["template"]["spec"]["containers"]
  script = container["command"][2].replace("$$", "$")
  fields = {variable["name"]: variable["valueFrom"] for variable in container["env"][1:]}
  assert fields["SLICE"] == {
    "fieldRef": {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/job-index']"}
  }
  function = 'python() { printf "%s\\n" "$T5X_LIKE_JOB_KEY" "$@"; }; exec() { "$@"; }'
  variables = {
    "SLICE": "1",
    "RESTART": "4",
    "HOST_ADDRESS": "10.0.0.7",
    "JOB_COMPLETION_INDEX": "2",
  }
  output = subprocess.run(
    ["bash", "-c", f"{function}; {script}"],
    capture_output=True,
    text=True,
    env=variables | {"PATH": os.environ["PATH"]},
    cwd=tmp_path,
  ).stdout.splitlines()
  key, *arguments = output
  assert re.fullmatch("[0-9a-f]{32}-4", key)  # another key after each restart of the JobSet
  end = arguments.index("--")
  assert arguments[:2] == ["-m", "launch.member"]
  assert set(arguments[2:end]) == {
    "--meeting=gs://bucket/runs/T5 base/elastic",
    "--platform=tpu",
    "--slices=2",
    "--hosts_per_slice=4",
    "--least_slices=1",
    "--restarts=10",
    "--grace_seconds=120",
    "--slice=1",
    "--worker=2",
    "--address=10.0.0.7",
  }
  bash, c, train = arguments[end + 1 :]
  record = f'python() {{ printf "%s\\n" "$@"; }}; {train.replace("exec ", "")}'
  process = subprocess.run([bash, c, record], capture_output=True, text=True, cwd=tmp_path)
  words = process.stdout.splitlines()
  assert words[:4] == ["-m", "launch.preflight", WORKDIR, "--platform=tpu"]
  assert words[4:] == list(COMMAND[2:])
  assert not (tmp_path / "pwned").exists()


def test_a_jobset_of_gpus_names_its_hosts(tmp_path, program):
  models = pytest.importorskip("kubeflow_trainer_api.models")
  program("kubectl", f'case "$1" in apply) cat > {tmp_path}/manifest ;; esac')
  flags = (
    "--image=i",
    "--accelerator=nvidia-h100-80gb",
    "--nodes=2",
    "--gpus_per_node=8",
    "--name=run",
  )
  assert gke.main(["start", *flags, *COMMAND]) == 0
  manifest = json.loads((tmp_path / "manifest").read_text())
  assert models.JobsetV1alpha2JobSet.from_dict(manifest).to_dict() == manifest
  job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
  pod = job["template"]["spec"]
  (container,) = pod["containers"]
  assert job["parallelism"] == 2
  assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
  assert pod["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
  env = {variable["name"]: variable["value"] for variable in container["env"]}
  assert env == {"JAX_COORDINATOR_ADDRESS": "run-slice-0-0.run:8476", "JAX_NUM_PROCESSES": "2"}
  script = container["command"][2].replace("$$", "$").replace("exec ", "")
  echo = f'python() {{ echo "$JAX_PROCESS_ID $2"; }}; {script}'
  process = subprocess.run(
    ["bash", "-c", echo], capture_output=True, text=True, env={"JOB_COMPLETION_INDEX": "1"}
  ).stdout
  assert process.splitlines() == ["1 launch.preflight", "1 my.train"]


@pytest.mark.parametrize("ended", ["Failed", "Completed"])
def test_a_jobset_that_has_ended_is_replaced(ended, tmp_path, program, capsys):
  condition = {"type": ended, "status": "True", "message": "jobset ended because"}
  answer = json.dumps({"status": {"conditions": [condition]}})
  calls, file = apply_jobset(tmp_path, program, answer)
  assert calls.index("delete") < calls.index("apply")
  assert file.exists()
  assert "jobset ended because" in capsys.readouterr().err
  assert gke.main(["status", *COMMAND]) == 0
  assert "jobset ended because" in capsys.readouterr().out


def test_a_jobset_that_runs_is_left_alone(tmp_path, program, capsys):
  calls, file = apply_jobset(tmp_path, program, json.dumps({"status": {}}))
  assert not file.exists()
  assert "is running already" in capsys.readouterr().err
  assert gke.main(["status", *COMMAND]) == 0
  assert "running" in capsys.readouterr().out
  assert gke.main(["stop", *COMMAND]) == 0


def test_status_names_what_pods_wait_for(program, capsys):
  waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}}
  unscheduled = {
    "type": "PodScheduled",
    "status": "False",
    "message": "0/3 nodes are available: 3 Insufficient google.com/tpu.",
  }
  statuses = [
    {"containerStatuses": [{"image": "registry/project:1", "state": waiting}]},
    {"conditions": [unscheduled]},
    {"conditions": [unscheduled]},
    {"containerStatuses": [{"state": {"running": {}}}]},
    {},
  ]
  pods = json.dumps({"items": [{"status": status} for status in statuses]})
  program(
    "kubectl", f"case \"$2\" in pods) echo '{pods}' ;; *) echo '{{\"status\": {{}}}}' ;; esac"
  )
  assert gke.main(["status", *COMMAND]) == 0
  first, second, third = capsys.readouterr().out.splitlines()
  assert first.endswith(": running")
  assert "1 pods wait: ImagePullBackOff: registry/project:1 cannot be pulled; push it" in second
  assert "2 pods wait: no node: 0/3 nodes are available" in third


@pytest.mark.parametrize(
  "error, code",
  [
    (
      'error: resource mapping not found: no matches for kind "JobSet" in version '
      '"jobset.x-k8s.io/v1alpha2"',
      2,
    ),
    ("Error from server (Forbidden): jobsets is forbidden", 2),
    ("Unable to connect to the server: i/o timeout", 69),
  ],
)
def test_errors_of_kubectl_have_classes(error, code, program, capsys):
  program("kubectl", f"echo '{error}' >&2; exit 1")
  assert gke.main(["start", *GKE, *COMMAND]) == code
  assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("main, name", [(gke.main, "kubectl"), (sky.main, "sky")])
def test_a_program_that_hangs_or_answers_nonsense_ends_in_one_line(
  main, name, program, capsys, monkeypatch
):
  monkeypatch.setattr(commands, "QUERY_SECONDS", 0.3)
  monkeypatch.setattr(commands, "_KILL_SECONDS", 0.1)
  program(name, "sleep 600 & wait")
  begin = time.monotonic()
  assert main(["status", *COMMAND]) == 69
  assert time.monotonic() - begin < 20
  (line,) = capsys.readouterr().err.splitlines()
  assert "no answer within 0.3 s" in line
  program(name, "echo '<html>'")
  assert main(["status", *COMMAND]) == 69
  (line,) = capsys.readouterr().err.splitlines()
  assert "expected JSON" in line


@pytest.mark.parametrize(
  "path",
  [
    "/",
    "//",
    "/tmp",
    "/tmp/",
    "/etc/x",
    "/dev/shm",
    "/dev/shm/../x",
    "/dev/shm/..",
    "scratch",
    "/mnt/disks",
    "/home/me",
  ],
)
def test_a_system_directory_is_refused_as_host_directory(path, program, capsys):
  calls = program("kubectl")
  assert gke.main(["start", "--image=i", f"--host_directory={path}", *COMMAND]) == 2
  message = f"--host_directory={path}: expected a directory for this job only"
  assert message in capsys.readouterr().err
  with pytest.raises(FileNotFoundError):
    calls()


def test_dry_runs_print_and_do_nothing(program, capsys, monkeypatch):
  monkeypatch.setenv("PATH", "/nowhere")
  monkeypatch.setenv("HF_TOKEN", "s3cr3t")
  assert gke.main(["start", "--dry_run", *GKE, *COMMAND]) == 0
  out = capsys.readouterr().out
  assert "kubectl apply" in out
  assert "JobSet" in out
  assert "kubectl delete" not in out
  assert sky.main(["start", "--dry_run", "--secret=HF_TOKEN", *COMMAND]) == 0
  out = capsys.readouterr().out
  assert "sky jobs launch" in out
  assert "launch.preflight" in out
  assert "s3cr3t" not in out
  assert "--secret HF_TOKEN" in out


@pytest.mark.parametrize("main, argv", [(gke.main, GKE), (sky.main, ())])
def test_each_start_sets_another_secret_for_its_processes(tmp_path, program, capsys, main, argv):
  program("kubectl", f'case "$1" in apply) cat >> {tmp_path}/started ;; esac')
  program(
    "sky",
    f'case "$2" in queue) echo "[]" ;; launch) cat "${{@: -1}}" >> {tmp_path}/started ;; esac',
  )
  assert main(["start", *argv, *COMMAND]) == 0
  assert main(["start", *argv, *COMMAND]) == 0
  keys = re.findall(r"export T5X_LIKE_JOB_KEY=([0-9a-f]{32})", (tmp_path / "started").read_text())
  assert len(set(keys)) == 2
  assert main(["start", "--dry_run", *argv, *COMMAND]) == 0
  printed = capsys.readouterr().out
  assert "export T5X_LIKE_JOB_KEY=***" in printed


def test_sky_launches_once(tmp_path, program, capsys, monkeypatch):
  name = "t5-base-"
  calls = program(
    "sky",
    f'case "$2" in queue) cat {tmp_path}/queue ;; launch) cp "${{@: -1}}" {tmp_path}/task ;; esac',
  )
  (tmp_path / "queue").write_text("[]")
  assert sky.main(["start", "--accelerators=H100:8", "--nodes=2", *COMMAND]) == 0
  task = json.loads((tmp_path / "task").read_text())
  assert task["name"].startswith(name)
  assert task["num_nodes"] == 2
  assert "[cuda12,gcs]" in task["setup"]
  # SkyPilot counts every other code, 2, 3 and 4 among them
  recovery = task["resources"]["job_recovery"]
  assert recovery["recover_on_exit_codes"] == [69, 75, 130, 143]
  assert recovery["max_restarts_on_errors"] == 0
  script = (
    'exec() { "$@"; }; python() { printf \'%s\\n\' "$@"; }; SKYPILOT_NUM_NODES=1\n' + task["run"]
  )
  process = subprocess.run(
    ["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path
  ).stdout.splitlines()
  assert process[3:] == list(COMMAND[2:])
  assert not (tmp_path / "pwned").exists()
  rows = [{"job_name": task["name"], "job_id": 3, "status": "RUNNING"}]
  (tmp_path / "queue").write_text(json.dumps(rows))
  assert sky.main(["start", *COMMAND]) == 0
  assert calls().count("jobs launch") == 1
  rows += [{"job_name": task["name"], "job_id": 4, "status": "FAILED_SETUP"}]
  (tmp_path / "queue").write_text(json.dumps(rows))
  assert sky.main(["start", *COMMAND]) == 0
  assert calls().count("jobs launch") == 2


IMAGE = ("start", "--image=x")


@pytest.mark.parametrize(
  "main, argv, message",
  [
    (gke.main, ["begin", *COMMAND], "begin"),
    (gke.main, ["start", *COMMAND], "--image"),
    (gke.main, ["start", "--image=my image", *COMMAND], "--image=my image: expected the name"),
    (gke.main, [*IMAGE, "--topology=big", *COMMAND], "--topology=big"),
    (gke.main, [*IMAGE, "--accelerator=nvidia-l4", "--slices=2", *COMMAND], "--nodes=2"),
    (gke.main, [*IMAGE, "--chips_per_host=0", *COMMAND], "--chips_per_host"),
    (gke.main, [*IMAGE, "--slices=2", "--least_slices=3", *COMMAND], "--least_slices=3"),
    (gke.main, [*IMAGE, "--env=HF_TOKEN=1", *COMMAND], "HF_TOKEN: looks like a secret"),
    (
      gke.main,
      [*IMAGE, *TRAIN, "--config=configs/no.py"],
      "--config=configs/no.py: no such recipe",
    ),
    (gke.main, [*IMAGE, *TRAIN, "--config=docs/recipe.py"], "the hosts get t5x_like/, configs/"),
    (sky.main, ["start", "--env=WANDB_API_KEY=1", *COMMAND], "WANDB_API_KEY: looks like a secret"),
    (sky.main, ["start", "--secret=NO_SUCH_VARIABLE", *COMMAND], "NO_SUCH_VARIABLE"),
    (sky.main, ["start", "--", "python", "x.py", "--workdir=run"], "gs://"),
    (sky.main, ["start", *TRAIN, "--config=/tmp/recipe.py"], "the hosts get the files of this"),
  ],
)
def test_bad_flags_are_refused_in_one_line(main, argv, message, capsys):
  assert main(argv) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert message in line


def test_the_last_workdir_of_the_command_counts():
  for flags in (("--workdir", "gs://b/run"), ("--workdir=gs://b/old", "--workdir=gs://b/run")):
    parsed = commands.parse(
      commands.make_parser("", ("start",)), ["start", "--", "python", *flags, "--config=x"]
    )
    assert commands.read_job(parsed).workdir == "gs://b/run"


def test_the_check_may_be_switched_off(tmp_path, program):
  program("kubectl", f'case "$1" in apply) cat > {tmp_path}/manifest ;; esac')
  assert gke.main(["start", "--image=i", "--unchecked", *TRAIN, "--config=/own/recipe.py"]) == 0
  assert "/own/recipe.py" in (tmp_path / "manifest").read_text()


# The check before


def test_a_host_is_checked_for_devices_links_and_disk(tmp_path):
  assert "8 devices compute correctly" in preflight.check_devices()
  assert "8 devices of 1 hosts add up correctly" in preflight.check_links(8)
  assert "free in" in preflight.check_disk(0.001)
  assert "written and read" in preflight.check_workdir(str(tmp_path / "run"))
  assert "written and read" in preflight.check_workdir("memory://preflight/run")
  assert not list((tmp_path / "run").iterdir())
  assert not fsspec.filesystem("memory").find("/preflight")


def test_a_faulty_host_is_reported_in_one_line(tmp_path, capsys):
  (tmp_path / "file").write_text("")
  for flags, message in [
    (["--workdir=/proc/no/such/place"], "cannot write"),
    ([f"--workdir={tmp_path}", "--free_gigabytes=1e9"], "GB are free"),
    ([f"--workdir={tmp_path}/file/run"], "cannot write"),
    ([f"--workdir={tmp_path}", "--devices=64"], "--devices=64: found 8"),
    ([f"--workdir={tmp_path}", "--platform=tpu"], "found cpu devices only; install the extra tpu"),
  ]:
    assert preflight.main(flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_hanging_check_is_ended():
  program = (
    "import time; from launch import preflight; preflight.check_host = lambda args: "
    "time.sleep(600)\n"
    "preflight.main(['--workdir=/tmp/x', '--seconds=0.1'])"
  )
  process = subprocess.run(
    [sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, timeout=300
  )
  assert process.returncode == 69
  assert "not finished in 0.1 s" in process.stderr
  assert len(process.stderr.splitlines()) == 1


def test_two_hosts_are_checked_together(tmp_path):
  command = [sys.executable, "-m", "launch.preflight", f"--workdir={tmp_path}/run", "--devices=4"]
  launcher = [
    sys.executable,
    "launch/local.py",
    "--processes=2",
    "--devices_per_process=2",
    "--",
    *command,
  ]
  process = subprocess.run(
    launcher, cwd=REPO, capture_output=True, text=True, timeout=600, env=os.environ
  )
  assert process.returncode == 0, process.stderr
  assert process.stdout.count("4 devices of 2 hosts add up correctly") == 2
