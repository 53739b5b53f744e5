"""Run a multi-process job on this machine with simulated CPU devices.

  python launch/local.py --processes=2 --devices_per_process=4 --restarts=3 -- \\
    python -m t5x_like.train --config=configs/t5/quickstart.py --workdir=runs/pair

Every line of output begins with its process ([p0], [p1], …). When a process fails, the launcher
stops the others. With --restarts it then starts all of them again from the last checkpoint, after a
wait that doubles from 1 s to 60 s. The launcher returns some exit codes without a restart: 2 (user
error), 3 (numeric), 4 (damage) and 75 (preempted, state saved).

With --slices=N the processes simulate the hosts of N TPU slices. After a process was killed, the
restart includes its slice by default. With --least_slices=M the job continues without that slice
while M slices remain, and adds the slice when it returns, --return_seconds later or at SIGUSR1
(launch/member.py). T5X_LIKE_HOST is the number of a process's host, which does not change when
processes are renumbered. A path with $T5X_LIKE_HOST therefore names a disk of one host. SIGTERM and
SIGINT are passed to the processes. If the launcher dies, its processes die with it.
"""

import argparse
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

if __package__ in (None, ""):
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from launch import local_slices
from launch.commands import bind_to_this_process, cause_rank, format_command
from launch.simulated_hosts import copy_lines, simulated_devices
from t5x_like.errors import (
  EXIT_PREEMPTED,
  EXITS_NOT_RESTARTED,
  UserError,
  handle_errors,
)


@dataclass
class Attempt:
  """The result of one start of all processes.

  Attributes:
    codes: exit code of each process, negative for a signal.
    failed_index: index of the process that caused the failure, or None.
  """

  codes: list[int]
  failed_index: int | None = None


@dataclass
class Launcher:
  """Starts, watches and restarts the processes of one job.

  Attributes:
    command: command that each process runs.
    processes: number of processes, one per simulated host.
    devices_per_process: number of simulated CPU devices of a process.
    port: port of the coordinator; None selects a free port in every attempt.
    grace_seconds: time between SIGTERM and SIGKILL when a failed attempt is stopped.
  """

  command: list[str]
  processes: int
  devices_per_process: int
  port: int | None
  grace_seconds: float
  _children: list[subprocess.Popen] = field(default_factory=list)
  _signals: list[int] = field(default_factory=list)

  def run(self, restarts: int) -> int:
    """Run until all processes succeed, an error is not restarted, or the restarts are used up.

    Returns:
      The exit code of the job.
    """
    previous_handlers = {}
    for signal_number in (signal.SIGTERM, signal.SIGINT):
      previous_handlers[signal_number] = signal.signal(signal_number, self._forward)
    try:
      return self._run_attempts(restarts)
    finally:
      for signal_number, handler in previous_handlers.items():
        signal.signal(signal_number, handler)

  def _run_attempts(self, restarts: int) -> int:
    failures = 0
    while True:
      attempt = self._attempt()
      if attempt.failed_index is None:
        _log(f"all {self.processes} processes succeeded ({failures} failures before)")
        return 0
      process_code = attempt.codes[attempt.failed_index]
      code = _exit_code(process_code)
      if code == EXIT_PREEMPTED:
        _log(
          f"preempted, state saved; run the same command to continue ({failures} failures, 1 "
          "preemption)"
        )
        return code
      failures += 1
      _log(f"process {attempt.failed_index} failed: {_describe(process_code)}")
      if code in EXITS_NOT_RESTARTED:
        _log("not restarting: fix the error first")
        return code
      if self._signals or failures > restarts:
        reason = "stopped by a signal" if self._signals else f"{restarts} restarts allowed"
        _log(f"not restarting: {reason} ({failures} failures, 0 preemptions)")
        return code
      wait = min(60, 2 ** (failures - 1))
      _log(f"restart {failures} of {restarts} in {wait} s")
      self._wait(wait)

  def _wait(self, seconds: float) -> None:
    """Wait until the time is over or a signal arrives, which the next attempt passes on."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not self._signals:
      time.sleep(0.05)

  def _attempt(self) -> Attempt:
    port = self.port or _free_port()
    _check_free(port)
    key = secrets.token_hex(16)  # processes ignore connections without it
    readers = []
    self._children = []
    try:
      for index in range(self.processes):
        child = subprocess.Popen(
          bind_to_this_process(self.command),
          env=_environment(os.environ, index, self.processes, self.devices_per_process, port, key),
          stdin=subprocess.DEVNULL,
          stdout=subprocess.PIPE,
          stderr=subprocess.STDOUT,
          start_new_session=True,  # the launcher alone receives a ^C and passes it on
        )
        self._children.append(child)
        reader = threading.Thread(
          target=copy_lines, args=(child.stdout, f"[p{index}] "), daemon=True
        )
        reader.start()
        readers.append(reader)
      if self._signals:  # a signal arrived before all processes had started
        self._signal_all(self._signals[0])
      attempt = self._watch()
    finally:
      self._stop_all()
    for reader in readers:
      reader.join(timeout=5)  # a grandchild may still have the pipe open
    return attempt

  def _watch(self) -> Attempt:
    """Wait for all processes; when one fails, stop the others.

    The others receive SIGTERM and, after the grace period, SIGKILL.
    """
    failed_index = None
    deadline = float("inf")
    while any(child.poll() is None for child in self._children):
      if failed_index is None:
        failed_index = self._find_cause()
        if failed_index is not None:
          deadline = time.monotonic() + self.grace_seconds
          # Processes that were preempted together end by themselves, one after another.
          if self._children[failed_index].returncode != EXIT_PREEMPTED:
            self._signal_all(signal.SIGTERM)
      if time.monotonic() > deadline:
        self._signal_all(signal.SIGKILL)
      time.sleep(0.02)
    # A process that ended after the first failure is the cause if its exit code is one that
    # SIGTERM or SIGKILL cannot produce.
    cause = self._find_cause()
    if failed_index is None:
      failed_index = cause
    elif cause is not None and self._children[cause].returncode in EXITS_NOT_RESTARTED:
      failed_index = cause
    return Attempt([child.returncode for child in self._children], failed_index)

  def _find_cause(self) -> int | None:
    """Return the index of the process that caused the failure, or None.

    Exit codes of causes take precedence over codes of their consequences.
    """
    codes = [child.poll() for child in self._children]
    failed = [index for index, code in enumerate(codes) if code]
    return min(failed, key=lambda index: cause_rank(codes[index]), default=None)

  def _stop_all(self) -> None:
    self._signal_all(signal.SIGKILL)
    for child in self._children:
      child.wait()

  def _signal_all(self, signal_number: int) -> None:
    for child in self._children:
      if child.poll() is None:
        child.send_signal(signal_number)

  def _forward(self, signal_number: int, _frame) -> None:
    self._signals.append(signal_number)
    self._signal_all(signal_number)


def _environment(
  base, index: int, processes: int, devices: int, port: int, key: str
) -> dict[str, str]:
  """Return the environment variables of one process.

  Args:
    base: environment of the launcher.
    index: number of the process in the job.
    processes: number of processes of the job.
    devices: number of simulated CPU devices of the process.
    port: port of the coordinator.
    key: secret of the job.
  """
  return simulated_devices(base, devices) | {
    "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
    "JAX_NUM_PROCESSES": str(processes),
    "JAX_PROCESS_ID": str(index),
    "T5X_LIKE_HOST": str(index),
    "T5X_LIKE_JOB_KEY": key,
  }


def _free_port() -> int:
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    return probe.getsockname()[1]


def _check_free(port: int) -> None:
  try:
    socket.create_server(("", port)).close()
  except OSError as error:
    reason = os.strerror(error.errno)
    raise UserError(f"--port={port}: {reason}; end the job that uses it, or omit --port") from None


def _exit_code(code: int) -> int:
  return 128 - code if code < 0 else code


def _describe(code: int) -> str:
  return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _log(message: str) -> None:
  print(f"[launcher] {message}", file=sys.stderr, flush=True)


def _make_parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--processes", type=int, default=2, help="number of processes (default 2)")
  parser.add_argument(
    "--devices_per_process",
    type=int,
    default=4,
    help="simulated CPU devices of a process (default 4)",
  )
  parser.add_argument(
    "--slices", type=int, default=1, help="number of simulated slices (default 1)"
  )
  parser.add_argument(
    "--least_slices",
    type=int,
    help="fewest slices with which to continue after a loss (default: all)",
  )
  parser.add_argument(
    "--return_seconds",
    type=float,
    default=60,
    help="with --least_slices: time until a lost slice is there again (default 60)",
  )
  parser.add_argument(
    "--rejoin_seconds",
    type=float,
    default=10,
    help="with --least_slices: shortest time between a start and the return of a slice "
    "(default 10)",
  )
  parser.add_argument(
    "--restarts", type=int, default=0, help="number of restarts after failures (default 0)"
  )
  parser.add_argument("--port", type=int, help="the coordinator's port (default: a free one)")
  parser.add_argument(
    "--grace_seconds", type=float, default=30, help="time between SIGTERM and SIGKILL (default 30)"
  )
  parser.add_argument(
    "--dry_run", action="store_true", help="print each process's command and variables, run nothing"
  )
  parser.add_argument(
    "command", nargs=argparse.REMAINDER, help="after --: the command every process runs"
  )
  return parser


def _check_flags(args) -> None:
  """Check the numbers among the flags.

  Raises:
    UserError: a number is too small, or the slices do not divide the processes.
  """
  for name in ("processes", "devices_per_process", "slices", "least_slices"):
    if getattr(args, name) < 1:
      raise UserError(f"--{name}={getattr(args, name)}: expected at least 1")
  for name in ("restarts", "grace_seconds", "return_seconds", "rejoin_seconds"):
    if getattr(args, name) < 0:
      raise UserError(f"--{name}={getattr(args, name)}: expected at least 0")
  if args.processes % args.slices:
    raise UserError(
      f"--slices={args.slices}: found {args.processes} processes, expected a "
      f"multiple of {args.slices}"
    )
  if args.port is not None and not 0 < args.port < 65536:
    raise UserError(f"--port={args.port}: expected 1 to 65535")


def _print_commands(args, command: list[str]) -> None:
  """Print the command and the variables of each process."""
  port = args.port or _free_port()
  for index in range(args.processes):
    variables = _environment({}, index, args.processes, args.devices_per_process, port, "***")
    assignments = [f"{name}={value}" for name, value in variables.items()]
    print("$", format_command(["env", *assignments, *command]))


@handle_errors
def main(argv: list[str] | None = None) -> int:
  args = _make_parser().parse_args(argv)
  command = args.command[1:] if args.command[:1] == ["--"] else args.command
  if any("\0" in argument for argument in command):
    raise UserError("the command: found a NUL character, which no argument can contain; remove it")
  if not command:
    raise UserError(
      "no command; give it after --, for example: -- python -m t5x_like.train "
      "--config=… --workdir=…"
    )
  if args.least_slices is None:
    args.least_slices = args.slices
  _check_flags(args)
  if args.dry_run:
    _print_commands(args, command)
    return 0
  if args.least_slices < args.slices:
    return local_slices.run(args, command)
  launcher = Launcher(
    command=command,
    processes=args.processes,
    devices_per_process=args.devices_per_process,
    port=args.port,
    grace_seconds=args.grace_seconds,
  )
  return launcher.run(args.restarts)


if __name__ == "__main__":
  sys.exit(main())
