"""Train on any cloud that SkyPilot reaches, as a managed job.

SkyPilot finds machines in a cloud, and replaces them when they are preempted.

  python launch/sky.py start --accelerators=tpu-v5litepod-16 --spot -- \\
    python -m t5x_like.train --config=configs/t5/base.py --workdir=gs://bucket/t5_base

`start` runs `sky jobs launch` with a generated task; --dry_run prints the task. After preemptions,
signals and faults of network and disk, SkyPilot runs the same command again, which continues the
run. After other errors it does so up to `--restarts` times. SkyPilot cannot tell errors that a
restart may fix from mistakes in the command, so this limit counts both. `status`, `logs` and `stop`
take the same flags. Secrets are named by --secret=NAME, read from this environment and never
printed.

SkyPilot deletes a job's machines when the job ends or is stopped. With the first job it creates a
jobs controller, a small machine that remains and is billed: `sky status` lists it, `sky down`
removes it.
"""

import json
import math
import os
import pathlib
import sys
import tempfile

if __package__ in (None, ""):
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from launch import commands, spending
from launch.commands import Job, Shell, last_line, log, parse_answer
from launch.spending import Chips
from t5x_like.errors import EXIT_PREEMPTED, EXIT_TRANSIENT, TransientError, UserError, handle_errors

# Exit codes after which SkyPilot always restarts. SIGINT and SIGTERM before the first step give 130
# and 143.
_RESTARTED_CODES = (EXIT_TRANSIENT, EXIT_PREEMPTED, 130, 143)
_LAUNCH_SECONDS = 1800.0  # the first job waits for the controller's machine
_GRACE_SECONDS = 600.0
_RESERVE_SECONDS = 1200.0  # for the save, and for SkyPilot to delete the machines
_FINAL_STATES = ("SUCCEEDED", "FAILED", "CANCELLED")


def task(job: Job, args) -> dict:
  """Return SkyPilot's task as a dictionary; its JSON is valid YAML."""
  extras = commands.extras_of(job, "tpu" if args.accelerators.startswith("tpu") else "cuda12")
  resources = {
    "accelerators": args.accelerators,
    "use_spot": args.spot,
    "job_recovery": {
      "strategy": "FAILOVER",
      "max_restarts_on_errors": args.restarts,
      "recover_on_exit_codes": list(_RESTARTED_CODES),
    },
  }
  if args.runtime_version:
    resources["accelerator_args"] = {"runtime_version": args.runtime_version}
  return {
    "name": job.name,
    "workdir": str(commands.ROOT),
    "num_nodes": args.nodes,
    "resources": resources,
    "setup": commands.install_lines(extras, ".", '"$HOME"/venv'),
    "run": "\n".join(
      [
        # Exported here, because SkyPilot writes `envs` in double quotes, where `$(…)` would run.
        *commands.export_lines(job.environment),
        commands.job_key_line(),
        'export PATH="$HOME/venv/bin:$PATH"',
        'if [ "$SKYPILOT_NUM_NODES" -gt 1 ]; then',
        '  export JAX_COORDINATOR_ADDRESS="$(echo "$SKYPILOT_NODE_IPS" | head -n 1):8476"',
        '  export JAX_NUM_PROCESSES="$SKYPILOT_NUM_NODES" JAX_PROCESS_ID="$SKYPILOT_NODE_RANK"',
        "fi",
        *_train_lines(job, args),
      ]
    ),
  }


def _train_lines(job: Job, args) -> list[str]:
  """Return the lines that check a host and train, until the limit if the job has one."""
  preflight = commands.preflight_line(job)
  train = commands.quote(*job.command)
  if args.limit is None:
    return [f"{preflight} && exec {train}"]
  limited = spending.limit_command(preflight, train, _GRACE_SECONDS)
  return [*spending.until_lines(args.limit), limited]


def _chips(args) -> Chips:
  """Return the accelerators of the job.

  Raises:
    UserError: --accelerators has no number of chips.
  """
  name, _, count = args.accelerators.partition(":")
  if name.startswith("tpu-"):
    if not name.rpartition("-")[2].isdecimal():
      raise UserError(f"--accelerators={name}: expected a size at the end, such as -16")
    return spending.chips_of_tpu(name, args.nodes)
  if count and not count.isdecimal():
    raise UserError(f"--accelerators={args.accelerators}: expected a number after the colon")
  return Chips(name, int(count or 1) * args.nodes)


def state(name: str, shell: Shell) -> str | None:
  """Return the state of the newest managed job of this name, such as RUNNING."""
  result = shell.run(["sky", "jobs", "queue", "--output=json"], is_query=True)
  if result.returncode:
    raise _failure("jobs queue", result.stderr)
  if not result.stdout.strip():
    return None
  jobs = parse_answer(result, list, "sky jobs queue")
  rows = [row for row in jobs if isinstance(row, dict) and row.get("job_name") == name]
  newest = max(rows, key=lambda row: row.get("job_id", 0), default={})
  return newest.get("status")


def start(job: Job, args, shell: Shell) -> int:
  """Launch the managed job unless it is running; return the exit code."""
  current_state = state(job.name, shell)
  if current_state is not None and not current_state.startswith(_FINAL_STATES):
    log(f"{job.name} is {current_state.lower()} already; see: status, logs")
    return 0
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / f"{job.name}.yaml"
    shell.write(path, json.dumps(task(job, args), indent=2) + "\n")
    # sky reads the values from this environment.
    secrets = [argument for name in args.secret for argument in ("--secret", name)]
    command = [
      "sky",
      "jobs",
      "launch",
      f"--name={job.name}",
      "--yes",
      "--detach-run",
      *secrets,
      str(path),
    ]
    result = shell.run(command, seconds=_LAUNCH_SECONDS)
  if result.returncode:
    raise _failure("jobs launch", result.stderr)
  log(
    f"{job.name} is submitted to SkyPilot, which deletes its machines when it ends; the jobs "
    "controller remains: sky status"
  )
  return 0


def _failure(action: str, text: str) -> Exception:
  """Return the error for a message of sky."""
  message = last_line(text)
  lower_text = text.lower()
  user_phrases = ("invalid", "not found", "quota", "no cloud access", "unknown")
  if any(phrase in lower_text for phrase in user_phrases):
    return UserError(f"sky {action}: {message}; see the flags, and sky check")
  return TransientError(f"sky {action}: {message}")


@handle_errors
def main(argv: list[str] | None = None) -> int:
  parser = commands.make_parser(__doc__, ("start", "status", "logs", "stop"))
  parser.add_argument(
    "--accelerators", default="tpu-v5litepod-16", help="such as H100:8 (default: %(default)s)"
  )
  parser.add_argument("--runtime_version", default="", help="version of a TPU VM's image")
  parser.add_argument(
    "--nodes", type=int, default=1, help="number of nodes; a TPU slice is one node (default: 1)"
  )
  parser.add_argument("--spot", action="store_true", help="use machines that may be preempted")
  parser.add_argument(
    "--restarts",
    type=int,
    default=0,
    help="number of restarts after errors, also after exit codes 2, 3 and 4 (default: 0)",
  )
  parser.add_argument(
    "--secret",
    action="append",
    default=[],
    metavar="NAME",
    help="secret variable of this environment",
  )
  spending.add_flags(parser)
  args = commands.parse(parser, argv)
  args.limit = None
  job = commands.read_job(args)
  shell = Shell(args.dry_run)
  commands.check_remote(job, "the cloud")
  commands.refuse_secrets(job)
  for name in args.secret:
    if name not in os.environ:
      raise UserError(
        f"--secret={name}: not set here; set the variable in this environment, as its value must "
        "not be on the command line"
      )
  if args.action == "start":
    commands.check_train_command(args, folders=())
    if args.prices or spending.is_limited(args):
      limit = spending.set_limit(args, _chips(args), math.inf, _RESERVE_SECONDS)
      args.limit = limit if spending.is_limited(args) else None
    return start(job, args, shell)
  if args.action == "status":
    print(f"{job.name}: {(state(job.name, shell) or 'no such job').lower()}")
    return 0
  if args.action == "logs":
    return shell.stream(["sky", "jobs", "logs", f"--name={job.name}", "--no-follow"])
  result = shell.run(["sky", "jobs", "cancel", f"--name={job.name}", "--yes"])
  if result.returncode:
    raise _failure("jobs cancel", result.stderr)
  return 0


if __name__ == "__main__":
  sys.exit(main())
