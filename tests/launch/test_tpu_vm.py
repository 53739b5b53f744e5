"""Cloud TPU VMs are created, used, retried and deleted through a fake gcloud."""

import datetime
import fcntl
import io
import json
import pathlib
import subprocess
import sys
import tarfile
import threading
import time

import pytest

from launch import commands, queued_resources, tpu_hosts, tpu_vm

pytestmark = pytest.mark.runs

WORKDIR = "--workdir=memory://bucket/runs/T5 base"
TRAIN = ("--", "python", "-m", "t5x_like.train")
FLAGS = ("--project=p", "--zone=z", "--accelerator_type=v5litepod-8", "--spot")
# A program that ends on SIGTERM as a run does that has saved.
SAVES = (
  "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); time.sleep(60)"
)


# A fake cloud without faults.
PLAN = {
  "unreachable": {},
  "hangs": {},
  "reason": None,
  "created": None,
  "create_errors": [],
  "describe_errors": [],
  "delete_errors": [],
}


@pytest.fixture
def cloud(tmp_path, monkeypatch):
  """Return `prepare(**faults)`, which returns `calls()`: the arguments of each call so far."""
  folder = tmp_path / "cloud"
  folder.mkdir()
  fake = tmp_path / "bin" / "gcloud"
  fake.parent.mkdir()
  program = pathlib.Path(__file__).with_name("fake_gcloud.py")
  fake.write_text(f'#!/bin/bash\nexec {sys.executable} -I -S {program} "$@"\n')
  fake.chmod(0o755)
  monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
  monkeypatch.setenv("FAKE_CLOUD", str(folder))
  monkeypatch.setattr(queued_resources, "POLL_SECONDS", 0.2)
  monkeypatch.setattr(queued_resources, "_RETRY_SECONDS", 0.01)
  monkeypatch.setattr(tpu_hosts, "_package", lambda: EMPTY_TAR)
  monkeypatch.setattr(tpu_hosts, "_LOGS", tmp_path / "logs")

  def prepare(states=(("ACTIVE",),), hosts=2, **changes):
    plan = PLAN | {"states": states, "hosts": hosts} | changes
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "state.json").write_text(json.dumps({"queued": {}}))

    def calls(*kind):
      lines = (folder / "calls.jsonl").read_text().splitlines()
      arguments_of_calls = [json.loads(line) for line in lines]
      return [arguments for arguments in arguments_of_calls if arguments[2:4] == [*kind]]

    return calls

  prepare.folder = folder
  return prepare


def empty_tar():
  archive = io.BytesIO()
  tarfile.open(fileobj=archive, mode="w:gz").close()
  return archive.getvalue()


EMPTY_TAR = empty_tar()


def start(*flags, program="pass", arguments=(), action="start", keep=True):
  """Run the launcher; with `keep`, the hosts and their files outlast the job."""
  keep_flag = ("--keep",) if keep else ()
  return tpu_vm.main(
    [action, *FLAGS, *keep_flag, *flags, "--", "python", "-c", program, WORKDIR, *arguments]
  )


def host_files(cloud, name):
  return [path.read_text() for path in sorted(cloud.folder.glob(f"host-*/jobs/*/{name}"))]


def test_a_job_runs_on_all_hosts_and_resumes_when_started_again(cloud, capsys):
  calls = cloud(states=[["ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]])
  assert start(program="import os; print('trained', os.getcwd())") == 0
  logs = host_files(cloud, "log")
  assert len(logs) == 2
  assert all("trained" in log and log.rstrip().endswith("/project") for log in logs)
  for file in cloud.folder.glob("host-*/installed"):
    assert file.read_text().endswith("-e project[tpu]\n")
  (created,) = calls("queued-resources", "create")
  assert "--spot" in created, created
  assert "--node-id=t5-base-506d7fdd" in created, created
  err = capsys.readouterr().err
  assert "waiting_for_resources" in err
  assert not calls("queued-resources", "delete")
  assert "is billed until it is deleted: gcloud compute tpus queued-resources delete t5-base" in err
  assert start(program="print('more')") == 0  # on the same slice
  assert len(calls("queued-resources", "create")) == 1
  assert all("more" in log for log in host_files(cloud, "log")), host_files(cloud, "log")
  assert start(action="status") == 0
  assert capsys.readouterr().out.count(": exit 0") == 2
  assert start(action="logs") == 0
  assert "trained" in capsys.readouterr().out
  # No launcher watches the job.
  assert start(action="stop", keep=False) == 0
  assert not read_requests(cloud)
  assert len(calls("queued-resources", "delete")) == 1
  assert start(action="delete") == 0
  assert start(action="status") == 0
  assert "no such slice" in capsys.readouterr().out


def test_a_preempted_slice_is_requested_again(cloud, capsys):
  calls = cloud(states=[["ACTIVE", "ACTIVE", "ACTIVE", "SUSPENDED"], ["ACTIVE"]])
  once = cloud.folder / "once"
  program = (
    f"import os, time; first = not os.path.exists({str(once)!r}); open({str(once)!r}, 'w'); first "
    "and time.sleep(20)"
  )
  assert start("--restarts=0", program=program) == 0
  assert len(calls("queued-resources", "create")) == 2
  assert len(calls("queued-resources", "delete")) == 1
  err = capsys.readouterr().err
  assert "preempted" in err
  assert "has finished (0 failures, 1 preemptions before)" in err


def test_missing_capacity_is_waited_for(cloud, capsys):
  stock_out = "RESOURCE_EXHAUSTED: There is no more capacity in the zone"
  calls = cloud(create_errors=[stock_out, stock_out])
  assert start() == 0
  assert len(calls("queued-resources", "create")) == 3
  assert capsys.readouterr().err.count("no capacity") == 2


@pytest.mark.parametrize(
  "error, code, message",
  [
    (
      "RESOURCE_EXHAUSTED: Quota limit 'TPUV5sPreemptiblePerZone' has been exceeded. Limit: 0",
      2,
      "quota",
    ),
    ("PERMISSION_DENIED: the caller does not have permission", 2, "gcloud auth login"),
    ("INVALID_ARGUMENT: unknown accelerator type", 2, "--accelerator_type"),
    ("INTERNAL: 503 try again", 69, "503"),
  ],
)
def test_errors_of_the_cloud_have_classes(error, code, message, cloud, capsys):
  calls = cloud(create_errors=[error])
  assert start() == code
  err = capsys.readouterr().err.strip()
  assert message in err
  assert len(err.splitlines()) == 1
  assert len(calls("queued-resources", "create")) == 1


def test_only_unreachable_hosts_are_tried_again(cloud, capsys):
  calls = cloud(hosts=3, unreachable={"1": 2})
  assert start() == 0
  workers = []
  for arguments in calls("tpu-vm", "ssh"):
    workers += [argument for argument in arguments if argument.startswith("--worker=")]
  assert sorted(workers[:3]) == ["--worker=0", "--worker=1", "--worker=2"]
  assert workers[3:5] == ["--worker=1"] * 2
  assert "1 of 3 hosts cannot be reached" in capsys.readouterr().err


def test_a_host_that_stays_unreachable_ends_the_launcher(cloud, capsys):
  cloud(unreachable={"1": 99})
  assert start("--restarts=1") == 69
  assert "worker 1 of t5-base" in capsys.readouterr().err


def test_a_slice_preempted_during_setup_is_requested_again(cloud, capsys):
  calls = cloud(states=[["ACTIVE", "SUSPENDED"], ["ACTIVE"]], unreachable={"1": 4})
  assert start("--restarts=0") == 0
  assert len(calls("queued-resources", "create")) == 2
  err = capsys.readouterr().err
  assert "worker 1 of t5-base" in err
  assert "(0 failures, 1 preemptions before)" in err


def test_a_failing_query_of_the_state_is_repeated(cloud):
  cloud(describe_errors=["INTERNAL: 503 try again"])
  assert start() == 0


@pytest.mark.parametrize("code, starts", [(3, 1), (69, 2)])
def test_exit_codes_decide_about_restarts(code, starts, cloud, capsys):
  cloud()
  program = f"import sys; print('start', flush=True); sys.exit({code})"
  assert start("--restarts=1", program=program) == code
  assert [log.count("start") for log in host_files(cloud, "log")] == [starts] * 2
  assert f"failed with exit code {code}" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 3])
def test_a_slice_is_deleted_when_its_job_ends(code, cloud, capsys):
  calls = cloud()
  assert start(keep=False, program=f"import sys; print('worked'); sys.exit({code})") == code
  assert len(calls("queued-resources", "delete")) == 1
  assert not read_requests(cloud)
  assert "is deleted and no longer billed" in capsys.readouterr().err
  logs = [path.read_text() for path in (cloud.folder.parent / "logs").glob("*/*.log")]
  assert len(logs) == 2
  assert all("worked" in log for log in logs)


def test_a_slice_that_cannot_be_deleted_is_an_error(cloud, capsys, monkeypatch):
  monkeypatch.setenv("T5X_LIKE_RETRY_SECONDS", "0")
  cloud(delete_errors=["INTERNAL: 503 try again"] * 9)
  assert start(keep=False) == 69
  err = capsys.readouterr().err
  assert "cannot be deleted" in err
  assert "is billed until it is deleted" in err


def test_a_slice_that_another_command_deletes_is_not_requested_again(cloud, capsys):
  calls = cloud()
  codes = []
  program = "import os, time; open(os.path.expanduser('~/up'), 'w'); time.sleep(30)"
  thread = threading.Thread(target=lambda: codes.append(start(program=program)))
  thread.start()
  while len(list(cloud.folder.glob("host-*/up"))) < 2:
    time.sleep(0.05)
  assert start(action="delete") == 0
  thread.join(20)
  assert codes == [75]
  assert len(calls("queued-resources", "create")) == 1
  assert "another command has deleted the slice" in capsys.readouterr().err


def test_a_run_saves_and_its_slice_is_deleted_at_the_end_of_its_lifetime(cloud, capsys):
  calls = cloud(created="2020-01-01T00:00:00.123456789Z")
  handler = "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(75)))"
  program = f"import signal, sys, time; {handler}; time.sleep(30)"
  assert start(keep=False, program=program) == 75
  assert (
    "168 hours are over (--max_hours), or --budget or --deadline is reached"
    in capsys.readouterr().err
  )
  assert len(calls("queued-resources", "create")) == 1
  assert not read_requests(cloud)


@pytest.mark.parametrize("hours, program", [(168, "pass"), (1e-5, SAVES)])
def test_the_first_host_deletes_a_slice_without_launcher(hours, program, cloud, monkeypatch):
  """It does so after the job, or at the end of its lifetime after a save."""
  monkeypatch.setattr(queued_resources, "_GUARD_POLL_SECONDS", 0.1)
  monkeypatch.setattr(queued_resources, "_GUARD_WAIT_SECONDS", 1)

  def interrupt(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(tpu_hosts, "read_codes", interrupt)
  calls = cloud()
  # The host may delete the slice before the launcher is interrupted.
  assert start(f"--max_hours={hours}", keep=False, program=program) in (130, 75)
  deadline = time.monotonic() + 30
  while read_requests(cloud) and time.monotonic() < deadline:
    time.sleep(0.1)
  (deleted,) = calls("queued-resources", "delete")
  assert {"--force", "--async"} <= set(deleted)


def test_a_run_ends_within_its_budget(cloud, capsys, monkeypatch, tmp_path):
  monkeypatch.setattr(tpu_vm, "_RESERVE_SECONDS", 0.0)
  prices = tmp_path / "prices.toml"
  prices.write_text('currency = "USD"\n[per_chip_hour]\nv5e = 1.0\n')
  cloud()
  # Eight chips for three seconds.
  flags = (f"--prices={prices}", f"--budget={8 * 3 / 3600}")
  assert start(*flags, keep=False, program=SAVES) == 75
  err = capsys.readouterr().err
  assert "8 chips (v5e) at 1 USD an hour each: 8.00 USD an hour, at most 0.01 USD" in err
  assert "the run saves and ends" in err
  assert not read_requests(cloud)


@pytest.mark.parametrize("slices", [(), ("--slices=2", "--least_slices=1")])
def test_a_deadline_ends_the_wait_for_slices(slices, cloud, capsys, monkeypatch):
  monkeypatch.setattr(tpu_vm, "_RESERVE_SECONDS", 0.0)
  waiting = [["WAITING_FOR_RESOURCES"]]
  cloud(states={"0": waiting, "1": waiting} if slices else waiting)
  moment = datetime.datetime.fromtimestamp(time.time() + 3).isoformat()
  begin = time.monotonic()
  assert start(*slices, f"--deadline={moment}", keep=False) == 75
  assert time.monotonic() - begin < 60
  assert not read_requests(cloud)


@pytest.mark.parametrize("slices", [(), ("--slices=2", "--least_slices=1")])
def test_the_wait_for_capacity_is_limited(slices, cloud, capsys):
  stock_out = "RESOURCE_EXHAUSTED: There is no more capacity in the zone"
  cloud(create_errors=[stock_out] * 99)
  begin = time.monotonic()
  assert start(*slices, f"--max_hours={3 / 3600}", keep=False) == 75
  assert time.monotonic() - begin < 60
  assert not read_requests(cloud)


def test_failing_requests_are_limited_and_state_the_reason(cloud, capsys, monkeypatch):
  waits = []
  monkeypatch.setattr(commands.Shell, "__init__", shell_that_counts(waits))
  calls = cloud(states=[["FAILED"]] * 99, reason={"message": "runtime version x is not supported"})
  assert start("--requests=3") == 2
  assert len(calls("queued-resources", "create")) == len(calls("queued-resources", "delete")) == 3
  err = capsys.readouterr().err
  assert err.count("runtime version x is not supported") == 3
  assert "request 2 of 3: failed: runtime" in err
  longest = sorted(waits)[-2:]
  assert longest[1] == pytest.approx(2 * longest[0])


def test_a_request_that_cannot_succeed_is_not_repeated(cloud, capsys):
  calls = cloud(states=[["FAILED"]] * 99, reason={"code": 3, "message": "no such type"})
  assert start() == 2
  assert len(calls("queued-resources", "create")) == 1
  assert "no such type" in capsys.readouterr().err
  assert not read_requests(cloud)


def test_a_hanging_host_is_retried_and_then_given_up(cloud, capsys, monkeypatch):
  """If the slice is preempted meanwhile, the job starts on the next."""
  monkeypatch.setattr(queued_resources, "_SSH_SECONDS", 1.0)
  monkeypatch.setattr(commands, "_KILL_SECONDS", 0.1)
  calls = cloud(states=[["ACTIVE", "SUSPENDED"], ["ACTIVE"]], hangs={"1": 4})
  begin = time.monotonic()
  assert start("--restarts=0") == 0
  assert time.monotonic() - begin < 30
  assert len(calls("queued-resources", "create")) == 2
  assert "no answer within 1 s" in capsys.readouterr().err


def read_requests(cloud):
  with (cloud.folder / "lock").open("w") as lock:  # of the calls of gcloud
    fcntl.flock(lock, fcntl.LOCK_EX)
    return json.loads((cloud.folder / "state.json").read_text())["queued"]


def shell_that_counts(waits):
  def make(self, dry_run):
    self.dry_run = dry_run
    self.sleep = waits.append

  return make


@pytest.mark.parametrize("saves", [True, False])
def test_stop_ends_a_job_for_good(saves, cloud, capsys):
  """The job saves, unless it has only begun and TERM ends it."""
  cloud(states=[["ACTIVE"]])
  handler = "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(75))); "
  program = (
    f"import os, signal, sys, time; {handler * saves}"
    "print('up', flush=True); open(os.path.expanduser('~/up'), 'w'); time.sleep(30)"
  )
  codes = []
  thread = threading.Thread(target=lambda: codes.append(start(program=program)))
  thread.start()
  while len(list(cloud.folder.glob("host-*/up"))) < 2:
    time.sleep(0.05)
  assert start(action="stop") == 0
  thread.join(20)
  assert codes == [75]
  assert all(("saved" in log) == saves for log in host_files(cloud, "log"))
  assert "was stopped" in capsys.readouterr().err


def test_no_shell_reads_arguments_and_no_secret_is_printed(cloud, capsys, monkeypatch, tmp_path):
  calls = cloud()
  monkeypatch.setenv("HF_TOKEN", "s3cr3t'; touch pwned #")
  arguments = ["--x=$(touch pwned)", "'; touch pwned; '", "a b", "`touch pwned`", "--api_key=hush"]
  program = "import json, os, sys; print(json.dumps([sys.argv[2:], os.environ['HF_TOKEN']]))"
  assert start("--env=HF_TOKEN", program=program, arguments=arguments) == 0
  logged = [json.loads(log.splitlines()[-1]) for log in host_files(cloud, "log")]
  assert logged == [[arguments, "s3cr3t'; touch pwned #"]] * 2
  assert not list(tmp_path.rglob("pwned"))
  out = "".join(capsys.readouterr())
  assert "s3cr3t" not in out
  assert all("s3cr3t" not in json.dumps(call) for call in calls("tpu-vm", "ssh"))
  train = ("--", "python", "x.py", WORKDIR, *arguments)
  assert tpu_vm.main(["start", "--dry_run", *FLAGS, "--env=HF_TOKEN", *train]) == 0
  out = "".join(capsys.readouterr())
  assert "s3cr3t" not in out
  assert "hush" not in out
  assert "HF_TOKEN=***" in out
  for command in (
    "queued-resources create",
    "tpu-vm scp",
    "tpu-vm ssh",
    "control.sh start",
    "launch.preflight",
  ):
    assert command in out, command


@pytest.mark.parametrize(
  "kind, hosts",
  [
    ("v5litepod-8", 1),
    ("v5litepod-64", 16),
    ("v6e-256", 64),
    ("v4-8", 1),
    ("v4-64", 8),
    ("v5p-128", 16),
    ("v3-32", 4),
  ],
)
def test_a_dry_run_prints_the_commands_of_every_host(kind, hosts, capsys):
  flags = ["--project=p", "--zone=z", f"--accelerator_type={kind}", "--dry_run"]
  assert tpu_vm.main(["start", *flags, "--", "python", "x.py", WORKDIR]) == 0
  out, err = capsys.readouterr()
  assert f"runs on {hosts} hosts" in err
  assert f"--worker={hosts - 1} " in out
  assert f"--worker={hosts} " not in out
  assert "project'[tpu]'" in out


@pytest.mark.parametrize("version, source", [("3.10", "uv"), ("3.11", "venv"), ("3.12", "venv")])
def test_an_image_with_an_old_python_gets_a_new_one(version, source, tmp_path):
  """The installation script runs with programs that only log their arguments."""
  new = version != "3.10"
  programs = tmp_path / "bin"
  venv = tmp_path / "venv"
  programs.mkdir()
  installer = (
    f'mkdir -p {venv}/bin; cp {programs}/inside {venv}/bin/python; echo "$*" >> {tmp_path}/made'
  )
  (programs / "inside").write_text(f'#!/bin/bash\necho "$*" >> {tmp_path}/installed\n')
  (programs / "python3").write_text(
    f'#!/bin/bash\ncase "$*" in -c*) exit {int(not new)} ;; *venv*) {installer} ;; *) echo "$*" >> '
    f"{tmp_path}/made ;; esac\n"
  )
  for name in ("python3.11", "python3.12", "python3.13"):  # not this machine's
    (programs / name).write_text("#!/bin/bash\nexit 1\n")
  for program in programs.iterdir():
    program.chmod(0o755)
  script = commands.install_lines("tpu,gcs", "project", str(venv))
  for _ in range(2):  # the second time the environment is there
    env = {"PATH": f"{programs}:/bin", "HOME": str(tmp_path)}
    process = subprocess.run(
      ["/bin/bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
  installer_calls = (tmp_path / "made").read_text().splitlines()
  assert len(installer_calls) == (1 if new else 2)
  assert source in installer_calls[-1] and ("uv" in installer_calls[-1]) != new
  assert (tmp_path / "installed").read_text().splitlines() == [
    "-m pip install --quiet -c project/constraints.txt -e project[tpu,gcs]"
  ] * 2


def test_several_slices_are_requested_as_one_resource(cloud, capsys):
  calls = cloud(states=[["ACTIVE"]], hosts=1)
  assert start("--slices=2") == 0
  (created,) = calls("queued-resources", "create")
  assert {"--node-count=2", "--node-prefix=t5-base-506d7fdd"} <= set(created)
  assert {arguments[4] for arguments in calls("tpu-vm", "ssh")} == {
    "t5-base-506d7fdd-0",
    "t5-base-506d7fdd-1",
  }


def test_elastic_slices_are_requested_and_replaced_one_by_one(cloud, capsys, monkeypatch):
  """The slice that is taken away is replaced while the other trains; all are deleted at the end."""
  states = {"0": [["ACTIVE"]], "1": [["ACTIVE"] * 8 + ["SUSPENDED"], ["ACTIVE"]]}
  calls = cloud(states=states, hosts=2)
  done = cloud.folder / "done"
  # In place of launch/member.py, which the empty project of these tests does not have.
  program = (
    "import os, sys, time; print(sys.argv[1:], len(os.environ['T5X_LIKE_JOB_KEY']), flush=True); "
    f"[time.sleep(0.1) for _ in range(2000) if not os.path.exists({str(done)!r})]"
  )
  member = commands.quote("python", "-c", program)
  monkeypatch.setattr(commands, "member_line", lambda *_: member)
  flags = ("--slices=2", "--least_slices=1")
  codes = []
  thread = threading.Thread(target=lambda: codes.append(start(*flags, keep=False)))
  thread.start()
  deadline = time.monotonic() + 120
  while not (cloud.folder / "calls.jsonl").exists():
    time.sleep(0.1)
  while len(calls("queued-resources", "create")) < 3 and time.monotonic() < deadline:
    time.sleep(0.1)
  while len(host_files(cloud, "log")) < 4 and time.monotonic() < deadline:
    time.sleep(0.1)
  assert start(*flags, action="status") == 0
  logs = host_files(cloud, "log")
  keys = set(host_files(cloud, "key"))
  workers = host_files(cloud, "worker")
  done.touch()
  thread.join(120)
  assert codes == [0]
  created = [arguments[4] for arguments in calls("queued-resources", "create")]
  deleted = [arguments[4] for arguments in calls("queued-resources", "delete")]
  name = "t5-base-506d7fdd"
  assert sorted(created) == [f"{name}-0", f"{name}-1", f"{name}-1"]
  assert deleted[0] == f"{name}-1"
  assert sorted(deleted[1:]) == [f"{name}-0", f"{name}-1"]
  assert not read_requests(cloud)
  assert len(logs) == 4
  assert len(keys) == 1  # all hosts can join
  assert len(keys.pop()) == 32
  assert [worker.strip() for worker in workers] == ["0", "1"] * 2
  out, err = capsys.readouterr()
  assert f"{name}-1 is suspended" in err
  assert "running" in out


def test_a_dry_run_of_elastic_slices_prints_every_request(capsys):
  flags = ("--slices=3", "--least_slices=2", "--dry_run")
  train = ("--", "python", "x.py", "--workdir=gs://bucket/run")
  assert tpu_vm.main(["start", *FLAGS, *flags, *train]) == 0
  out = capsys.readouterr().out
  for slice_ in range(3):
    assert f"--slice={slice_} " in out
  assert out.count("queued-resources create") == 3
  assert "--least_slices=2" in out
  assert "--node-count" not in out
  assert "--meeting=gs://bucket/run/elastic" in out


SCRIPT = ("--", "python", "x.py", WORKDIR)
RECIPE = (*TRAIN, WORKDIR, "--config=configs/t5/base.py")


@pytest.mark.parametrize(
  "flags, message",
  [
    ((), "--workdir"),
    (("--", "python", "x.py", "--workdir=/tmp/run"), "gs://"),
    (("--accelerator_type=v5e", *SCRIPT), "--accelerator_type=v5e"),
    (("--slices=0", *SCRIPT), "--slices=0"),
    (("--slices=2", "--least_slices=3", *SCRIPT), "--least_slices=3: expected 1 to --slices=2"),
    (("--name=Bad_Name", *SCRIPT), "--name=Bad_Name"),
    (("--env=NO_SUCH_VARIABLE", *SCRIPT), "NO_SUCH_VARIABLE"),
    (("--requests=0", *SCRIPT), "--requests=0"),
    (("--budget=9", *SCRIPT), "--budget=9: needs the price of the chips"),
    (("--budget=none", *SCRIPT), "--budget"),
    (("--deadline=2027-01-01", *SCRIPT), "expected a date and a time"),
    (("--keep", "--deadline=2099-01-01T00:00", *SCRIPT), "--keep"),
    (("--max_hours=soon", *SCRIPT), "--max_hours"),
    (("--max_hours=nan", *SCRIPT), "--max_hours"),
    ((*TRAIN, WORKDIR, "--config=configs/llama/8bb.py"), "did you mean 'configs/llama/8b.py'"),
    ((*TRAIN, WORKDIR, "--config=/tmp/recipe.py"), "put the recipe into configs/"),
    ((*RECIPE, "--config.total_stepz=3"), "total_steps"),
    ((*RECIPE, "--config.optimizer.name=adamx"), "adamw"),
    ((*RECIPE, "--steps=3"), "--steps=3: unknown argument"),
  ],
)
def test_bad_flags_are_refused_in_one_line(flags, message, capsys):
  assert tpu_vm.main(["start", *FLAGS, *flags]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert message in line
