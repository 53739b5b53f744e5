"""Train on a SLURM cluster, with a task for each process.

  python launch/slurm.py start --nodes=4 --gpus_per_node=8 --time=24:00:00 -- \\
    python -m t5x_like.train --config=configs/gpt/gpt2_124m.py --workdir=/shared/runs/gpt2

`start` writes a batch script into the workdir and submits it, unless a job of this name is queued
or running. SLURM sends TERM before the time is over and on preemption. The run then saves and ends
with exit code 75. After this code, and after failures that a restart may fix, the job returns to
the queue under the same number, up to `--restarts` times. Other exit codes end it
(docs/reference/exit-codes.md). Running the same command later continues the run. `status`, `logs`
and `stop`, which lets the run save, take the same flags.

With --slices=N, the job is N batch jobs of --nodes nodes, whose tasks meet in the workdir
(launch/member.py). With --least_slices=M, M of them train while the others are queued or lost. A
lost one returns to the queue, and its slice joins again when it runs.

Other options of sbatch are given as --sbatch=--OPTION=VALUE. A job uses its nodes until it ends,
each time for at most --time or the limit of the partition. --budget and --deadline end it after a
save (launch/spending.py). Nothing but the jobs is created.
"""

import math
import pathlib
import re
import shlex
import sys

if __package__ in (None, ""):
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from launch import commands, spending
from launch.commands import Job, Shell, last_line, log
from launch.spending import Chips
from t5x_like.errors import (
  EXIT_TRANSIENT,
  EXITS_NOT_RESTARTED,
  TransientError,
  UserError,
  handle_errors,
)

_SRUN = "srun --kill-on-bad-exit=1"
# Runs the command of a task; $0 is the file `_FATAL_CODES`. The first task that fails ends the
# others, and srun returns the highest exit code, which is the code of a signal. A task therefore
# writes a code that ends the job into the file. SLURM's cgroups send TERM to this shell only.
_TASK = """
"$@" &
trap "kill -TERM $!" TERM
while wait $!; kill -0 $! 2> /dev/null; do :; done  # TERM ends a wait
wait $!
code=$?
case $code in {fatal_codes}) echo $code >> "$0" ;; esac
exit $code
"""
# Files in the workdir.
_STOP = "slurm.stop"  # if it exists, a job that ends does not return to the queue
_BEGIN = "slurm.begin"  # time of the first start, from which a budget counts
_FATAL_CODES = "slurm.code"  # exit codes of tasks after which a restart cannot help


def job_names(job: Job, args) -> list[str]:
  """Return the names of the batch jobs: one, or one for each slice."""
  if args.slices == 1:
    return [job.name]
  return [f"{job.name}-{number}" for number in range(args.slices)]


def script(
  job: Job, args, log_path: str, slice_: int | None = None, key_line: str | None = None
) -> str:
  """Return the batch script, which runs the command once for each task.

  Tasks connect to each other through SLURM's environment variables; with slices, through
  launch/member.py.

  Args:
    slice_: number of the batch job's slice; None for a job without slices.
    key_line: line that sets the secret of the processes, the same for all slices; default: a line
      with a new secret.
  """
  name = job.name if slice_ is None else job_names(job, args)[slice_]
  options = {
    "job-name": name,
    "nodes": args.nodes,
    "ntasks-per-node": _tasks_per_node(args),
    "gpus-per-node": args.gpus_per_node or None,
    "partition": args.partition or None,
    "account": args.account or None,
    "time": args.time or None,
    "output": log_path.replace("%", "%%"),  # SLURM replaces a single % by numbers
    "open-mode": "append",
    "signal": f"TERM@{args.grace_seconds}",
  }
  directives = [f"--{name}={value}" for name, value in options.items() if value is not None]
  directives += ["--requeue", *args.sbatch]
  stop_file = commands.quote(pathlib.Path(log_path).with_name(_STOP))
  code_name = _FATAL_CODES if slice_ is None else f"{_FATAL_CODES}-{slice_}"
  code_file = commands.quote(pathlib.Path(log_path).with_name(code_name))
  fatal_codes = "|".join(map(str, EXITS_NOT_RESTARTED))
  task = f"{_SRUN} bash -c {shlex.quote(_TASK.format(fatal_codes=fatal_codes))} {code_file}"
  if slice_ is None and args.limit is not None:
    run_line = f"{task} bash -c {commands.quote(_train_line(job, args))}"
    ended_codes = f"0|{fatal_codes}"
  elif slice_ is None:
    run_line = f"{task} {commands.preflight_line(job)} && {task} {commands.quote(*job.command)}"
    ended_codes = f"0|{fatal_codes}"
  else:
    run_line = f"{task} bash -c {commands.quote(_member_line(job, args, slice_))}"
    # The hosts have restarted the command themselves; only a slice that was lost returns.
    ended_codes = f"0|1|{EXIT_TRANSIENT}|{fatal_codes}"
  until_lines = []
  limit_lines = []
  if args.limit is not None:
    begin_file = commands.quote(pathlib.Path(log_path).with_name(_BEGIN))
    until_lines = spending.until_lines(args.limit, begin_file)
    limit_lines = [
      '[ "$(date +%s)" -ge "$T5X_LIKE_UNTIL" ] && exit "$code"  # the end of the limit'
    ]
  lines = [
    "#!/bin/bash",
    *map(_directive, directives),
    *commands.export_lines(job.environment),
    key_line or commands.job_key_line(),
    f"cd {commands.quote(args.directory or commands.ROOT)} || exit 2",
    f"rm -f {code_file}",
    *until_lines,
    run_line,
    "code=$?",
    f'[ -s {code_file} ] && code="$(head -n 1 {code_file})"',
    f'[ -e {stop_file} ] && exit "$code"  # stopped by `stop`',
    *limit_lines,
    f'case "$code" in {ended_codes}) exit "$code" ;; esac',
    f'if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {args.restarts} ]; then',
    '  echo "[launcher] exit code $code: back into the queue (restart '
    '$((${SLURM_RESTART_COUNT:-0} + 1)))"',
    '  scontrol requeue "$SLURM_JOB_ID" && sleep 60',
    "fi",
    'exit "$code"',
  ]
  return "\n".join(lines) + "\n"


def _member_line(job: Job, args, slice_: int) -> str:
  """Return the command of a task of a slice, with the train command as its argument."""
  tasks_per_node = _tasks_per_node(args)
  limits = {
    "slices": args.slices,
    "hosts_per_slice": args.nodes * tasks_per_node,
    "least_slices": args.least_slices or args.slices,
    "slice": slice_,
    "restarts": args.restarts,
    "grace_seconds": args.grace_seconds,
  }
  train = _train_line(job, args)
  task_flags = '--worker="$SLURM_PROCID" --address="$(hostname)"'
  member = commands.member_line(job, "", limits)
  line = f"exec {member} {task_flags} -- bash -c {commands.quote(train)}"
  if args.gpus_per_node and tasks_per_node > 1:
    line = f'export JAX_LOCAL_DEVICE_IDS="$SLURM_LOCALID"; {line}'
  return line


def _train_line(job: Job, args) -> str:
  """Return a line of a script that checks a host and trains, within a limit if there is one."""
  preflight = commands.preflight_line(job)
  train = commands.quote(*job.command)
  if args.limit is not None:
    return spending.limit_command(preflight, train, args.grace_seconds)
  return f"{preflight} && exec {train}"


def _tasks_per_node(args) -> int:
  return args.tasks_per_node or args.gpus_per_node or 1


def _directive(option: str) -> str:
  """Return a #SBATCH line for an option.

  sbatch reads these lines by its own rules: a backslash is an escape inside quotes too.

  Raises:
    UserError: the rules cannot express the option.
  """
  name, _, value = option.partition("=")
  quote = re.search(r"""[\\'"]""", commands.check_line(name, option))
  if quote:
    flag = "--workdir" if name == "--output" else name
    raise UserError(
      f"{flag}: found {quote[0]} in {value!r}, which a #SBATCH line cannot contain; leave it out"
    )
  return f"#SBATCH {commands.quote(option)}"


def list_jobs(names: list[str], shell: Shell) -> list[tuple[str, str]]:
  """Return (number, state) of the jobs of these names that have not ended."""
  name_flag = f"--name={','.join(names)}"
  result = shell.run(["squeue", "--me", name_flag, "--noheader", "--format=%i %T"], is_query=True)
  if result.returncode:
    raise _failure("squeue", result.stderr)
  rows = [line.split() for line in result.stdout.splitlines() if line.strip()]
  for row in rows:
    if len(row) != 2 or not re.fullmatch(r"\d[\w\[\]+-]*", row[0]):
      raise TransientError(
        f"squeue: expected lines of a number and a state, found {last_line(' '.join(row))!r}"
      )
  return [(number, state) for number, state in rows]


def start(job: Job, args, shell: Shell) -> int:
  """Submit the batch scripts unless the job is queued or running; return the exit code."""
  names = job_names(job, args)
  if args.slices > 1:
    return _start_slices(job, args, shell)
  if jobs := list_jobs(names, shell):
    log(f"{job.name} is job {jobs[0][0]} already, {jobs[0][1].lower()}; see: status, logs")
    return 0
  folder = _prepare_folder(job, shell)
  path = folder / "slurm.sh"
  shell.write(path, script(job, args, str(folder / "slurm.log")))
  _submit(job.name, path, shell)
  return 0


def _start_slices(job: Job, args, shell: Shell) -> int:
  """Submit a batch job for each slice; return the exit code.

  If some are queued or running, the others are submitted again with their earlier scripts, whose
  secret lets them join.
  """
  names = job_names(job, args)
  queued = [name for name in names if list_jobs([name], shell)]
  for name in queued:
    log(f"{name} is queued or running already; see: status, logs")
  folder = _prepare_folder(job, shell)
  key_line = commands.job_key_line()
  for slice_, name in enumerate(names):
    path = folder / f"slurm-{slice_}.sh"
    if name in queued:
      continue
    if not queued or not path.exists():
      shell.write(path, script(job, args, str(folder / f"slurm-{slice_}.log"), slice_, key_line))
    _submit(name, path, shell)
  return 0


def _prepare_folder(job: Job, shell: Shell) -> pathlib.Path:
  """Create the workdir for the batch scripts, and return it."""
  folder = pathlib.Path(job.workdir)
  if not shell.dry_run:
    folder.mkdir(parents=True, exist_ok=True)
    for name in (_STOP, _BEGIN):
      (folder / name).unlink(missing_ok=True)
  return folder


def _submit(name: str, path: pathlib.Path, shell: Shell) -> None:
  """Submit a batch script."""
  result = shell.run(["sbatch", "--parsable", str(path)])
  if result.returncode:
    raise _failure("sbatch", result.stderr)
  log(f"{name} is job {result.stdout.strip() or 'N'}")


_USER_ERROR = re.compile(
  "invalid|not permitted|denied|limit|unrecognized|unavailable|not available", re.IGNORECASE
)


def _failure(action: str, text: str) -> Exception:
  """Return the error for a message of SLURM's programs."""
  message = last_line(text)
  if _USER_ERROR.search(text):
    return UserError(
      f"{action}: {message}; see --nodes, --partition, --account, --time and --sbatch"
    )
  return TransientError(f"{action}: {message}")


def _make_parser() -> commands.Parser:
  parser = commands.make_parser(__doc__, ("start", "status", "logs", "stop"))
  parser.add_argument(
    "--nodes", type=int, default=1, help="number of nodes, of each slice (default: 1)"
  )
  parser.add_argument(
    "--slices",
    type=int,
    default=1,
    help="number of slices, each a batch job that returns by itself when it is lost (default: 1)",
  )
  parser.add_argument(
    "--least_slices",
    type=int,
    help="fewest slices that train while others are queued or lost (default: all)",
  )
  parser.add_argument(
    "--tasks_per_node",
    type=int,
    help="processes of a node (default: one for each GPU, as jax expects of SLURM; 1 without)",
  )
  parser.add_argument("--gpus_per_node", type=int, default=0, help="GPUs of a node (default: 0)")
  parser.add_argument("--partition", default="", help="partition of the cluster")
  parser.add_argument("--account", default="", help="account that is charged")
  parser.add_argument("--time", default="", help="time limit, such as 24:00:00")
  parser.add_argument(
    "--grace_seconds",
    type=int,
    default=120,
    help="time for a save before the limit (default: 120)",
  )
  parser.add_argument(
    "--restarts",
    type=int,
    default=20,
    help="how often the job may return to the queue (default: 20)",
  )
  parser.add_argument(
    "--directory",
    default="",
    help="directory of this project on the nodes (default: its directory here)",
  )
  parser.add_argument(
    "--sbatch", action="append", default=[], metavar="OPTION", help="another option of sbatch"
  )
  spending.add_flags(parser)
  return parser


def _chips(args) -> Chips:
  """Return the accelerators of the job, whose kind is not known from SLURM."""
  return Chips("gpu", args.slices * args.nodes * (args.gpus_per_node or 1))


def _check_flags(job: Job, args, directory: str) -> None:
  """Check the workdir and the options of sbatch.

  Raises:
    UserError: an option is malformed, or the nodes would not find the workdir.
  """
  for name in ("nodes", "slices"):
    if getattr(args, name) < 1:
      raise UserError(f"--{name}={getattr(args, name)}: expected at least 1")
  commands.check_least_slices(args)
  for option in args.sbatch:
    if not re.fullmatch(r"--?[A-Za-z][\w-]*(=[^\n]*)?", option):
      raise UserError(f"--sbatch={option}: expected an option of sbatch, --OPTION=VALUE")
  if "://" in job.workdir:
    raise UserError(
      f"--workdir={job.workdir}: expected a directory that all nodes share; the "
      "script and log go there"
    )
  runs_elsewhere = pathlib.Path(directory).absolute() != pathlib.Path.cwd()
  if runs_elsewhere and not pathlib.Path(job.workdir).is_absolute():
    raise UserError(
      f"--workdir={job.workdir}: expected an absolute path, as the job runs in "
      f"{directory}, not here"
    )


def stop(job: Job, args, shell: Shell) -> None:
  """Signal the batch jobs to save and end."""
  jobs = list_jobs(job_names(job, args), shell)
  for number, state in jobs:
    command = ["scancel", number]
    if state in ("RUNNING", "COMPLETING"):
      command = ["scancel", "--signal=TERM", number]  # the run saves for as long as it takes
      if not shell.dry_run:
        (pathlib.Path(job.workdir) / _STOP).touch()
    result = shell.run(command)
    if result.returncode:
      raise _failure("scancel", result.stderr)
  log(f"{job.name}: {'signalled to save and end' if jobs else 'not queued'}")


def _log_paths(job: Job, args) -> list[str]:
  """Return the logs of the batch jobs."""
  folder = job.workdir.rstrip("/")
  if args.slices == 1:
    return [f"{folder}/slurm.log"]
  return [f"{folder}/slurm-{slice_}.log" for slice_ in range(args.slices)]


@handle_errors
def main(argv: list[str] | None = None) -> int:
  args = commands.parse(_make_parser(), argv)
  job = commands.read_job(args)
  shell = Shell(args.dry_run)
  directory = args.directory or str(commands.ROOT)
  _check_flags(job, args, directory)
  commands.check_train_command(args, directory=directory)
  if args.action == "start":
    limit = spending.set_limit(args, _chips(args), math.inf, args.grace_seconds)
    args.limit = limit if spending.is_limited(args) else None
    return start(job, args, shell)
  if args.action == "logs":
    return shell.stream(["tail", "-n", "200", *_log_paths(job, args)])
  if args.action == "stop":
    stop(job, args, shell)
    return 0
  jobs = list_jobs(job_names(job, args), shell)
  for number, state in jobs:
    print(f"{job.name}: job {number}, {state.lower()}")
  if not jobs:
    print(f"{job.name}: not queued")
  return 0


if __name__ == "__main__":
  sys.exit(main())
