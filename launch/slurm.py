"""Trains on a SLURM cluster: a task for each process, requeued where that helps.

  python launch/slurm.py start --nodes=4 --gpus_per_node=8 --time=24:00:00 -- \\
    python -m t5x_like.train --config=configs/gpt/gpt2_124m.py --workdir=/shared/runs/gpt2

`start` submits a batch script, kept in the workdir, unless a job of this name is queued or running.
SLURM sends TERM before the time is up, and on preemption: the run saves and ends with 75. Then, and
after failures that another start may mend, the job goes back into the queue under the same number,
up to `--restarts` times; other exit codes end it (docs/reference/exit-codes.md). The same command
later goes on. `status`, `logs` and `stop` (which lets the run save) take the same flags. Options
that are not listed here are given as --sbatch=--OPTION=VALUE. A job holds its nodes until it ends,
each time after --time at the latest, or else after the partition's limit; nothing else is created.
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
# Around the command of each task, after a file's name. The first task to fail ends the others, and
# srun passes on the highest code, a signal's: so a task keeps a code that ends the job. SLURM's
# cgroups give TERM to this shell alone.
_TASK = """
"$@" &
trap "kill -TERM $!" TERM
while wait $!; kill -0 $! 2> /dev/null; do :; done  # TERM ends a wait
wait $!
code=$?
case $code in {ended}) echo $code >> "$0" ;; esac
exit $code
"""
_STOP = "slurm.stop"  # in the workdir: a job that ends is not put back into the queue
_ENDED = "slurm.code"  # in the workdir: the codes of tasks that another start cannot mend


def script(job: Job, args, log_path: str) -> str:
  """Return the batch script; its `srun` runs the command once for each task. Tasks find each other
  through SLURM."""
  options = {
    "job-name": job.name,
    "nodes": args.nodes,
    "ntasks-per-node": args.tasks_per_node or args.gpus_per_node or 1,
    "gpus-per-node": args.gpus_per_node or None,
    "partition": args.partition or None,
    "account": args.account or None,
    "time": args.time or None,
    "output": log_path.replace("%", "%%"),  # or SLURM would put numbers there
    "open-mode": "append",
    "signal": f"TERM@{args.grace_seconds}",
  }
  directives = [f"--{name}={value}" for name, value in options.items() if value is not None] + [
    "--requeue",
    *args.sbatch,
  ]
  stop, ended = (commands.quote(pathlib.Path(log_path).with_name(name)) for name in (_STOP, _ENDED))
  useless = "|".join(map(str, EXITS_NOT_RESTARTED))
  task = f"{_SRUN} bash -c {shlex.quote(_TASK.format(ended=useless))} {ended}"
  lines = [
    "#!/bin/bash",
    *map(_directive, directives),
    *commands.export_lines(job.environment),
    commands.job_key_line(),
    f"cd {commands.quote(args.directory or commands.ROOT)} || exit 2",
    f"rm -f {ended}",
    f"{task} {commands.preflight_line(job)} && {task} {commands.quote(*job.command)}",
    "code=$?",
    f'[ -s {ended} ] && code="$(head -n 1 {ended})"',
    f'[ -e {stop} ] && exit "$code"  # asked to stop',
    f'case "$code" in 0|{useless}) exit "$code" ;; esac',
    f'if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {args.restarts} ]; then',
    '  echo "[launcher] exit code $code: back into the queue (restart '
    '$((${SLURM_RESTART_COUNT:-0} + 1)))"',
    '  scontrol requeue "$SLURM_JOB_ID" && sleep 60',
    "fi",
    'exit "$code"',
  ]
  return "\n".join(lines) + "\n"


def _directive(option: str) -> str:
  """Return a line that sbatch reads by its own rules, where a backslash counts inside of quotes
  too.

  Raises:
    UserError: an option that these rules cannot carry.
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
  done = shell.run(["squeue", "--me", f"--name={name}", "--noheader", "--format=%i %T"], asks=True)
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


def _failure(action: str, text: str) -> Exception:
  message = last_line(text)
  if re.search(
    r"invalid|not permitted|denied|limit|unrecognized|unavailable|not available",
    text,
    re.IGNORECASE,
  ):
    return UserError(
      f"{action}: {message}; see --nodes, --partition, --account, --time and --sbatch"
    )
  return TransientError(f"{action}: {message}")


@handle_errors
def main(argv: list[str] | None = None) -> int:
  parser = commands.make_parser(__doc__, ("start", "status", "logs", "stop"))
  parser.add_argument("--nodes", type=int, default=1, help="(default: 1)")
  tasks = "processes of each (default: one for each GPU, as jax expects of SLURM; 1 without)"
  parser.add_argument("--tasks_per_node", type=int, help=tasks)
  parser.add_argument("--gpus_per_node", type=int, default=0, help="(default: 0)")
  parser.add_argument("--partition", default="")
  parser.add_argument("--account", default="")
  parser.add_argument("--time", default="", help="limit, such as 24:00:00")
  parser.add_argument(
    "--grace_seconds", type=int, default=120, help="for a save before the time is up (default: 120)"
  )
  parser.add_argument(
    "--restarts", type=int, default=20, help="back into the queue, at most (default: 20)"
  )
  parser.add_argument(
    "--directory", default="", help="of this project on the nodes (default: where it is here)"
  )
  parser.add_argument(
    "--sbatch", action="append", default=[], metavar="OPTION", help="another option of sbatch"
  )
  args = commands.parse(parser, argv)
  job = commands.read_job(args)
  shell = Shell(args.dry_run)
  for option in args.sbatch:
    if not re.fullmatch(r"--?[A-Za-z][\w-]*(=[^\n]*)?", option):
      raise UserError(f"--sbatch={option}: expected an option of sbatch, --OPTION=VALUE")
  if "://" in job.workdir:
    raise UserError(
      f"--workdir={job.workdir}: expected a directory that all nodes share; the "
      "script and log go there"
    )
  directory = args.directory or str(commands.ROOT)
  if (
    not pathlib.Path(job.workdir).is_absolute()
    and pathlib.Path(directory).absolute() != pathlib.Path.cwd()
  ):
    raise UserError(
      f"--workdir={job.workdir}: expected an absolute path, as the job runs in "
      f"{directory}, not here"
    )
  commands.check_train_command(args, directory=directory)
  if args.action == "start":
    return start(job, args, shell)
  if args.action == "logs":
    return shell.stream(["tail", "-n", "200", f"{job.workdir.rstrip('/')}/slurm.log"])
  jobs = list_jobs(job.name, shell)
  if args.action == "status":
    print(
      "\n".join(f"{job.name}: job {number}, {state.lower()}" for number, state in jobs)
      or f"{job.name}: not queued"
    )
    return 0
  for number, state in jobs:
    running = state in ("RUNNING", "COMPLETING")
    if running and not shell.dry_run:
      (pathlib.Path(job.workdir) / _STOP).touch()  # TERM lets it save for as long as it takes
    done = shell.run(["scancel", *("--signal=TERM",) * running, number])
    if done.returncode:
      raise _failure("scancel", done.stderr)
  log(f"{job.name}: {'asked to save and end' if jobs else 'not queued'}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
