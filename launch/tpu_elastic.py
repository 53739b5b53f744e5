"""Train on the slices of TPU VMs that exist: `launch/tpu_vm.py` with --least_slices."""

import argparse
import copy
import secrets
import time

from launch import commands, queued_resources, tpu_hosts
from launch.commands import Job, Shell, log
from launch.queued_resources import GRACE_SECONDS, LIFETIME_MESSAGE, Slices
from launch.tpu_slices import Fleet, Limits, Phase
from t5x_like.errors import EXIT_PREEMPTED, EXIT_TRANSIENT, TransientError, UserError
from t5x_like.terminal_text import escape_controls

_LAST_ACTIONS_SECONDS = 60.0  # for requests under way at the end to be known, and deleted


def run(args: argparse.Namespace, job: Job, shell: Shell, deadline: float | None = None) -> int:
  """Perform an action of `launch/tpu_vm.py` for a job with a queued resource for each slice.

  Args:
    deadline: latest end of the job in seconds of `time.monotonic`.

  Returns:
    The exit code of the launcher.
  """
  clouds = []
  for slice_ in range(args.slices):
    clouds.append(Slices(f"{job.name}-{slice_}", _single_slice_arguments(args), shell))
  elastic_job = ElasticJob(job, args, clouds, deadline)
  if args.action == "start":
    return elastic_job.start()
  if args.action == "delete":
    for cloud in clouds:
      cloud.delete()
    return 0
  if args.action == "stop":
    return elastic_job.stop()
  if args.action == "logs":
    return elastic_job.print_logs()
  return elastic_job.print_status()


class ElasticJob:
  """A job whose slices come and go.

  Args:
    clouds: the queued resource of each slice.
    deadline: latest end of the job in seconds of `time.monotonic`; None without one.
  """

  def __init__(
    self, job: Job, args: argparse.Namespace, clouds: list[Slices], deadline: float | None
  ):
    self._job = job
    self._args = args
    self._clouds = clouds
    self._control = f"bash jobs/{job.name}/control.sh"
    self._key = ""
    self._deadline = deadline
    self._has_begun = False
    self._first_time = time.monotonic()

  def start(self) -> int:
    """Train to the end, delete the slices and return the exit code."""
    if self._args.dry_run:
      return self._print_plan()
    try:
      code = self._train()
    except KeyboardInterrupt:
      log(f"no longer watching {self._job.name}; run the same command to watch it again")
      for cloud in self._existing_clouds():
        log(cloud.billing_note())
      return commands.EXIT_INTERRUPTED
    except Exception:
      for cloud in self._existing_clouds():
        log(cloud.billing_note())
      raise
    return self._finish(code)

  def stop(self) -> int:
    """Let the run save and end, then delete the slices; return the exit code."""
    self._signal_to_stop()
    deadline = time.monotonic() + GRACE_SECONDS
    while not self._args.dry_run and self._is_any_running():
      if time.monotonic() > deadline:
        for cloud in self._existing_clouds():
          log(f"the run has not ended within {GRACE_SECONDS:g} s; {cloud.billing_note()}")
        return EXIT_TRANSIENT
      self._clouds[0].shell.sleep(queued_resources.POLL_SECONDS)
    return self._delete_all(0)

  def print_status(self) -> int:
    """Print the state of each slice and of its hosts."""
    for cloud in self._clouds:
      state = cloud.state()
      print(f"{cloud.name}: {'no such slice' if state is None else state.lower()}")
      if state == "ACTIVE":
        for (node, worker), answer in cloud.ssh(cloud.hosts(), f"{self._control} state").items():
          print(f"{node} worker {worker}: {escape_controls(answer)}")
    return 0

  def print_logs(self) -> int:
    """Print the log of the first host of each slice."""
    for cloud in self._clouds:
      if cloud.state() == "ACTIVE":
        hosts = cloud.hosts()[:1]
        print(f"{cloud.name}:")
        print(escape_controls(cloud.ssh(hosts, f"{self._control} log 200")[hosts[0]]))
    return 0

  def _train(self) -> int:
    """Keep the slices until the job has ended; return its exit code."""
    self._key = self._read_key() or secrets.token_hex(16)
    limits = Limits(self._args.least_slices, requests=self._args.requests)
    fleet = Fleet(self._clouds, limits, self._install, self._read_codes)
    give_up_time = None
    try:
      while True:
        code = fleet.tick()
        if code is not None:
          fleet.wait(_LAST_ACTIONS_SECONDS)
          return code
        self._note_begin(fleet)
        if self._is_over() and give_up_time is None:
          message = LIFETIME_MESSAGE.format(self._args.max_hours)
          log(f"{message}; the run saves and ends")
          if not self._has_begun:
            return EXIT_PREEMPTED
          self._signal_to_stop()
          give_up_time = time.monotonic() + GRACE_SECONDS
        if give_up_time is not None and time.monotonic() > give_up_time:
          log(f"the run has not ended within {GRACE_SECONDS:g} s")
          return EXIT_PREEMPTED
        self._clouds[0].shell.sleep(queued_resources.POLL_SECONDS)
    finally:
      fleet.close()

  def _note_begin(self, fleet: Fleet) -> None:
    """Count the lifetime from the first slice that trains."""
    is_training = any(state.phase is Phase.TRAINING for state in fleet.states)
    if is_training and not self._has_begun:
      self._has_begun = True
      end = time.monotonic() + 3600 * self._args.max_hours
      self._deadline = end if self._deadline is None else min(end, self._deadline)

  def _is_over(self) -> bool:
    """Return whether the lifetime is over, or the time to wait for a first slice."""
    now = time.monotonic()
    if not self._has_begun and now > self._first_time + 3600 * self._args.max_hours:
      return True
    return self._deadline is not None and now > self._deadline

  def _finish(self, code: int) -> int:
    """Save the logs, and delete the slices."""
    log(f"{self._job.name} has ended with exit code {code}")
    if not self._args.keep:
      for cloud in self._existing_clouds():
        tpu_hosts.save_logs(cloud, self._job)
    return self._delete_all(code)

  def _delete_all(self, code: int) -> int:
    """Delete the slices that exist, except with --keep; return the launcher's exit code."""
    launcher_code = code
    for cloud in self._existing_clouds():
      launcher_code = cloud.delete_unless_kept(code) or launcher_code
    return launcher_code

  def _existing_clouds(self) -> list[Slices]:
    """Return the slices that exist, or that may exist because the cloud does not answer."""
    clouds = []
    for cloud in self._clouds:
      try:
        cloud.state()
      except (TransientError, UserError):
        cloud.exists = True
      if cloud.exists:
        clouds.append(cloud)
    return clouds

  def _install(self, slice_: int) -> None:
    """Install the project on a slice and start its hosts, which join the job."""
    cloud = self._clouds[slice_]
    if cloud.deadline is None:
      cloud.deadline = self._deadline or time.monotonic() + 3600 * self._args.max_hours
    log(f"{cloud.name} is there; installing the project")
    tpu_hosts.install(cloud, self._job, self._script(slice_), self._key)
    hosts = cloud.hosts()
    cloud.ssh(hosts, f"{self._control} start")
    if not self._args.keep:
      cloud.ssh(hosts[:1], f"{self._control} guard")

  def _script(self, slice_: int) -> str:
    """Return the script of each host of a slice."""
    limits = {
      "slices": self._args.slices,
      "hosts_per_slice": queued_resources.hosts_of(self._args.accelerator_type),
      "least_slices": self._args.least_slices,
      "slice": slice_,
      "restarts": self._args.restarts,
    }
    member = commands.member_line(self._job, "tpu", limits)
    train = commands.preflight_line(self._job, "tpu")
    train += f" && exec {commands.quote(*self._job.command)}"
    lines = [
      f'export {commands.KEY_VARIABLE}="$(cat "$jobs/key")"',
      f'{member} --worker="$(cat "$jobs/worker")" -- bash -c {commands.quote(train)}',
    ]
    return tpu_hosts.host_script(self._job, lines)

  def _read_codes(self, slice_: int) -> list[int | None]:
    """Return the exit code of the job on each host of a slice; None where it runs."""
    cloud = self._clouds[slice_]
    return tpu_hosts.read_codes(cloud, cloud.hosts(), self._control)

  def _read_key(self) -> str:
    """Return the secret of the hosts that run already; "" if there are none."""
    command = f"{self._control} state; cat jobs/{self._job.name}/key"
    for cloud in self._clouds:
      if cloud.state() != "ACTIVE":
        continue
      try:
        hosts = cloud.hosts()[:1]
        state, _, key = cloud.ssh(hosts, command, tries=1)[hosts[0]].partition("\n")
      except (TransientError, UserError):
        continue
      if state == "running" and key:
        log(f"{cloud.name} runs already")
        return key.strip()
    return ""

  def _signal_to_stop(self) -> None:
    """Let the hosts that can be reached save and end."""
    for cloud in self._clouds:
      try:
        if cloud.state() == "ACTIVE":
          cloud.ssh(cloud.hosts(), f"{self._control} stop")
      except (TransientError, UserError) as error:
        log(f"{cloud.name}: {error}")

  def _is_any_running(self) -> bool:
    """Return whether the job runs on any host that can be reached."""
    for slice_, cloud in enumerate(self._clouds):
      try:
        if cloud.state() == "ACTIVE" and None in self._read_codes(slice_):
          return True
      except (TransientError, UserError) as error:
        log(f"{cloud.name}: {error}")
    return False

  def _print_plan(self) -> int:
    """Print the commands and scripts of a dry run."""
    self._key = "***"
    for slice_, cloud in enumerate(self._clouds):
      cloud.create()
      self._install(slice_)
      cloud.delete_unless_kept(0)
    return 0


def _single_slice_arguments(args: argparse.Namespace) -> argparse.Namespace:
  """Return the launcher's flags for the queued resource of one slice."""
  slice_args = copy.copy(args)
  slice_args.slices = 1
  return slice_args
