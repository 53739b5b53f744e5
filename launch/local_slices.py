"""Simulate the slices of an elastic job on this machine, as the control plane of a cloud would.

Each simulated host runs `launch/member.py`. A slice with a killed host is lost as a whole. It is
started again after `--return_seconds`, or at SIGUSR1, if the job still runs.
"""

import argparse
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field

from launch.commands import KEY_VARIABLE, bind_to_this_process, choose_exit_code, log
from launch.simulated_hosts import copy_lines, simulated_devices

_MEMBER = str(pathlib.Path(__file__).with_name("member.py"))
_POLL_SECONDS = 0.05
_JOIN_SECONDS = 5.0
# Hosts of one machine see each other at once: shorter times than those of a cloud.
_RHYTHM = (
  "--beat_seconds=0.5",
  "--loss_seconds=8",
  "--verdict_seconds=10",
  "--settle_seconds=2",
  "--loss_grace_seconds=5",
)


@dataclass
class Slice:
  """The simulated hosts of one slice.

  Attributes:
    number: number of the slice.
    members: programs of its hosts; none while the slice is lost.
    return_time: when a lost slice returns, in seconds of `time.monotonic`.
  """

  number: int
  members: list[subprocess.Popen] = field(default_factory=list)
  return_time: float = 0.0

  @property
  def codes(self) -> list[int]:
    """Exit codes of the members that have ended, negative for a signal."""
    return [code for code in (member.poll() for member in self.members) if code is not None]

  @property
  def is_lost(self) -> bool:
    """Whether a signal has ended a member."""
    return any(code < 0 for code in self.codes)

  @property
  def has_ended(self) -> bool:
    """Whether all members have ended by themselves."""
    return bool(self.members) and len(self.codes) == len(self.members) and not self.is_lost

  def send(self, number: int) -> None:
    """Send a signal to the members that run."""
    for member in self.members:
      if member.poll() is None:
        member.send_signal(number)

  def lose(self, return_time: float) -> None:
    """Kill the remaining members and note when the slice returns."""
    self.send(signal.SIGKILL)
    for member in self.members:
      member.wait()
    self.members = []
    self.return_time = return_time


class Cluster:
  """Starts the slices, and starts lost ones again."""

  def __init__(self, args: argparse.Namespace, command: list[str], meeting: str):
    self._args = args
    self._command = command
    self._meeting = meeting
    self._environment = simulated_devices(os.environ, args.devices_per_process) | {
      KEY_VARIABLE: secrets.token_hex(16)
    }
    self._slices = [Slice(number) for number in range(args.slices)]
    self._is_stopping = False

  def run(self) -> int:
    """Run until the members have ended; return the exit code of the job."""
    previous_handlers = {}
    for number in (signal.SIGTERM, signal.SIGINT):
      previous_handlers[number] = signal.signal(number, self._stop)
    previous_handlers[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._return_slices)
    try:
      for slice_ in self._slices:
        self._start(slice_)
      while not self._has_ended():
        for slice_ in self._slices:
          self._watch(slice_)
        time.sleep(_POLL_SECONDS)
    finally:
      for slice_ in self._slices:
        slice_.send(signal.SIGKILL)
      for number, handler in previous_handlers.items():
        signal.signal(number, handler)
    codes = []
    for slice_ in self._slices:
      codes += slice_.codes
    return choose_exit_code(codes)

  def _has_ended(self) -> bool:
    """Return whether the job has ended: some slice has, and no other runs."""
    present = [slice_ for slice_ in self._slices if slice_.members]
    if not present:
      return self._is_stopping
    return all(slice_.has_ended for slice_ in present)

  def _watch(self, slice_: Slice) -> None:
    """Note the loss of a slice, and start it again when its time has come."""
    now = time.monotonic()
    if slice_.is_lost:
      log(f"the simulated slice {slice_.number} was killed")
      slice_.lose(now + self._args.return_seconds)
    elif not slice_.members and now >= slice_.return_time and not self._is_stopping:
      log(f"the simulated slice {slice_.number} starts again")
      self._start(slice_)

  def _start(self, slice_: Slice) -> None:
    """Start the members of a slice."""
    args = self._args
    hosts_per_slice = args.processes // args.slices
    for worker in range(hosts_per_slice):
      flags = [
        f"--meeting={self._meeting}",
        f"--slices={args.slices}",
        f"--hosts_per_slice={hosts_per_slice}",
        f"--least_slices={args.least_slices}",
        f"--slice={slice_.number}",
        f"--worker={worker}",
        f"--restarts={args.restarts}",
        f"--rejoin_seconds={args.rejoin_seconds:g}",
        f"--grace_seconds={args.grace_seconds:g}",
        "--address=127.0.0.1",
        *_RHYTHM,
      ]
      member = subprocess.Popen(
        bind_to_this_process([sys.executable, _MEMBER, *flags, "--", *self._command]),
        env=self._environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
      )
      slice_.members.append(member)
      prefix = f"[p{slice_.number * hosts_per_slice + worker}] "
      threading.Thread(target=copy_lines, args=(member.stdout, prefix), daemon=True).start()

  def _stop(self, number: int, _frame) -> None:
    """Pass a signal on; slices that are lost stay away."""
    self._is_stopping = True
    for slice_ in self._slices:
      slice_.send(signal.SIGTERM)

  def _return_slices(self, number: int, _frame) -> None:
    """Let lost slices return at once."""
    for slice_ in self._slices:
      slice_.return_time = 0.0


def run(args: argparse.Namespace, command: list[str]) -> int:
  """Run a command on the simulated hosts of elastic slices; return the exit code of the job.

  Args:
    args: flags of `launch/local.py`.
  """
  with tempfile.TemporaryDirectory(prefix="t5x_like_slices_") as meeting:
    return Cluster(args, command, meeting).run()
