"""Train on one or several slices of Cloud TPU VMs through queued resources.

  python launch/tpu_vm.py start --project=P --zone=us-west4-a --accelerator_type=v5litepod-64 \\
    --runtime_version=v2-alpha-tpuv5-lite --spot -- \\
    python -m t5x_like.train --config=configs/llama/8b.py --workdir=gs://bucket/llama

`start` checks the train command, requests the slice, waits for it and copies this project to every
host. It checks devices, links and bucket (launch/preflight.py), starts the command on all hosts and
watches it. It uses existing resources, so running the same command again continues the run: after
^C, after a crash of this machine and after a preemption. The launcher requests a preempted slice
again, repeats a failed request up to `--requests` times, and restarts a failed run up to
`--restarts` times unless the exit code says that this is useless (docs/reference/exit-codes.md).

A slice is billed as long as it exists. It is deleted when the job has finished, failed finally or
was stopped. It is also deleted `--max_hours` after its creation, after a save, and earlier if
`--budget` or `--deadline` demand it (launch/spending.py). `--keep` prevents all of this. Without a
launcher, after ^C or a crash of this machine, the first host deletes the slice an hour after the
job's end or at the end of its lifetime, if the service account of the VM has the permission. `stop`
lets the run save, waits for its end and deletes the slice. `delete` deletes it at once. `status`
and `logs` change nothing. All actions take the same flags.

With --slices=N, all slices are one request: they come and go together. With --least_slices=M, each
is a request of its own: the job trains on M of them or more, and a slice that the cloud takes away
is requested again and joins when it is there (launch/tpu_slices.py, launch/member.py).
"""

import datetime
import io
import math
import pathlib
import shlex
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

if __package__ in (None, ""):
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from launch import commands, spending
from launch.commands import EXIT_NO_ANSWER, Job, Shell, last_line, log, parse_answer
from launch.tpu_slices import SUSPENDED_STATES
from t5x_like.errors import (
  EXIT_PREEMPTED,
  EXIT_TRANSIENT,
  TransientError,
  UserError,
  handle_errors,
  retry,
)
from t5x_like.terminal_text import escape_controls

_COPIED_FILES = (
  "t5x_like",
  "configs",
  "launch",
  "tools",
  "pyproject.toml",
  "setup.py",
  "LICENSE",
  "README.md",
  "requirements.txt",
  "constraints.txt",
)
# Exit codes of ssh without a connection and with one that hangs.
_UNREACHABLE = (255, EXIT_NO_ANSWER)
# Codes of google.rpc with which the same request would fail again: invalid, not found, denied, …
_PERMANENT_CODES = (3, 5, 7, 9, 11, 12, 16)
POLL_SECONDS = 30.0
_RETRY_SECONDS = 5.0
_LONGEST_WAIT_SECONDS = 1800.0  # between requests
_SSH_SECONDS = 120.0
_COPY_SECONDS = 600.0
_INSTALL_SECONDS = 1800.0
_DELETE_SECONDS = 1800.0
_GUARD_POLL_SECONDS = 60
_GUARD_WAIT_SECONDS = 3600  # time after the end of the job for the launcher to delete the slice
GRACE_SECONDS = 900.0  # time for a save at the end of the lifetime
EXIT_INTERRUPTED = 130
WORKER = "%WORKER%"  # in a command for hosts: the number of the host in its slice
# Billed after the order to save, until the cloud has deleted the slices.
_RESERVE_SECONDS = GRACE_SECONDS + 600.0
_LEAST_POLLS = 10  # while waiting for slices with a short lifetime
LIFETIME_MESSAGE = "{:g} hours are over (--max_hours), or --budget or --deadline is reached"
_LOGS = pathlib.Path("~/.cache/t5x_like/launch")
# The script that controls the job on a host: `control.sh start | state | stop | end | guard | log`.
# The job is a process group. TERM makes it save and end, and its exit code is kept. After `stop`,
# a job that ended before it could save is not restarted either.
CONTROL = """#!/bin/bash
cd "$(dirname "$0")" || exit 1
alive() { [ ! -f exit_code ] && [ -f pid ] && kill -0 -- "-$(cat pid)" 2>/dev/null; }
case "$1" in
  start)
    if alive; then echo running; exit 0; fi
    rm -f exit_code stopped
    setsid bash run.sh >> log 2>&1 < /dev/null &
    echo $! > pid
    echo started ;;
  state)
    if [ -f exit_code ]; then
      code=$(cat exit_code)
      if [ -f stopped ] && [ "$code" -gt 128 ]; then code=75; fi
      echo "exit $code"
    elif alive; then echo running; else echo lost; fi ;;
  stop | end)
    if ! alive; then echo "not running"; exit 0; fi
    if [ "$1" = stop ]; then touch stopped; fi
    kill -TERM -- "-$(cat pid)"
    echo stopping ;;
  guard) setsid bash guard.sh >> guard.log 2>&1 < /dev/null & ;;
  log) tail -n "${2:-100}" log ;;
esac
"""
# Runs on the first host and deletes the slice if no launcher does. Only the newest guard is active.
_GUARD = """#!/bin/bash
cd "$(dirname "$0")" || exit 1
echo $$ > guard.pid
last=$(($(date +%s) + {lifetime}))
ended=
while sleep {poll}; do
  if [ "$(cat guard.pid)" != $$ ]; then exit 0; fi
  now=$(date +%s)
  if [ -f exit_code ]; then ended=${{ended:-$now}}; else ended=; fi
  if [ "$now" -ge "$last" ] && [ -z "$ended" ]; then
    bash control.sh stop
    for second in $(seq {grace}); do
      if [ -f exit_code ]; then break; fi
      sleep 1
    done
  elif [ -z "$ended" ] || [ $((now - ended)) -lt {wait} ]; then
    continue
  fi
  {delete} && exit 0
done
"""


class Deleted(Exception):
  """Reports that another command has deleted the slice."""


class Expired(Exception):
  """Reports that there were no slices before the deadline, or within the lifetime of slices."""


@dataclass
class Slices:
  """The queued resource of a job and its TPU VMs.

  Attributes:
    name: name of the job, of the queued resource and of the TPU VMs, which have a number appended
      if there are several slices.
    args: flags of the launcher.
    shell: runs gcloud.
    exists: whether the queued resource existed at the last query.
    deadline: end of the slices' lifetime in seconds of `time.monotonic`; before they were first
      active, that of --deadline, or None.
    has_begun: whether the slices have been active.
  """

  name: str
  args: object
  shell: Shell
  exists: bool = False
  deadline: float | None = None
  has_begun: bool = False

  @property
  def nodes(self) -> list[str]:
    """Names of the TPU VMs, one for each slice."""
    if self.args.slices == 1:
      return [self.name]
    return [f"{self.name}-{index}" for index in range(self.args.slices)]

  def gcloud(self, *words: str, is_query: bool = False, seconds: float | None = None):
    """Run `gcloud compute tpus` with the words and the flags of project and zone."""
    return self.shell.run(self._command(*words), is_query=is_query, seconds=seconds)

  def _command(self, *words: str) -> list[str]:
    location_flags = (f"--project={self.args.project}", f"--zone={self.args.zone}")
    return ["gcloud", "compute", "tpus", *words, *location_flags, "--quiet"]

  def state(self) -> str | None:
    """Return the state of the queued resource, such as ACTIVE, or None if there is none.

    Transient errors are retried.
    """
    return self.describe().get("state")

  def describe(self) -> dict:
    """Return the state of the queued resource, or {} if there is none.

    The keys are `state`, `reason`, `code` and `is_permanent`: the same request would fail again.
    Transient errors are retried.
    """
    answer = retry(self._describe, self.name)
    self.exists = bool(answer)
    return answer

  def _describe(self) -> dict:
    done = self.gcloud("queued-resources", "describe", self.name, "--format=json", is_query=True)
    if done.returncode:
      if "NOT_FOUND" in done.stderr or "not found" in done.stderr:
        return {}
      raise _failure("describe", done.stderr)
    details = parse_answer(done, dict, "gcloud describe").get("state")
    state = details if isinstance(details, dict) else {}
    default = "ACTIVE" if self.shell.dry_run else "UNKNOWN"
    answer = {"state": str(state.get("state", default))} | _error_of(state)
    return answer | {"is_permanent": answer.get("code") in _PERMANENT_CODES}

  def ensure(self) -> None:
    """Request the slices unless they exist, wait for them, and replace preempted ones.

    Raises:
      UserError, TransientError: the requests failed; the message has the reason of the last one.
      Deleted: another command has deleted the request.
      Expired: there were no slices before the deadline or within --max_hours.
    """
    if self.shell.dry_run:
      self.state()
      self.create()
      return
    failures = 0
    wait = POLL_SECONDS
    printed_state = None
    last_time = time.monotonic() + max(3600 * self.args.max_hours, _LEAST_POLLS * POLL_SECONDS)
    while True:
      answer = self.describe()
      state = answer.get("state")
      if state == "ACTIVE":
        break
      if self.is_over() or time.monotonic() > last_time:
        raise Expired(self.name)
      seconds = POLL_SECONDS
      if state is None:
        if printed_state is not None:
          raise Deleted(self.name)
        if not self.create():
          seconds = wait
          wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
      elif state == "FAILED" or state in SUSPENDED_STATES and printed_state is not None:
        failures += 1
        self.delete()
        printed_state = None
        self._count_failure(failures, answer, wait)
        seconds = wait
        wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
      elif state in SUSPENDED_STATES:
        log(f"the slice is {state.lower()}: the cloud took it away; requesting it again")
        self.delete()
        seconds = 0.0
      elif state != printed_state:
        log(f"waiting for {self.args.accelerator_type} in {self.args.zone}: {state.lower()}")
        printed_state = state
      self.shell.sleep(seconds)
    if not self.has_begun:
      self.has_begun = True
      end = time.monotonic() + 3600 * self.args.max_hours - self._age_seconds()
      self.deadline = end if self.deadline is None else min(end, self.deadline)

  def _count_failure(self, failures: int, answer: dict, wait: float) -> None:
    """Print the reason of a failed request, or raise if the request must not be repeated."""
    reason = f"{answer['state'].lower()}: {answer['reason']}"
    if answer.get("is_permanent") or failures >= self.args.requests:
      kind = TransientError if _no_capacity(reason) else UserError
      raise kind(
        f"{self.name}: request {failures} of {self.args.requests}, the last: {reason}; see "
        "--accelerator_type, --runtime_version, --zone and --requests"
      )
    log(f"request {failures} of {self.args.requests}: {reason}; requesting again in {wait:g} s")

  def create(self) -> bool:
    """Request the slices; return whether the cloud accepted the request.

    The cloud refuses a request without capacity.
    """
    if self.args.slices > 1:
      nodes = (f"--node-count={self.args.slices}", f"--node-prefix={self.name}")
    else:
      nodes = (f"--node-id={self.name}",)
    kind = (
      f"--accelerator-type={self.args.accelerator_type}",
      f"--runtime-version={self.args.runtime_version}",
    )
    # The limit keeps a request that no launcher watches any more from being granted days later.
    until = f"--valid-until-duration={math.ceil(3600 * self.args.max_hours)}s"
    spot = ("--spot",) if self.args.spot else ()
    # A call that is interrupted or hangs may have reached the cloud.
    self.exists = True
    done = self.gcloud("queued-resources", "create", self.name, *nodes, *kind, until, *spot)
    if done.returncode and "ALREADY_EXISTS" not in done.stderr:
      self.exists = done.returncode == EXIT_NO_ANSWER
      if _no_capacity(done.stderr):
        log(f"no capacity: {last_line(done.stderr)}; requesting again")
        return False
      raise _failure("create", done.stderr)
    return True

  def delete(self) -> None:
    """Delete the queued resource and its TPU VMs."""
    done = self.gcloud("queued-resources", "delete", self.name, "--force", seconds=_DELETE_SECONDS)
    if done.returncode and "NOT_FOUND" not in done.stderr:
      raise _failure("delete", done.stderr)
    self.exists = False

  def delete_unless_kept(self, code: int) -> int:
    """Delete the slice at the end of its job, except with `--keep`.

    Args:
      code: exit code of the job.

    Returns:
      The exit code of the launcher.
    """
    if self.args.keep:
      log(self.billing_note())
      return code
    try:
      retry(self.delete, self.name)
    except (UserError, TransientError) as error:
      log(f"the slice cannot be deleted: {error}; {self.billing_note()}")
      return code or EXIT_TRANSIENT
    if self.shell.dry_run:
      log(f"{self.name}: nothing was run")
    else:
      log(f"{self.name} is deleted and no longer billed")
    return code

  def billing_note(self) -> str:
    """Return a line that warns of the slice's costs and shows the command that deletes it."""
    command = shlex.join(self._command("queued-resources", "delete", self.name, "--force"))
    return f"{self.name} exists and is billed until it is deleted: {command}"

  def guard(self) -> str:
    """Return the script by which the first host deletes the slice if no launcher does."""
    if self.deadline is None:
      lifetime = 3600 * self.args.max_hours
    else:
      lifetime = self.deadline - time.monotonic()
    return _GUARD.format(
      lifetime=max(0, math.ceil(lifetime)),
      poll=_GUARD_POLL_SECONDS,
      wait=_GUARD_WAIT_SECONDS,
      grace=math.ceil(GRACE_SECONDS),
      delete=commands.quote(
        *self._command("queued-resources", "delete", self.name, "--force", "--async")
      ),
    )

  def _age_seconds(self) -> float:
    """Return the age of the first TPU VM, or 0 if it is not known."""
    done = self.gcloud("tpu-vm", "describe", self.nodes[0], "--format=json", is_query=True)
    if done.returncode:
      return 0.0
    created = parse_answer(done, dict, "gcloud describe").get("createTime")
    try:
      begin = datetime.datetime.fromisoformat(str(created))
      return max(0.0, (datetime.datetime.now(datetime.UTC) - begin).total_seconds())
    except (ValueError, TypeError):  # the text is no time, or has no time zone
      return 0.0

  def is_over(self) -> bool:
    """Return whether the slices' lifetime is over."""
    return self.deadline is not None and time.monotonic() > self.deadline

  def hosts(self) -> list[tuple[str, int]]:
    """Return (TPU VM, worker number) of every host."""
    hosts = []
    for node in self.nodes:
      done = self.gcloud("tpu-vm", "describe", node, "--format=json", is_query=True)
      if done.returncode:
        raise _failure("describe", done.stderr)
      endpoints = parse_answer(done, dict, "gcloud describe").get("networkEndpoints", [{}])
      count = hosts_of(self.args.accelerator_type) if self.shell.dry_run else len(endpoints)
      hosts += [(node, worker) for worker in range(count)]
    return hosts

  def ssh(
    self, hosts: list[tuple[str, int]], command: str, tries: int = 4, seconds: float | None = None
  ) -> dict[tuple[str, int], str]:
    """Run a command on each host and return the outputs.

    Hosts that cannot be reached or that hang are tried again, others are not.

    Args:
      command: `WORKER` in it stands for the number of the host.
      seconds: time limit of a host; default: `_SSH_SECONDS`.

    Raises:
      TransientError: the command failed on a host.
    """

    def words(node: str, worker: int) -> tuple[str, ...]:
      own_command = command.replace(WORKER, str(worker))
      return ("ssh", node, f"--worker={worker}", f"--command={own_command}")

    return self._each(hosts, tries, words, seconds or _SSH_SECONDS)

  def copy(self, hosts: list[tuple[str, int]], files: list[pathlib.Path], folder: str) -> None:
    """Copy files into a folder of each host."""

    def words(node: str, worker: int) -> tuple[str, ...]:
      return ("scp", *map(str, files), f"{node}:{folder}/", f"--worker={worker}")

    self._each(hosts, 4, words, _COPY_SECONDS)

  def _each(self, hosts, tries: int, words, seconds: float) -> dict[tuple[str, int], str]:
    """Run gcloud with `words(node, worker)` for each host at the same time; see `ssh`."""

    def run(host: tuple[str, int]):
      return self.gcloud("tpu-vm", *words(*host), is_query=not self.shell.dry_run, seconds=seconds)

    answers = {}
    remaining = list(hosts)
    for attempt in range(tries):
      with ThreadPoolExecutor(1 if self.shell.dry_run else 32) as pool:
        results = dict(zip(remaining, pool.map(run, remaining)))
      failed = {}
      for host, done in results.items():
        if done.returncode:
          failed[host] = done
        else:
          answers[host] = done.stdout.strip()
      if not failed:
        return answers
      (node, worker), done = next(iter(failed.items()))
      unreachable = [host for host, result in failed.items() if result.returncode in _UNREACHABLE]
      if len(unreachable) < len(failed) or attempt == tries - 1:
        raise TransientError(
          f"worker {worker} of {node}: exit code {done.returncode}: {last_line(done.stderr)}"
        )
      log(f"{len(failed)} of {len(hosts)} hosts cannot be reached; trying them again")
      remaining = unreachable
      self.shell.sleep(_RETRY_SECONDS * 2**attempt)
    return answers


def _error_of(state: dict) -> dict:
  """Return the cloud's `reason` for a state and, if it has an error, the error's `code`."""
  for details in state.values():
    error = details.get("error") if isinstance(details, dict) else None
    if isinstance(error, dict):
      message = last_line(str(error.get("message") or error))
      return {"reason": message, "code": error.get("code")}
  return {"reason": "the cloud gives no reason"}


def hosts_of(accelerator_type: str) -> int:
  """Return the number of hosts of a slice.

  `v5litepod-64` and `v6e-64` count chips; `v4-64` and `v5p-64` count TensorCores, two per chip. A
  host has four chips, or all eight of `v5litepod-8` and `v6e-8`.

  Raises:
    UserError: the type does not end in a number.
  """
  kind, _, size = accelerator_type.rpartition("-")
  if not kind or not size.isdecimal() or not int(size):
    raise UserError(
      f"--accelerator_type={accelerator_type}: expected a kind and a size, such as "
      "v5litepod-64 or v4-64"
    )
  if kind in ("v5litepod", "v6e"):
    return 1 if int(size) <= 8 else -(-int(size) // 4)
  return -(-int(size) // 8)


def install(slices: Slices, job: Job, script: str | None = None, key: str = "") -> None:
  """Copy the project and the job's scripts to every host and install the project.

  Args:
    script: the script of each host; default: the one that trains on these slices alone.
    key: secret of the hosts of an elastic job, which the script reads from the file `key`.
  """
  hosts = slices.hosts()
  folder = f"jobs/{job.name}"
  package = _package()
  with tempfile.TemporaryDirectory() as scratch:
    files = [pathlib.Path(scratch) / name for name in ("run.sh", "control.sh", "install.sh")]
    slices.shell.write(files[0], script or _script(job))
    slices.shell.write(files[1], CONTROL)
    slices.shell.write(
      files[2], commands.install_lines(commands.extras_of(job, "tpu"), "project", "venv")
    )
    tar = pathlib.Path(scratch) / "project.tar.gz"
    if not slices.shell.dry_run:
      tar.write_bytes(package)
    if key:
      files.append(pathlib.Path(scratch) / "key")
      slices.shell.write(files[-1], key)
    prepare = f"mkdir -p {folder}/project && echo none > {folder}/guard.pid"
    slices.ssh(hosts, f"{prepare} && echo {WORKER} > {folder}/worker")
    slices.copy(hosts, [*files, tar], folder)
    if not slices.args.keep:
      guard = pathlib.Path(scratch) / "guard.sh"
      slices.shell.write(guard, slices.guard())
      slices.copy(hosts[:1], [guard], folder)
  unpack = f"cd {folder} && tar -xzf project.tar.gz -C project && bash install.sh"
  slices.ssh(hosts, unpack, tries=2, seconds=_INSTALL_SECONDS)


def _script(job: Job) -> str:
  """Return the script of each host: it checks the host, trains, and writes the exit code."""
  train = f"{commands.preflight_line(job, 'tpu')} && {commands.quote(*job.command)}"
  return host_script(job, [commands.job_key_line(), train])


def host_script(job: Job, train_lines: list[str]) -> str:
  """Return the script of a host, which writes the exit code of the last of the lines."""
  lines = [
    "#!/bin/bash",
    'jobs="$(cd "$(dirname "$0")" && pwd)"',
    'export PATH="$jobs/venv/bin:$PATH"',
    *commands.export_lines(job.environment),
    "trap : TERM  # the command receives TERM too, saves and ends; its exit code is kept",
    'cd "$jobs/project"',
    *train_lines,
    'echo $? > "$jobs/exit_code"',
  ]
  return "\n".join(lines) + "\n"


def _package() -> bytes:
  """Return the project as a compressed archive."""
  archive = io.BytesIO()
  with tarfile.open(fileobj=archive, mode="w:gz") as tar:
    for pattern in _COPIED_FILES:
      for path in sorted(commands.ROOT.glob(pattern)):
        tar.add(path, path.name, filter=lambda info: None if "__pycache__" in info.name else info)
  return archive.getvalue()


def train(slices: Slices, job: Job) -> int:
  """Start the job on all hosts, watch it until it ends, and return its exit code.

  At the end of the slice's lifetime the run is signalled to save and end.

  Raises:
    Deleted: another command has deleted the slice.
  """
  hosts = slices.hosts()
  control = f"bash jobs/{job.name}/control.sh"
  slices.ssh(hosts, f"{control} start")
  log(f"{job.name} runs on {len(hosts)} hosts; ^C leaves it running, and billed")
  if not slices.args.keep:
    slices.ssh(hosts[:1], f"{control} guard")
    log(
      f"the slice is deleted when the job ends, and after {slices.args.max_hours:g} hours "
      "(--keep, --max_hours)"
    )
  give_up_time = math.inf
  while not slices.shell.dry_run:
    slices.shell.sleep(POLL_SECONDS)
    state = slices.state()
    if state is None:
      raise Deleted(slices.name)
    if state != "ACTIVE":
      return EXIT_PREEMPTED
    codes = read_codes(slices, hosts, control)
    if all(code is not None for code in codes):
      return commands.choose_exit_code(codes)
    if any(codes):  # a host failed, and the others would wait for it forever
      slices.ssh(hosts, f"{control} end")
    if slices.is_over() and not slices.args.keep and math.isinf(give_up_time):
      log(f"{LIFETIME_MESSAGE.format(slices.args.max_hours)}; the run saves and ends")
      slices.ssh(hosts, f"{control} stop")
      give_up_time = time.monotonic() + GRACE_SECONDS
    if time.monotonic() > give_up_time:
      log(f"the run has not ended within {GRACE_SECONDS:g} s")
      return EXIT_PREEMPTED
  return 0


def read_codes(slices: Slices, hosts: list[tuple[str, int]], control: str) -> list[int | None]:
  """Return the job's exit code on each host; None where the job still runs."""
  states = slices.ssh(hosts, f"{control} state")
  return [_parse_exit_code(state) for state in states.values()]


def _parse_exit_code(state: str) -> int | None:
  """Return the exit code of a host's state: 75 for `exit 75`, None for `running`.

  A process that vanished is a transient fault of its host.
  """
  if not state:
    return EXIT_TRANSIENT
  name, _, code = state.splitlines()[-1].partition(" ")
  if name == "running":
    return None
  if name == "exit" and code.isdecimal():
    return int(code)
  return EXIT_TRANSIENT


def start(slices: Slices, job: Job, restarts: int) -> int:
  """Train to the end, delete the slice and return the exit code.

  Preemptions, and up to `restarts` failures, are followed by another start.
  """
  try:
    code = _train_to_the_end(slices, job, restarts)
  except Deleted:
    log(
      f"{job.name} was stopped: another command has deleted the slice; run the same command to "
      "request a new one"
    )
    return EXIT_PREEMPTED
  except KeyboardInterrupt:
    log(f"no longer watching {job.name}; run the same command to watch it again")
    if slices.exists:
      log(slices.billing_note())
    if slices.exists and not slices.args.keep:
      log(
        "once the job runs, the first host deletes the slice an hour after its end, if its "
        "service account may"
      )
    return EXIT_INTERRUPTED
  except Exception:
    if slices.exists:
      log(slices.billing_note())
    raise
  if slices.has_begun and not slices.args.keep and not slices.shell.dry_run:
    save_logs(slices, job)
  return slices.delete_unless_kept(code)


def _train_to_the_end(slices: Slices, job: Job, restarts: int) -> int:
  """Train until the job succeeds, fails finally or is stopped; return its exit code."""
  failures = 0
  preemptions = 0
  while True:
    try:
      slices.ensure()
    except Expired:
      log(f"{job.name}: no slices within {slices.args.max_hours:g} hours or before --deadline")
      return EXIT_PREEMPTED
    try:
      install(slices, job)
      code = train(slices, job)
    except TransientError as error:
      log(str(error))
      state = slices.state()
      if state is None:
        raise Deleted(slices.name) from None
      code = EXIT_TRANSIENT if state == "ACTIVE" else EXIT_PREEMPTED
    counts = f"({failures} failures, {preemptions} preemptions before)"
    if code == 0:
      if slices.shell.dry_run:
        log(f"{job.name}: nothing was run")
      else:
        log(f"{job.name} has finished {counts}")
      return 0
    if code == EXIT_PREEMPTED and not slices.is_over() and slices.state() != "ACTIVE":
      preemptions += 1
      log(f"preempted {counts}")
      continue
    if code == EXIT_PREEMPTED:
      log(
        f"{job.name} was stopped; run the same command to continue from the last saved step "
        f"{counts}"
      )
      return code
    failures += 1
    if not commands.is_restarted(code) or failures > restarts or slices.is_over():
      log(f"{job.name} failed with exit code {code} and is not started again {counts}")
      return code
    log(f"{job.name} failed with exit code {code}; restart {failures} of {restarts}")


def save_logs(slices: Slices, job: Job) -> None:
  """Copy the last lines of the hosts' logs to this machine before the hosts are deleted."""
  folder = _LOGS.expanduser() / job.name
  try:
    logs = slices.ssh(slices.hosts(), f"bash jobs/{job.name}/control.sh log 2000", tries=1)
    folder.mkdir(parents=True, exist_ok=True)
    for (node, worker), text in logs.items():
      slices.shell.write(folder / f"{node}-{worker}.log", text + "\n")
  except (TransientError, UserError, OSError) as error:
    log(f"the hosts' logs cannot be copied: {error}")
    return
  log(f"the hosts' logs are in {folder}")


def stop(slices: Slices, job: Job) -> int:
  """Let the run save and end, then delete the slice; return the exit code."""
  control = f"bash jobs/{job.name}/control.sh"
  hosts = slices.hosts()
  for (node, worker), answer in slices.ssh(hosts, f"{control} stop").items():
    print(f"{node} worker {worker}: {escape_controls(answer)}", flush=True)
  latest = time.monotonic() + GRACE_SECONDS
  while not slices.shell.dry_run:
    if slices.state() != "ACTIVE":
      log(f"{job.name} has ended, and its slice with it")
      return 0
    try:
      codes = read_codes(slices, hosts, control)
    except TransientError:
      if slices.state() is not None:
        raise
      continue
    if all(code is not None for code in codes):
      break
    if time.monotonic() > latest:
      log(f"the run has not ended within {GRACE_SECONDS:g} s; {slices.billing_note()}")
      return EXIT_TRANSIENT
    slices.shell.sleep(POLL_SECONDS)
  return slices.delete_unless_kept(0)


def _act_without_slice(slices: Slices, job: Job, state: str | None) -> int:
  """Perform `status`, `logs` or `stop` for a job whose slice is not active."""
  print(f"{job.name}: {'no such slice' if state is None else state.lower()}")
  folder = _LOGS.expanduser() / job.name
  if slices.args.action == "logs" and folder.is_dir():
    print(f"logs of earlier slices are in {folder}")
  if slices.args.action == "stop" and state is not None:  # The request may still be granted.
    return slices.delete_unless_kept(0)
  return 0


def _no_capacity(text: str) -> bool:
  """Return whether a message of gcloud reports a lack of capacity."""
  text = text.lower()
  if "quota" in text:
    return False
  return any(phrase in text for phrase in ("capacity", "stockout", "resource_exhausted"))


def _failure(action: str, text: str) -> Exception:
  """Return the error for a message of gcloud."""
  message = last_line(text)
  lower_text = text.lower()
  if "quota" in lower_text:
    return UserError(
      f"gcloud {action}: {message}; request more quota, or give another --zone or "
      "--accelerator_type"
    )
  login_phrases = (
    "permission_denied",
    "unauthenticated",
    "not currently have an active account",
  )
  if any(phrase in lower_text for phrase in login_phrases):
    return UserError(
      f"gcloud {action}: {message}; log in with gcloud auth login, and see that the project is "
      "yours"
    )
  flag_phrases = ("invalid_argument", "invalid choice", "unrecognized arguments")
  if any(phrase in lower_text for phrase in flag_phrases):
    return UserError(
      f"gcloud {action}: {message}; see --accelerator_type, --runtime_version and --zone"
    )
  return TransientError(f"gcloud {action}: {message}")


def _make_parser() -> commands.Parser:
  parser = commands.make_parser(__doc__, ("start", "status", "logs", "stop", "delete"))
  parser.add_argument("--project", required=True, help="cloud project")
  parser.add_argument("--zone", required=True, help="zone, such as us-west4-a")
  parser.add_argument(
    "--accelerator_type",
    default="v5litepod-16",
    help="kind and size of a slice, such as v4-64, v5litepod-64, v5p-128, v6e-64",
  )
  parser.add_argument(
    "--runtime_version", default="v2-alpha-tpuv5-lite", help="version of the VM's image"
  )
  parser.add_argument("--slices", type=int, default=1, help="number of slices (default: 1)")
  parser.add_argument(
    "--least_slices",
    type=int,
    help="fewest slices that train while others are lost or not there yet (default: all)",
  )
  parser.add_argument(
    "--spot", action="store_true", help="use spot capacity, which is cheaper and may be preempted"
  )
  parser.add_argument(
    "--restarts",
    type=int,
    default=10,
    help="number of restarts after failures; preemptions do not count (default: 10)",
  )
  parser.add_argument(
    "--requests",
    type=int,
    default=8,
    help="number of requests for a slice that may fail one after another (default: 8)",
  )
  parser.add_argument(
    "--max_hours",
    type=commands.parse_hours,
    default=168.0,
    help="hours from the creation of a slice to its deletion, after a save (default: 168)",
  )
  parser.add_argument(
    "--keep", action="store_true", help="do not delete the slice, which is billed, after the job"
  )
  spending.add_flags(parser)
  return parser


def _limit(args) -> float | None:
  """Shorten the lifetime to the budget; return the deadline in seconds of `time.monotonic`.

  Raises:
    UserError: the budget or the deadline leaves no time, or --keep would exceed it.
  """
  if args.keep and spending.is_limited(args):
    raise UserError("--keep: the slice would be billed after the end; leave it out with a limit")
  chips = spending.chips_of_tpu(args.accelerator_type, args.slices)
  limit = spending.set_limit(args, chips, args.max_hours, _RESERVE_SECONDS)
  args.max_hours = limit.hours
  if limit.until is None:
    return None
  return time.monotonic() + limit.until - time.time()


@handle_errors
def main(argv: list[str] | None = None) -> int:
  args = commands.parse(_make_parser(), argv)
  for name in ("slices", "requests"):
    if getattr(args, name) < 1:
      raise UserError(f"--{name}={getattr(args, name)}: expected at least 1")
  commands.check_least_slices(args)
  hosts_of(args.accelerator_type)
  job = commands.read_job(args)
  commands.check_remote(job, "the slice")
  folders = [name for name in _COPIED_FILES if (commands.ROOT / name).is_dir()]
  commands.check_train_command(args, folders=folders)
  shell = Shell(args.dry_run)
  deadline = _limit(args) if args.action == "start" else None
  if args.least_slices is not None and args.slices > 1:
    from launch import tpu_elastic  # uses this module

    return tpu_elastic.run(args, job, shell, deadline)
  slices = Slices(job.name, args, shell, deadline=deadline)
  control = f"bash jobs/{job.name}/control.sh"
  if args.action == "start":
    return start(slices, job, args.restarts)
  if args.action == "delete":
    slices.delete()
    return 0
  state = slices.state()
  if state != "ACTIVE" and not args.dry_run:
    return _act_without_slice(slices, job, state)
  if args.action == "stop":
    return stop(slices, job)
  hosts = slices.hosts()
  if args.action == "logs":
    print(escape_controls(slices.ssh(hosts[:1], f"{control} log 200")[hosts[0]]))
    return 0
  for (node, worker), answer in slices.ssh(hosts, f"{control} state").items():
    print(f"{node} worker {worker}: {escape_controls(answer)}")
  log(slices.billing_note())
  return 0


if __name__ == "__main__":
  sys.exit(main())
