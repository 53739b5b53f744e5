"""Train on a SLURM cluster, with a task for each process.

  python launch/slurm.py start --nodes=4 --gpus_per_node=8 --time=24:00:00 -- \\
    python -m t5x_like.train --config=configs/gpt/gpt2_124m.py --workdir=/shared/runs/gpt2

`start` writes a batch script into the workdir and submits it, unless a job of this name is queued
or running. SLURM sends TERM before the time is over and on preemption. The run then saves and ends
with exit code 75. After this code, and after failures that another start may cure, the job returns
to the queue under the same number, up to `--restarts` times. Other exit codes end it
(docs/reference/exit-codes.md). Running the same command later continues the run. `status`, `logs`
and `stop`, which lets the run save, take the same flags. Other options of sbatch are given as
--sbatch=--OPTION=VALUE. A job uses its nodes until it ends, each time for at most --time or the
limit of the partition. Nothing else is created.
"""

import pathlib
import re
import shlex
import sys

if __package__ in (None, ""):
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from launch import commands
from launch.commands import Job, Shell, last_line, log
from t5x_like.errors import EXITS_NOT_RESTARTED, TransientError, UserError, handle_errors

_SRUN = "srun --kill-on-bad-exit=1"
# Runs the command of a task; $0 is the file `_FATAL_CODES`. The first task that fails ends the
# others, and srun returns the highest exit code, which is that of a signal. A task therefore writes
# a code that ends the job into the file. SLURM's cgroups send TERM to this shell only.
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
_FATAL_CODES = "slurm.code"  # exit codes of tasks that another start cannot cure


def script(job: Job, args, log_path: str) -> str:
  """Return the batch script, which runs the command once for each task.

  Tasks connect to each other through SLURM's environment variables.
  """
  options = {
    "job-name": job.name,
    "nodes": args.nodes,
    "ntasks-per-node": args.tasks_per_node or args.gpus_per_node or 1,
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
  code_file = commands.quote(pathlib.Path(log_path).with_name(_FATAL_CODES))
  fatal_codes = "|".join(map(str, EXITS_NOT_RESTARTED))
  task = f"{_SRUN} bash -c {shlex.quote(_TASK.format(fatal_codes=fatal_codes))} {code_file}"
  lines = [
    "#!/bin/bash",
    *map(_directive, directives),
    *commands.export_lines(job.environment),
    commands.job_key_line(),
    f"cd {commands.quote(args.directory or commands.ROOT)} || exit 2",
    f"rm -f {code_file}",
    f"{task} {commands.preflight_line(job)} && {task} {commands.quote(*job.command)}",
    "code=$?",
    f'[ -s {code_file} ] && code="$(head -n 1 {code_file})"',
    f'[ -e {stop_file} ] && exit "$code"  # stopped by `stop`',
    f'case "$code" in 0|{fatal_codes}) exit "$code" ;; esac',
    f'if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {args.restarts} ]; then',
    '  echo "[launcher] exit code $code: back into the queue (restart '
    '$((${SLURM_RESTART_COUNT:-0} + 1)))"',
    '  scontrol requeue "$SLURM_JOB_ID" && sleep 60',
    "fi",
    'exit "$code"',
  ]
  return "\n".join(lines) + "\n"


def _directive(option: str) -> str:
  """Return a #SBATCH line for an option.

  sbatch reads these lines by its own rules: a backslash has a meaning inside quotes too.

  Raises:
    UserError: the rules cannot express the option.
  """
  name, _, value = option.partition("=")
  quote = re.search(r"""[\\'"]""", commands.check_line(name, option))
  if quote:
    flag = "--workdir" if name == "--output" else name
    raise UserError(
      f"{flag}: found {quote[0]} in {value!r}, which a #SBATCH line cannot carry; leave it out"
    )
  return f"#SBATCH {commands.quote(option)}"


def list_jobs(name: str, shell: Shell) -> list[tuple[str, str]]:
  """Return (number, state) of the jobs of this name that have not ended."""
  done = shell.run(
    ["squeue", "--me", f"--name={name}", "--noheader", "--format=%i %T"], is_query=True
  )
  if done.returncode:
    raise _failure("squeue", done.stderr)
  rows = [line.split() for line in done.stdout.splitlines() if line.strip()]
  for row in rows:
    if len(row) != 2 or not re.fullmatch(r"\d[\w\[\]+-]*", row[0]):
      raise TransientError(
        f"squeue: expected lines of a number and a state, found {last_line(' '.join(row))!r}"
      )
  return [(number, state) for number, state in rows]


def start(job: Job, args, shell: Shell) -> int:
  """Submit the batch script unless the job is queued or running; return the exit code."""
  if jobs := list_jobs(job.name, shell):
    log(f"{job.name} is job {jobs[0][0]} already, {jobs[0][1].lower()}; see: status, logs")
    return 0
  folder = pathlib.Path(job.workdir)
  if not shell.dry_run:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _STOP).unlink(missing_ok=True)
  path = folder / "slurm.sh"
  shell.write(path, script(job, args, str(folder / "slurm.log")))
  done = shell.run(["sbatch", "--parsable", str(path)])
  if done.returncode:
    raise _failure("sbatch", done.stderr)
  log(f"{job.name} is job {done.stdout.strip() or 'N'}")
  return 0


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
  parser.add_argument("--nodes", type=int, default=1, help="number of nodes (default: 1)")
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
  return parser


def _check_flags(job: Job, args, directory: str) -> None:
  """Check the workdir and the options of sbatch.

  Raises:
    UserError: an option is malformed, or the nodes would not find the workdir.
  """
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


def stop(job: Job, shell: Shell) -> None:
  """Signal the jobs of this name to save and end."""
  jobs = list_jobs(job.name, shell)
  for number, state in jobs:
    command = ["scancel", number]
    if state in ("RUNNING", "COMPLETING"):
      command = ["scancel", "--signal=TERM", number]  # the run saves for as long as it takes
      if not shell.dry_run:
        (pathlib.Path(job.workdir) / _STOP).touch()
    done = shell.run(command)
    if done.returncode:
      raise _failure("scancel", done.stderr)
  log(f"{job.name}: {'signalled to save and end' if jobs else 'not queued'}")


@handle_errors
def main(argv: list[str] | None = None) -> int:
  args = commands.parse(_make_parser(), argv)
  job = commands.read_job(args)
  shell = Shell(args.dry_run)
  directory = args.directory or str(commands.ROOT)
  _check_flags(job, args, directory)
  commands.check_train_command(args, directory=directory)
  if args.action == "start":
    return start(job, args, shell)
  if args.action == "logs":
    return shell.stream(["tail", "-n", "200", f"{job.workdir.rstrip('/')}/slurm.log"])
  if args.action == "stop":
    stop(job, shell)
    return 0
  jobs = list_jobs(job.name, shell)
  for number, state in jobs:
    print(f"{job.name}: job {number}, {state.lower()}")
  if not jobs:
    print(f"{job.name}: not queued")
  return 0


if __name__ == "__main__":
  sys.exit(main())
