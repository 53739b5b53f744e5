"""Trains on any cloud that SkyPilot reaches, as a managed job: it finds a machine, and another when
that is taken away.

  python launch/sky.py start --accelerators=tpu-v5litepod-16 --spot -- \\
    python -m t5x_like.train --config=configs/t5/base.py --workdir=gs://bucket/t5_base

`start` runs `sky jobs launch` with a task made here; --dry_run prints it. After preemptions and
signals, and faults of network and disk, SkyPilot runs the same command again, which goes on. After
other errors it does so up to `--restarts` times, whichever they are: it has one limit for bugs and
for errors that another start cannot mend. `status`, `logs` and `stop` take the same flags. Secrets
are given as --secret=NAME, read from this environment, and are never printed.

SkyPilot deletes a job's machines when the job ends or is stopped. Its jobs controller, a small
machine that it creates with the first job, stays and is billed: `sky status` lists it, `sky down`
removes it.
"""

import json
import os
import pathlib
import sys
import tempfile

if __package__ in (None, ""):
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from launch import commands
from launch.commands import Job, Shell, last_line, log, parse_answer
from t5x_like.errors import EXIT_PREEMPTED, EXIT_TRANSIENT, TransientError, UserError, handle_errors

# as often as need be; the last are signals before the first step
_AGAIN = (EXIT_TRANSIENT, EXIT_PREEMPTED, 130, 143)
_LAUNCH_SECONDS = 1800.0  # the first job waits for the controller's machine
_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


def task(job: Job, args) -> dict:
  """Return SkyPilot's task, as JSON, which is YAML too."""
  extras = commands.extras_of(job, "tpu" if args.accelerators.startswith("tpu") else "cuda12")
  tpu = (
    {"accelerator_args": {"runtime_version": args.runtime_version}} if args.runtime_version else {}
  )
  recovery = {
    "strategy": "FAILOVER",
    "max_restarts_on_errors": args.restarts,
    "recover_on_exit_codes": list(_AGAIN),
  }
  return {
    "name": job.name,
    "workdir": str(commands.ROOT),
    "num_nodes": args.nodes,
    "resources": {
      "accelerators": args.accelerators,
      "use_spot": args.spot,
      "job_recovery": recovery,
    }
    | tpu,
    "setup": commands.install_lines(extras, ".", '"$HOME"/venv'),
    "run": "\n".join(
      [
        # SkyPilot's `envs` are in double quotes there, in which `$(…)` is run
        *commands.export_lines(job.environment),
        commands.job_key_line(),
        'export PATH="$HOME/venv/bin:$PATH"',
        'if [ "$SKYPILOT_NUM_NODES" -gt 1 ]; then',
        '  export JAX_COORDINATOR_ADDRESS="$(echo "$SKYPILOT_NODE_IPS" | head -n 1):8476"',
        '  export JAX_NUM_PROCESSES="$SKYPILOT_NUM_NODES" JAX_PROCESS_ID="$SKYPILOT_NODE_RANK"',
        "fi",
        f"{commands.preflight_line(job)} && exec {commands.quote(*job.command)}",
      ]
    ),
  }


def state(name: str, shell: Shell) -> str | None:
  """Return the state of the newest managed job of this name, such as RUNNING."""
  done = shell.run(["sky", "jobs", "queue", "--output=json"], asks=True)
  if done.returncode:
    raise _failure("jobs queue", done.stderr)
  if not done.stdout.strip():
    return None
  jobs = parse_answer(done, list, "sky jobs queue")
  rows = [row for row in jobs if isinstance(row, dict) and row.get("job_name") == name]
  newest = max(rows, key=lambda row: row.get("job_id", 0), default={})
  return newest.get("status")


def start(job: Job, args, shell: Shell) -> int:
  current_state = state(job.name, shell)
  if current_state is not None and not current_state.startswith(_ENDED):
    log(f"{job.name} is {current_state.lower()} already; see: status, logs")
    return 0
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / f"{job.name}.yaml"
    shell.write(path, json.dumps(task(job, args), indent=2) + "\n")
    # read by sky from this environment
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
    done = shell.run(command, seconds=_LAUNCH_SECONDS)
  if done.returncode:
    raise _failure("jobs launch", done.stderr)
  log(
    f"{job.name} is given to SkyPilot, which deletes its machines when it ends; the jobs "
    "controller stays: sky status"
  )
  return 0


def _failure(action: str, text: str) -> Exception:
  message = last_line(text)
  low = text.lower()
  if any(
    phrase in low for phrase in ("invalid", "not found", "quota", "no cloud access", "unknown")
  ):
    return UserError(f"sky {action}: {message}; see the flags, and sky check")
  return TransientError(f"sky {action}: {message}")


@handle_errors
def main(argv: list[str] | None = None) -> int:
  parser = commands.make_parser(__doc__, ("start", "status", "logs", "stop"))
  parser.add_argument(
    "--accelerators", default="tpu-v5litepod-16", help="such as H100:8 (default: %(default)s)"
  )
  parser.add_argument("--runtime_version", default="", help="of a TPU VM's image")
  parser.add_argument(
    "--nodes", type=int, default=1, help="of GPUs; a TPU slice is one (default: 1)"
  )
  parser.add_argument("--spot", action="store_true", help="on machines that may be taken away")
  parser.add_argument(
    "--restarts", type=int, default=0, help="after other errors, also 2, 3 and 4 (default: 0)"
  )
  parser.add_argument(
    "--secret", action="append", default=[], metavar="NAME", help="a variable of this environment"
  )
  args = commands.parse(parser, argv)
  job = commands.read_job(args)
  shell = Shell(args.dry_run)
  commands.check_remote(job, "the cloud")
  commands.refuse_secrets(job)
  for name in args.secret:
    if name not in os.environ:
      raise UserError(
        f"--secret={name}: not set here; set it in this environment, its value is not given on "
        "the command line"
      )
  if args.action == "start":
    commands.check_train_command(args, folders=())
    return start(job, args, shell)
  if args.action == "status":
    print(f"{job.name}: {(state(job.name, shell) or 'no such job').lower()}")
    return 0
  if args.action == "logs":
    return shell.stream(["sky", "jobs", "logs", f"--name={job.name}", "--no-follow"])
  done = shell.run(["sky", "jobs", "cancel", f"--name={job.name}", "--yes"])
  if done.returncode:
    raise _failure("jobs cancel", done.stderr)
  return 0


if __name__ == "__main__":
  sys.exit(main())
