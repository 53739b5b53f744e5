"""Install the project on the hosts of TPU VMs, and control the job there through a script."""

import io
import pathlib
import tarfile
import tempfile

from launch import commands
from launch.commands import Job, log
from launch.queued_resources import WORKER, Slices
from t5x_like.errors import EXIT_TRANSIENT, TransientError, UserError

COPIED_FILES = (
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
_INSTALL_SECONDS = 1800.0
_LOGS = pathlib.Path("~/.cache/t5x_like/launch")
# The script that controls the job on a host: `control.sh start | state | stop | end | guard | log`.
# The job is a process group. TERM makes it save and end, and its exit code is kept. After `stop`,
# a job that ended before it could save is not restarted either.
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
  guard) setsid bash guard.sh >> guard.log 2>&1 < /dev/null & ;;
  log) tail -n "${2:-100}" log ;;
esac
"""


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
    slices.shell.write(files[1], _CONTROL)
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
    for pattern in COPIED_FILES:
      for path in sorted(commands.ROOT.glob(pattern)):
        tar.add(path, path.name, filter=lambda info: None if "__pycache__" in info.name else info)
  return archive.getvalue()


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


def logs_folder(job: Job) -> pathlib.Path:
  """Return the folder of this machine to which the hosts' logs are copied."""
  return _LOGS.expanduser() / job.name


def save_logs(slices: Slices, job: Job) -> None:
  """Copy the last lines of the hosts' logs to this machine before the hosts are deleted."""
  folder = logs_folder(job)
  try:
    logs = slices.ssh(slices.hosts(), f"bash jobs/{job.name}/control.sh log 2000", tries=1)
    folder.mkdir(parents=True, exist_ok=True)
    for (node, worker), text in logs.items():
      slices.shell.write(folder / f"{node}-{worker}.log", text + "\n")
  except (TransientError, UserError, OSError) as error:
    log(f"the hosts' logs cannot be copied: {error}")
    return
  log(f"the hosts' logs are in {folder}")
