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

import math
import pathlib
import sys
import time

if __package__ in (None, ""):
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from launch import commands, queued_resources, spending, tpu_elastic, tpu_hosts
from launch.commands import Job, Shell, log
from launch.queued_resources import GRACE_SECONDS, LIFETIME_MESSAGE, Deleted, Expired, Slices
from t5x_like.errors import (
  EXIT_PREEMPTED,
  EXIT_TRANSIENT,
  TransientError,
  UserError,
  handle_errors,
)
from t5x_like.terminal_text import escape_controls

# Billed after the order to save, until the cloud has deleted the slices.
_RESERVE_SECONDS = GRACE_SECONDS + 600.0


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
    slices.shell.sleep(queued_resources.POLL_SECONDS)
    state = slices.state()
    if state is None:
      raise Deleted(slices.name)
    if state != "ACTIVE":
      return EXIT_PREEMPTED
    codes = tpu_hosts.read_codes(slices, hosts, control)
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
    return commands.EXIT_INTERRUPTED
  except Exception:
    if slices.exists:
      log(slices.billing_note())
    raise
  if slices.has_begun and not slices.args.keep and not slices.shell.dry_run:
    tpu_hosts.save_logs(slices, job)
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
      tpu_hosts.install(slices, job)
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
      codes = tpu_hosts.read_codes(slices, hosts, control)
    except TransientError:
      if slices.state() is not None:
        raise
      continue
    if all(code is not None for code in codes):
      break
    if time.monotonic() > latest:
      log(f"the run has not ended within {GRACE_SECONDS:g} s; {slices.billing_note()}")
      return EXIT_TRANSIENT
    slices.shell.sleep(queued_resources.POLL_SECONDS)
  return slices.delete_unless_kept(0)


def _act_without_slice(slices: Slices, job: Job, state: str | None) -> int:
  """Perform `status`, `logs` or `stop` for a job whose slice is not active."""
  print(f"{job.name}: {'no such slice' if state is None else state.lower()}")
  folder = tpu_hosts.logs_folder(job)
  if slices.args.action == "logs" and folder.is_dir():
    print(f"logs of earlier slices are in {folder}")
  if slices.args.action == "stop" and state is not None:  # The request may still be granted.
    return slices.delete_unless_kept(0)
  return 0


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
  queued_resources.hosts_of(args.accelerator_type)
  job = commands.read_job(args)
  commands.check_remote(job, "the slice")
  folders = [name for name in tpu_hosts.COPIED_FILES if (commands.ROOT / name).is_dir()]
  commands.check_train_command(args, folders=folders)
  shell = Shell(args.dry_run)
  deadline = _limit(args) if args.action == "start" else None
  if args.least_slices is not None and args.slices > 1:
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
