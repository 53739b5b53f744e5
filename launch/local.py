"""Runs a real multi-process job on this machine: N processes, each with its own simulated CPU
devices.

Example:
  python launch/local.py --processes=2 --devices_per_process=4 --restarts=3 -- \\
    python -m t5x_like.train --config=configs/t5/quickstart.py --workdir=runs/pair

Every line of output begins with the process it came from ([p0], [p1], …). When one process fails,
the others are stopped and, with --restarts, all start again from the last checkpoint, after a wait
that doubles from 1 s to 60 s. Exit codes that starting again cannot change (2 an error to fix, 3
numeric, 4 damage) and 75 (preempted, state saved) are passed on without a restart.

With --slices=N the processes stand for the hosts of N TPU slices. A restart starts a slice whose
process was killed again; with --least_slices=M the job goes on without it as long as M slices are
left. The launcher's next run starts all slices. T5X_LIKE_HOST is the number of a process's host,
which stays when processes are numbered anew: in a path, $T5X_LIKE_HOST stands for a disk of the
host's own. SIGTERM and SIGINT are passed to the processes. If the launcher dies, its processes die
with it.
"""

import argparse
import os
import pathlib
import re
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

from launch.commands import format_command
from t5x_like.errors import (
  EXIT_PREEMPTED,
  EXIT_TRANSIENT,
  EXITS_NOT_RESTARTED,
  UserError,
  handle_errors,
)

_DEVICE_FLAG = "--xla_force_host_platform_device_count"
# of another job
_FOREIGN = ("JAX_COORDINATOR_BIND_ADDRESS", "JAX_COORDINATOR_PORT", "JAX_LOCAL_DEVICE_IDS")
# Ties the life of a process to the launcher's: on Linux the kernel kills it when its parent is gone
# (prctl 1 is PR_SET_PDEATHSIG, and survives exec).
_TIED = """
import ctypes, os, sys
if sys.platform == "linux":
  ctypes.CDLL(None).prctl(1, 9)
  if os.getppid() != int(sys.argv[1]): sys.exit(1)
try:
  os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
  message = f"{sys.argv[2]}: {error.strerror}; give a command that exists after --"
  print(f"error: {message}", file=sys.stderr)
  sys.exit(2)
"""


@dataclass
class Attempt:
  """The result of one start of all processes: the exit code of each, and which failed first."""

  codes: list[int]
  first_bad: int | None = None


@dataclass
class Launcher:
  """Starts, watches and restarts the processes of one job.

  Attributes:
    command: the program each process runs.
    processes: number of processes, each on a host of its own.
    slices: number of slices that the processes make up.
    least_slices: with fewer left, a lost slice is started again.
    devices_per_process: simulated CPU devices of each.
    port: of the coordinator; None for a free one in every attempt.
    grace_seconds: between SIGTERM and SIGKILL when stopping the rest of a failed attempt.
  """

  command: list[str]
  processes: int
  slices: int
  least_slices: int
  devices_per_process: int
  port: int | None
  grace_seconds: float
  _children: list[subprocess.Popen] = field(default_factory=list)
  _signals: list[int] = field(default_factory=list)
  _hosts: list[int] = field(default_factory=list)  # of the processes, in order

  def run(self, restarts: int) -> int:
    """Run until all processes succeed, the user must act, or the restarts are used up; return the
    exit code."""
    previous = {
      number: signal.signal(number, self._forward) for number in (signal.SIGTERM, signal.SIGINT)
    }
    failures = 0
    self._hosts = list(range(self.processes))
    try:
      while True:
        attempt = self._attempt()
        if attempt.first_bad is None:
          _say(f"all {len(self._hosts)} processes ended well ({failures} failures before)")
          return 0
        code = _exit_code(attempt.codes[attempt.first_bad])
        if code == EXIT_PREEMPTED:
          _say(
            f"preempted, state saved; run the same command to continue ({failures} failures, 1 "
            "preemption)"
          )
          return code
        failures += 1
        _say(f"process {attempt.first_bad} failed: {_describe(attempt.codes[attempt.first_bad])}")
        if code in EXITS_NOT_RESTARTED:
          _say("not restarting: an error to mend first")
          return code
        if self._signals or failures > restarts:
          _say(
            "not restarting: "
            f"{'asked to stop' if self._signals else f'{restarts} restarts allowed'} ({failures} "
            "failures, 0 preemptions)"
          )
          return code
        if attempt.codes[attempt.first_bad] == -signal.SIGKILL:
          self._leave_out(attempt.first_bad)
        wait = min(60, 2 ** (failures - 1))
        _say(f"restart {failures} of {restarts} in {wait} s")
        self._wait(wait)
    finally:
      for number, handler in previous.items():
        signal.signal(number, handler)

  def _leave_out(self, index: int) -> None:
    """Go on without the slice of a process, if enough of them are left."""
    size = self.processes // self.slices
    remaining = [host for host in self._hosts if host // size != self._hosts[index] // size]
    if len(remaining) // size >= self.least_slices:
      _say(
        f"slice {self._hosts[index] // size} is lost; {len(remaining) // size} of {self.slices} "
        "slices go on"
      )
      self._hosts = remaining

  def _wait(self, seconds: float) -> None:
    """Wait, unless asked to stop meanwhile; the next attempt then passes the signal on at once."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not self._signals:
      time.sleep(0.05)

  def _attempt(self) -> Attempt:
    port = self.port or _free_port()
    _check_free(port)
    key = secrets.token_hex(16)  # strangers at the port do not know it
    readers = []
    self._children = []
    try:
      for index, host in enumerate(self._hosts):
        child = subprocess.Popen(
          [sys.executable, "-c", _TIED, str(os.getpid()), *self.command],
          env=_environment(
            os.environ, index, len(self._hosts), self.devices_per_process, port, host, key
          ),
          stdin=subprocess.DEVNULL,
          stdout=subprocess.PIPE,
          stderr=subprocess.STDOUT,
          start_new_session=True,  # a ^C at the terminal reaches them once, through us
        )
        self._children.append(child)
        readers.append(
          threading.Thread(target=_copy_lines, args=(child.stdout, f"[p{index}] "), daemon=True)
        )
        readers[-1].start()
      for number in self._signals[:1]:  # one that came while we were starting
        self._forward(number, None, record=False)
      attempt = self._watch()
    finally:
      self._stop_all()
    for reader in readers:
      reader.join(timeout=5)  # a grandchild may still hold the pipe
    return attempt

  def _watch(self) -> Attempt:
    """Wait for all, or for the first that fails; then send the others SIGTERM and, after the grace
    period, SIGKILL."""
    first_bad = None
    deadline = float("inf")
    while any(child.poll() is None for child in self._children):
      if first_bad is None:
        first_bad = self._first_bad()
        if first_bad is not None:
          deadline = time.monotonic() + self.grace_seconds
          # Processes that were preempted together end by themselves, one after another.
          if self._children[first_bad].returncode != EXIT_PREEMPTED:
            self._signal_all(signal.SIGTERM)
      if time.monotonic() > deadline:
        self._signal_all(signal.SIGKILL)
      time.sleep(0.02)
    # one that ended later, with a code that stopping it cannot give, was the cause
    cause = self._first_bad()
    if (
      first_bad is None
      or cause is not None
      and self._children[cause].returncode in EXITS_NOT_RESTARTED
    ):
      first_bad = cause
    return Attempt([child.returncode for child in self._children], first_bad)

  def _first_bad(self) -> int | None:
    """Return the process whose failure to report: one that failed by itself comes before those that
    failed with it."""
    bad = [index for index, child in enumerate(self._children) if child.poll() not in (None, 0)]
    rank = dict.fromkeys(EXITS_NOT_RESTARTED, 0) | {EXIT_TRANSIENT: 2, EXIT_PREEMPTED: 3}
    return min(
      bad, key=lambda index: (rank.get(self._children[index].returncode, 1), index), default=None
    )

  def _stop_all(self) -> None:
    self._signal_all(signal.SIGKILL)
    for child in self._children:
      child.wait()

  def _signal_all(self, number: int) -> None:
    for child in self._children:
      if child.poll() is None:
        child.send_signal(number)

  def _forward(self, number: int, _frame, record: bool = True) -> None:
    if record:
      self._signals.append(number)
    self._signal_all(number)


def _environment(
  base, index: int, processes: int, devices: int, port: int, host: int, key: str
) -> dict[str, str]:
  """Return the environment of one process: CPU only, its own devices, its place in the job, and its
  host."""
  env = {k: v for k, v in base.items() if k not in _FOREIGN}
  flags = re.sub(rf"{_DEVICE_FLAG}=\S*", "", env.get("XLA_FLAGS", ""))
  return env | {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": f"{flags} {_DEVICE_FLAG}={devices}".strip(),
    "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
    "JAX_NUM_PROCESSES": str(processes),
    "JAX_PROCESS_ID": str(index),
    "T5X_LIKE_HOST": str(host),
    "T5X_LIKE_JOB_KEY": key,
    "PYTHONUNBUFFERED": "1",
  }


def _copy_lines(stream, prefix: str) -> None:
  for line in stream:
    sys.stdout.buffer.write(prefix.encode() + line.rstrip(b"\r\n") + b"\n")
    sys.stdout.buffer.flush()


def _free_port() -> int:
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    return probe.getsockname()[1]


def _check_free(port: int) -> None:
  try:
    socket.create_server(("", port)).close()
  except OSError as error:
    reason = os.strerror(error.errno)
    raise UserError(
      f"--port={port}: {reason}; end the job that uses it, or leave --port away"
    ) from None


def _exit_code(code: int) -> int:
  return 128 - code if code < 0 else code


def _describe(code: int) -> str:
  return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _say(message: str) -> None:
  print(f"[launcher] {message}", file=sys.stderr, flush=True)


@handle_errors
def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--processes", type=int, default=2, help="number of processes (default 2)")
  parser.add_argument(
    "--devices_per_process", type=int, default=4, help="simulated CPU devices of each (default 4)"
  )
  parser.add_argument(
    "--slices", type=int, default=1, help="number of slices of the processes (default 1)"
  )
  parser.add_argument(
    "--least_slices", type=int, help="slices with which to go on after a loss (default: all)"
  )
  parser.add_argument(
    "--restarts", type=int, default=0, help="how often to start again after a failure (default 0)"
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
  args = parser.parse_args(argv)
  command = args.command[1:] if args.command[:1] == ["--"] else args.command
  if any("\0" in argument for argument in command):
    raise UserError("the command: found NUL in a word, which no program can take; leave it out")
  if not command:
    raise UserError(
      "no command; give it after --, for example: -- python -m t5x_like.train "
      "--config=… --workdir=…"
    )
  args.least_slices = args.slices if args.least_slices is None else args.least_slices
  counts = ("processes", "devices_per_process", "slices", "least_slices")
  for name, minimum in (*dict.fromkeys(counts, 1).items(), ("restarts", 0), ("grace_seconds", 0)):
    if getattr(args, name) < minimum:
      raise UserError(f"--{name}={getattr(args, name)}: expected at least {minimum}")
  if args.processes % args.slices:
    raise UserError(
      f"--slices={args.slices}: found {args.processes} processes, expected a "
      f"multiple of {args.slices}"
    )
  if args.port is not None and not 0 < args.port < 65536:
    raise UserError(f"--port={args.port}: expected 1 to 65535")
  if args.dry_run:
    port = args.port or _free_port()
    for index in range(args.processes):
      variables = _environment(
        {}, index, args.processes, args.devices_per_process, port, index, "***"
      )
      print(
        "$",
        format_command(
          ["env", *(f"{name}={value}" for name, value in variables.items()), *command]
        ),
      )
    return 0
  shape = args.processes, args.slices, args.least_slices, args.devices_per_process
  return Launcher(command, *shape, args.port, args.grace_seconds).run(args.restarts)


if __name__ == "__main__":
  sys.exit(main())
