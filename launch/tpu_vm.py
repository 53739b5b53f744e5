"""Trains on Cloud TPU VMs through queued resources, spot or not, one slice or several.

  python launch/tpu_vm.py start --project=P --zone=us-west4-a --accelerator_type=v5litepod-64 \\
    --runtime_version=v2-alpha-tpuv5-lite --spot -- \\
    python -m t5x_like.train --config=configs/llama/8b.py --workdir=gs://bucket/llama

`start` asks for the slice, waits for it, copies this project to every host, checks devices, links and bucket
(launch/preflight.py), starts the command on all hosts and watches it. Existing resources are used, so the same
command again goes on: after ^C, after a crash of this machine, after a preemption. A slice that is taken away is asked
for again; a run that fails is started again up to `--restarts` times, unless its exit code says that this is of no use
(docs/reference/exit-codes.md). `status`, `logs` and `stop` (which lets the run save) take the same flags; `delete`
gives the slice back.
"""

import io
import json
import pathlib
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

if __package__ in (None, ""):
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from launch import commands
from launch.commands import Job, Shell, last_line, say
from t5x_like.errors import EXIT_PREEMPTED, EXIT_TRANSIENT, TransientError, UserError, door, retried

_SHIPPED = (
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
_ENDED = ("FAILED", "SUSPENDED", "SUSPENDING")
_SSH_FAILED = 255
_POLL_SECONDS = 30.0
_RETRY_SECONDS = 5.0
# What the hosts run: `control.sh start | state | stop | end | log`. The job is a process group, which TERM asks to save
# and end; its exit code is kept. After `stop`, one that ended before it could save does not come back either.
_CONTROL = """#!/bin/bash
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
  log) tail -n "${2:-100}" log ;;
esac
"""


@dataclass
class Slices:
  """The queued resource of a job and the TPU VMs it becomes.

  Attributes:
    name: of the job, the queued resource and (with a number, for several slices) the TPU VMs.
  """

  name: str
  args: object
  shell: Shell

  @property
  def nodes(self) -> list[str]:
    return [self.name] if self.args.slices == 1 else [f"{self.name}-{i}" for i in range(self.args.slices)]

  def gcloud(self, *words: str, asks: bool = False):
    place = (f"--project={self.args.project}", f"--zone={self.args.zone}")
    return self.shell.run(["gcloud", "compute", "tpus", *words, *place, "--quiet"], asks=asks)

  def state(self) -> str | None:
    """Return the state of the queued resource, such as ACTIVE; None if there is none. Retries transient errors."""
    return retried(self._state, self.name)

  def _state(self) -> str | None:
    done = self.gcloud("queued-resources", "describe", self.name, "--format=json", asks=True)
    if done.returncode:
      if "NOT_FOUND" in done.stderr or "not found" in done.stderr:
        return None
      raise _failure("describe", done.stderr)
    return json.loads(done.stdout or "{}").get("state", {}).get("state", "ACTIVE" if self.shell.dry_run else "UNKNOWN")

  def ensure(self) -> None:
    """Ask for the slices unless they are there, and wait for them; replace those that were taken away."""
    if self.shell.dry_run:
      self.state()
      return self._create()
    said = None
    while (state := self.state()) != "ACTIVE":
      if state is None:
        self._create()
      elif state in _ENDED:
        say(f"the slice is {state.lower()}: taken away, or never made; asking again")
        self.delete()
      elif state != said:
        say(f"waiting for {self.args.accelerator_type} in {self.args.zone}: {state.lower()}")
      said = state
      self.shell.sleep(_POLL_SECONDS)

  def _create(self) -> None:
    several = self.args.slices > 1
    nodes = (
      (f"--node-count={self.args.slices}", f"--node-prefix={self.name}") if several else (f"--node-id={self.name}",)
    )
    kind = (f"--accelerator-type={self.args.accelerator_type}", f"--runtime-version={self.args.runtime_version}")
    done = self.gcloud("queued-resources", "create", self.name, *nodes, *kind, *("--spot",) * self.args.spot)
    if done.returncode and "ALREADY_EXISTS" not in done.stderr:
      if _no_capacity(done.stderr):
        say(f"no capacity: {last_line(done.stderr)}; asking again")
        return
      raise _failure("create", done.stderr)

  def delete(self) -> None:
    done = self.gcloud("queued-resources", "delete", self.name, "--force")
    if done.returncode and "NOT_FOUND" not in done.stderr:
      raise _failure("delete", done.stderr)

  def hosts(self) -> list[tuple[str, int]]:
    """Return (TPU VM, number of the worker) of every host."""
    found = []
    for node in self.nodes:
      done = self.gcloud("tpu-vm", "describe", node, "--format=json", asks=True)
      if done.returncode:
        raise _failure("describe", done.stderr)
      told = json.loads(done.stdout or "{}").get("networkEndpoints", [{}])
      count = hosts_of(self.args.accelerator_type) if self.shell.dry_run else len(told)
      found += [(node, worker) for worker in range(count)]
    return found

  def ssh(self, hosts: list[tuple[str, int]], command: str, tries: int = 4) -> dict[tuple[str, int], str]:
    """Run a command on each host and return the answers; only hosts out of reach are tried again.

    Raises:
      TransientError: names a host that failed, with its message.
    """
    return self._each(hosts, tries, lambda node, worker: ("ssh", node, f"--worker={worker}", f"--command={command}"))

  def copy(self, hosts: list[tuple[str, int]], files: list[pathlib.Path], folder: str) -> None:
    self._each(hosts, 4, lambda node, worker: ("scp", *map(str, files), f"{node}:{folder}/", f"--worker={worker}"))

  def _each(self, hosts, tries: int, words) -> dict[tuple[str, int], str]:
    answers, left = {}, list(hosts)
    for attempt in range(tries):
      with ThreadPoolExecutor(1 if self.shell.dry_run else 32) as pool:
        results = list(pool.map(lambda host: self.gcloud("tpu-vm", *words(*host), asks=not self.shell.dry_run), left))
      failed = {host: done for host, done in zip(left, results) if done.returncode}
      answers |= {host: done.stdout.strip() for host, done in zip(left, results) if not done.returncode}
      if not failed:
        return answers
      (node, worker), done = next(iter(failed.items()))
      unreachable = [host for host, one in failed.items() if one.returncode == _SSH_FAILED]
      if len(unreachable) < len(failed) or attempt == tries - 1:
        raise TransientError(f"worker {worker} of {node}: exit code {done.returncode}: {last_line(done.stderr)}")
      say(f"{len(failed)} of {len(hosts)} hosts cannot be reached; trying them again")
      left = unreachable
      self.shell.sleep(_RETRY_SECONDS * 2**attempt)
    return answers


def hosts_of(accelerator_type: str) -> int:
  """Return the hosts of a slice: `v5litepod-64` and `v6e-64` count chips, `v4-64` and `v5p-64` TensorCores.

  A host has four chips, or all eight of `v5litepod-8` and `v6e-8`.

  Raises:
    UserError: the type does not end in a number.
  """
  kind, _, size = accelerator_type.rpartition("-")
  if not kind or not size.isdecimal() or not int(size):
    raise UserError(f"--accelerator_type={accelerator_type}: expected a kind and a size, such as v5litepod-64 or v4-64")
  if kind in ("v5litepod", "v6e"):
    return 1 if int(size) <= 8 else -(-int(size) // 4)
  return -(-int(size) // 8)


def install(slices: Slices, job: Job) -> None:
  """Put the project and the job's scripts on every host that lacks them."""
  hosts, folder = slices.hosts(), f"jobs/{job.name}"
  package = _package()
  with tempfile.TemporaryDirectory() as scratch:
    files = [pathlib.Path(scratch) / name for name in ("run.sh", "control.sh", "install.sh")]
    slices.shell.write(files[0], _script(job))
    slices.shell.write(files[1], _CONTROL)
    slices.shell.write(files[2], commands.installation(commands.extras(job, "tpu"), "project", "venv"))
    tar = pathlib.Path(scratch) / "project.tar.gz"
    if not slices.shell.dry_run:
      tar.write_bytes(package)
    slices.ssh(hosts, f"mkdir -p {folder}/project")
    slices.copy(hosts, [*files, tar], folder)
  slices.ssh(hosts, f"cd {folder} && tar -xzf project.tar.gz -C project && bash install.sh")


def _script(job: Job) -> str:
  """Return the script of each host: the check before, the command, and its exit code into a file."""
  lines = [
    "#!/bin/bash",
    'jobs="$(cd "$(dirname "$0")" && pwd)"',
    'export PATH="$jobs/venv/bin:$PATH"',
    *commands.exports(job.environment),
    "trap : TERM  # the command gets it too, saves and ends; its exit code is kept",
    'cd "$jobs/project"',
    f"{commands.preflight(job)} && {commands.quoted(*job.command)}",
    'echo $? > "$jobs/exit_code"',
  ]
  return "\n".join(lines) + "\n"


def _package() -> bytes:
  """Return the project as a tar.gz."""
  held = io.BytesIO()
  with tarfile.open(fileobj=held, mode="w:gz") as tar:
    for pattern in _SHIPPED:
      for path in sorted(commands.ROOT.glob(pattern)):
        tar.add(path, path.name, filter=lambda info: None if "__pycache__" in info.name else info)
  return held.getvalue()


def train(slices: Slices, job: Job) -> int:
  """Start the job on all hosts and watch it to its end; return its exit code."""
  hosts, control = slices.hosts(), f"bash jobs/{job.name}/control.sh"
  slices.ssh(hosts, f"{control} start")
  say(f"{job.name} runs on {len(hosts)} hosts; ^C leaves it running")
  while not slices.shell.dry_run:
    slices.shell.sleep(_POLL_SECONDS)
    if slices.state() != "ACTIVE":
      return EXIT_PREEMPTED
    states = slices.ssh(hosts, f"{control} state")
    codes = [_code(state) for state in states.values()]
    if all(code is not None for code in codes):
      return commands.class_of(codes)
    if any(codes):  # the others wait for one that has ended
      slices.ssh(hosts, f"{control} end")
  return 0


def _code(state: str) -> int | None:
  """Parse a host's state: `exit 75` -> 75, `running` -> None; a process that vanished is a fault of its host."""
  word, _, code = state.splitlines()[-1].partition(" ") if state else ("lost", "", "")
  return int(code) if word == "exit" else None if word == "running" else EXIT_TRANSIENT


def start(slices: Slices, job: Job, restarts: int) -> int:
  """Train to the end, through preemptions and up to `restarts` failures; return the exit code."""
  failures = preemptions = 0
  while True:
    slices.ensure()
    try:
      install(slices, job)
      code = train(slices, job)
    except TransientError as error:
      if slices.state() == "ACTIVE":
        raise
      say(str(error))
      code = EXIT_PREEMPTED
    told = f"({failures} failures, {preemptions} preemptions before)"
    if code == 0:
      say(f"{job.name} has finished {told}" if not slices.shell.dry_run else f"{job.name}: nothing was run")
      return 0
    if code == EXIT_PREEMPTED and slices.state() != "ACTIVE":
      preemptions += 1
      say(f"preempted {told}")
      continue
    if code == EXIT_PREEMPTED:
      say(f"{job.name} was stopped; the same command goes on from the last step that it saved {told}")
      return code
    failures += 1
    if not commands.starts_again(code) or failures > restarts:
      say(f"{job.name} failed with exit code {code} and is not started again {told}; see: logs")
      return code
    say(f"{job.name} failed with exit code {code}; restart {failures} of {restarts}")


def _no_capacity(text: str) -> bool:
  text = text.lower()
  return "quota" not in text and any(word in text for word in ("capacity", "stockout", "resource_exhausted"))


def _failure(what: str, text: str) -> Exception:
  """Return the class of an error of gcloud."""
  said, low = last_line(text), text.lower()
  if "quota" in low:
    return UserError(f"gcloud {what}: {said}; ask for more quota, or give another --zone or --accelerator_type")
  if any(word in low for word in ("permission_denied", "unauthenticated", "not currently have an active account")):
    return UserError(f"gcloud {what}: {said}; log in with gcloud auth login, and see that the project is yours")
  if any(word in low for word in ("invalid_argument", "invalid choice", "unrecognized arguments")):
    return UserError(f"gcloud {what}: {said}; see --accelerator_type, --runtime_version and --zone")
  return TransientError(f"gcloud {what}: {said}")


@door
def main(argv: list[str] | None = None) -> int:
  parser = commands.parser(__doc__, ("start", "status", "logs", "stop", "delete"))
  parser.add_argument("--project", required=True, help="the cloud project")
  parser.add_argument("--zone", required=True, help="such as us-west4-a")
  parser.add_argument("--accelerator_type", default="v5litepod-16", help="such as v4-64, v5litepod-64, v5p-128, v6e-64")
  parser.add_argument("--runtime_version", default="v2-alpha-tpuv5-lite", help="of the VM's image")
  parser.add_argument("--slices", type=int, default=1, help="how many (default: 1)")
  parser.add_argument("--spot", action="store_true", help="cheaper, and may be taken away")
  parser.add_argument("--restarts", type=int, default=10, help="after failures; preemptions do not count (default: 10)")
  args = commands.parse(parser, argv)
  if args.slices < 1:
    raise UserError(f"--slices={args.slices}: expected at least 1")
  hosts_of(args.accelerator_type)
  job = commands.job(args)
  commands.remote(job, "the slice")
  shell = Shell(args.dry_run)
  slices = Slices(job.name, args, shell)
  control = f"bash jobs/{job.name}/control.sh"
  if args.action == "start":
    return start(slices, job, args.restarts)
  if args.action == "delete":
    slices.delete()
    return 0
  state = slices.state()
  if state != "ACTIVE" and not args.dry_run:
    print(f"{job.name}: {'no such slice' if state is None else state.lower()}")
    return 0
  hosts = slices.hosts()
  if args.action == "logs":
    print(slices.ssh(hosts[:1], f"{control} log 200")[hosts[0]])
    return 0
  for (node, worker), answer in slices.ssh(
    hosts, f"{control} {'state' if args.action == 'status' else 'stop'}"
  ).items():
    print(f"{node} worker {worker}: {answer}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
