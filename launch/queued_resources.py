"""Request, query, reach and delete the TPU VMs of one queued resource, by gcloud."""

import datetime
import math
import pathlib
import shlex
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from launch import commands
from launch.commands import EXIT_NO_ANSWER, Shell, last_line, log, parse_answer
from launch.tpu_slices import SUSPENDED_STATES
from t5x_like.errors import (
  EXIT_TRANSIENT,
  TransientError,
  UserError,
  retry,
)

# Exit codes of ssh without a connection and with one that hangs.
_UNREACHABLE = (255, EXIT_NO_ANSWER)
# Codes of google.rpc with which the same request would fail again: invalid, not found, denied, …
_PERMANENT_CODES = (3, 5, 7, 9, 11, 12, 16)
POLL_SECONDS = 30.0
_RETRY_SECONDS = 5.0
_LONGEST_WAIT_SECONDS = 1800.0  # between requests
_SSH_SECONDS = 120.0
_COPY_SECONDS = 600.0
_DELETE_SECONDS = 1800.0
_GUARD_POLL_SECONDS = 60
_GUARD_WAIT_SECONDS = 3600  # time after the end of the job for the launcher to delete the slice
GRACE_SECONDS = 900.0  # time for a save at the end of the lifetime
WORKER = "%WORKER%"  # in a command for hosts: the number of the host in its slice
_LEAST_POLLS = 10  # while waiting for slices with a short lifetime
LIFETIME_MESSAGE = "{:g} hours are over (--max_hours), or --budget or --deadline is reached"
# Runs on the first host and deletes the slice if no launcher does. Only the newest guard is active.
_GUARD = """#!/bin/bash
cd "$(dirname "$0")" || exit 1
echo $$ > guard.pid
last=$(($(date +%s) + {lifetime}))
ended=
while sleep {poll}; do
  if [ "$(cat guard.pid)" != $$ ]; then exit 0; fi
  now=$(date +%s)
  if [ -f exit_code ]; then ended=${{ended:-$now}}; else ended=; fi
  if [ "$now" -ge "$last" ] && [ -z "$ended" ]; then
    bash control.sh stop
    for second in $(seq {grace}); do
      if [ -f exit_code ]; then break; fi
      sleep 1
    done
  elif [ -z "$ended" ] || [ $((now - ended)) -lt {wait} ]; then
    continue
  fi
  {delete} && exit 0
done
"""


class Deleted(Exception):
  """Reports that another command has deleted the slice."""


class Expired(Exception):
  """Reports that there were no slices before the deadline, or within the lifetime of slices."""


@dataclass
class Slices:
  """The queued resource of a job and its TPU VMs.

  Attributes:
    name: name of the job, of the queued resource and of the TPU VMs, which have a number appended
      if there are several slices.
    args: flags of the launcher.
    shell: runs gcloud.
    exists: whether the queued resource existed at the last query.
    deadline: end of the slices' lifetime in seconds of `time.monotonic`; before they were first
      active, that of --deadline, or None.
    has_begun: whether the slices have been active.
  """

  name: str
  args: object
  shell: Shell
  exists: bool = False
  deadline: float | None = None
  has_begun: bool = False

  @property
  def nodes(self) -> list[str]:
    """Names of the TPU VMs, one for each slice."""
    if self.args.slices == 1:
      return [self.name]
    return [f"{self.name}-{index}" for index in range(self.args.slices)]

  def gcloud(self, *words: str, is_query: bool = False, seconds: float | None = None):
    """Run `gcloud compute tpus` with the words and the flags of project and zone."""
    return self.shell.run(self._command(*words), is_query=is_query, seconds=seconds)

  def _command(self, *words: str) -> list[str]:
    location_flags = (f"--project={self.args.project}", f"--zone={self.args.zone}")
    return ["gcloud", "compute", "tpus", *words, *location_flags, "--quiet"]

  def state(self) -> str | None:
    """Return the state of the queued resource, such as ACTIVE, or None if there is none.

    Transient errors are retried.
    """
    return self.describe().get("state")

  def describe(self) -> dict:
    """Return the state of the queued resource, or {} if there is none.

    The keys are `state`, `reason`, `code` and `is_permanent`: the same request would fail again.
    Transient errors are retried.
    """
    answer = retry(self._describe, self.name)
    self.exists = bool(answer)
    return answer

  def _describe(self) -> dict:
    done = self.gcloud("queued-resources", "describe", self.name, "--format=json", is_query=True)
    if done.returncode:
      if "NOT_FOUND" in done.stderr or "not found" in done.stderr:
        return {}
      raise _failure("describe", done.stderr)
    details = parse_answer(done, dict, "gcloud describe").get("state")
    state = details if isinstance(details, dict) else {}
    default = "ACTIVE" if self.shell.dry_run else "UNKNOWN"
    answer = {"state": str(state.get("state", default))} | _error_of(state)
    return answer | {"is_permanent": answer.get("code") in _PERMANENT_CODES}

  def ensure(self) -> None:
    """Request the slices unless they exist, wait for them, and replace preempted ones.

    Raises:
      UserError, TransientError: the requests failed; the message has the reason of the last one.
      Deleted: another command has deleted the request.
      Expired: there were no slices before the deadline or within --max_hours.
    """
    if self.shell.dry_run:
      self.state()
      self.create()
      return
    failures = 0
    wait = POLL_SECONDS
    printed_state = None
    last_time = time.monotonic() + max(3600 * self.args.max_hours, _LEAST_POLLS * POLL_SECONDS)
    while True:
      answer = self.describe()
      state = answer.get("state")
      if state == "ACTIVE":
        break
      if self.is_over() or time.monotonic() > last_time:
        raise Expired(self.name)
      seconds = POLL_SECONDS
      if state is None:
        if printed_state is not None:
          raise Deleted(self.name)
        if not self.create():
          seconds = wait
          wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
      elif state == "FAILED" or state in SUSPENDED_STATES and printed_state is not None:
        failures += 1
        self.delete()
        printed_state = None
        self._count_failure(failures, answer, wait)
        seconds = wait
        wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
      elif state in SUSPENDED_STATES:
        log(f"the slice is {state.lower()}: the cloud took it away; requesting it again")
        self.delete()
        seconds = 0.0
      elif state != printed_state:
        log(f"waiting for {self.args.accelerator_type} in {self.args.zone}: {state.lower()}")
        printed_state = state
      self.shell.sleep(seconds)
    if not self.has_begun:
      self.has_begun = True
      end = time.monotonic() + 3600 * self.args.max_hours - self._age_seconds()
      self.deadline = end if self.deadline is None else min(end, self.deadline)

  def _count_failure(self, failures: int, answer: dict, wait: float) -> None:
    """Print the reason of a failed request, or raise if the request must not be repeated."""
    reason = f"{answer['state'].lower()}: {answer['reason']}"
    if answer.get("is_permanent") or failures >= self.args.requests:
      kind = TransientError if _no_capacity(reason) else UserError
      raise kind(
        f"{self.name}: request {failures} of {self.args.requests}, the last: {reason}; see "
        "--accelerator_type, --runtime_version, --zone and --requests"
      )
    log(f"request {failures} of {self.args.requests}: {reason}; requesting again in {wait:g} s")

  def create(self) -> bool:
    """Request the slices; return whether the cloud accepted the request.

    The cloud refuses a request without capacity.
    """
    if self.args.slices > 1:
      nodes = (f"--node-count={self.args.slices}", f"--node-prefix={self.name}")
    else:
      nodes = (f"--node-id={self.name}",)
    kind = (
      f"--accelerator-type={self.args.accelerator_type}",
      f"--runtime-version={self.args.runtime_version}",
    )
    # The limit keeps a request that no launcher watches any more from being granted days later.
    until = f"--valid-until-duration={math.ceil(3600 * self.args.max_hours)}s"
    spot = ("--spot",) if self.args.spot else ()
    # A call that is interrupted or hangs may have reached the cloud.
    self.exists = True
    done = self.gcloud("queued-resources", "create", self.name, *nodes, *kind, until, *spot)
    if done.returncode and "ALREADY_EXISTS" not in done.stderr:
      self.exists = done.returncode == EXIT_NO_ANSWER
      if _no_capacity(done.stderr):
        log(f"no capacity: {last_line(done.stderr)}; requesting again")
        return False
      raise _failure("create", done.stderr)
    return True

  def delete(self) -> None:
    """Delete the queued resource and its TPU VMs."""
    done = self.gcloud("queued-resources", "delete", self.name, "--force", seconds=_DELETE_SECONDS)
    if done.returncode and "NOT_FOUND" not in done.stderr:
      raise _failure("delete", done.stderr)
    self.exists = False

  def delete_unless_kept(self, code: int) -> int:
    """Delete the slice at the end of its job, except with `--keep`.

    Args:
      code: exit code of the job.

    Returns:
      The exit code of the launcher.
    """
    if self.args.keep:
      log(self.billing_note())
      return code
    try:
      retry(self.delete, self.name)
    except (UserError, TransientError) as error:
      log(f"the slice cannot be deleted: {error}; {self.billing_note()}")
      return code or EXIT_TRANSIENT
    if self.shell.dry_run:
      log(f"{self.name}: nothing was run")
    else:
      log(f"{self.name} is deleted and no longer billed")
    return code

  def billing_note(self) -> str:
    """Return a line that warns of the slice's costs and shows the command that deletes it."""
    command = shlex.join(self._command("queued-resources", "delete", self.name, "--force"))
    return f"{self.name} exists and is billed until it is deleted: {command}"

  def guard(self) -> str:
    """Return the script by which the first host deletes the slice if no launcher does."""
    if self.deadline is None:
      lifetime = 3600 * self.args.max_hours
    else:
      lifetime = self.deadline - time.monotonic()
    return _GUARD.format(
      lifetime=max(0, math.ceil(lifetime)),
      poll=_GUARD_POLL_SECONDS,
      wait=_GUARD_WAIT_SECONDS,
      grace=math.ceil(GRACE_SECONDS),
      delete=commands.quote(
        *self._command("queued-resources", "delete", self.name, "--force", "--async")
      ),
    )

  def _age_seconds(self) -> float:
    """Return the age of the first TPU VM, or 0 if it is not known."""
    done = self.gcloud("tpu-vm", "describe", self.nodes[0], "--format=json", is_query=True)
    if done.returncode:
      return 0.0
    created = parse_answer(done, dict, "gcloud describe").get("createTime")
    try:
      begin = datetime.datetime.fromisoformat(str(created))
      return max(0.0, (datetime.datetime.now(datetime.UTC) - begin).total_seconds())
    except (ValueError, TypeError):  # the text is no time, or has no time zone
      return 0.0

  def is_over(self) -> bool:
    """Return whether the slices' lifetime is over."""
    return self.deadline is not None and time.monotonic() > self.deadline

  def hosts(self) -> list[tuple[str, int]]:
    """Return (TPU VM, worker number) of every host."""
    hosts = []
    for node in self.nodes:
      done = self.gcloud("tpu-vm", "describe", node, "--format=json", is_query=True)
      if done.returncode:
        raise _failure("describe", done.stderr)
      endpoints = parse_answer(done, dict, "gcloud describe").get("networkEndpoints", [{}])
      count = hosts_of(self.args.accelerator_type) if self.shell.dry_run else len(endpoints)
      hosts += [(node, worker) for worker in range(count)]
    return hosts

  def ssh(
    self, hosts: list[tuple[str, int]], command: str, tries: int = 4, seconds: float | None = None
  ) -> dict[tuple[str, int], str]:
    """Run a command on each host and return the outputs.

    Hosts that cannot be reached or that hang are tried again, others are not.

    Args:
      command: `WORKER` in it stands for the number of the host.
      seconds: time limit of a host; default: `_SSH_SECONDS`.

    Raises:
      TransientError: the command failed on a host.
    """

    def words(node: str, worker: int) -> tuple[str, ...]:
      own_command = command.replace(WORKER, str(worker))
      return ("ssh", node, f"--worker={worker}", f"--command={own_command}")

    return self._each(hosts, tries, words, seconds or _SSH_SECONDS)

  def copy(self, hosts: list[tuple[str, int]], files: list[pathlib.Path], folder: str) -> None:
    """Copy files into a folder of each host."""

    def words(node: str, worker: int) -> tuple[str, ...]:
      return ("scp", *map(str, files), f"{node}:{folder}/", f"--worker={worker}")

    self._each(hosts, 4, words, _COPY_SECONDS)

  def _each(self, hosts, tries: int, words, seconds: float) -> dict[tuple[str, int], str]:
    """Run gcloud with `words(node, worker)` for each host at the same time; see `ssh`."""

    def run(host: tuple[str, int]):
      return self.gcloud("tpu-vm", *words(*host), is_query=not self.shell.dry_run, seconds=seconds)

    answers = {}
    remaining = list(hosts)
    for attempt in range(tries):
      with ThreadPoolExecutor(1 if self.shell.dry_run else 32) as pool:
        results = dict(zip(remaining, pool.map(run, remaining)))
      failed = {}
      for host, done in results.items():
        if done.returncode:
          failed[host] = done
        else:
          answers[host] = done.stdout.strip()
      if not failed:
        return answers
      (node, worker), done = next(iter(failed.items()))
      unreachable = [host for host, result in failed.items() if result.returncode in _UNREACHABLE]
      if len(unreachable) < len(failed) or attempt == tries - 1:
        raise TransientError(
          f"worker {worker} of {node}: exit code {done.returncode}: {last_line(done.stderr)}"
        )
      log(f"{len(failed)} of {len(hosts)} hosts cannot be reached; trying them again")
      remaining = unreachable
      self.shell.sleep(_RETRY_SECONDS * 2**attempt)
    return answers


def _error_of(state: dict) -> dict:
  """Return the cloud's `reason` for a state and, if it has an error, the error's `code`."""
  for details in state.values():
    error = details.get("error") if isinstance(details, dict) else None
    if isinstance(error, dict):
      message = last_line(str(error.get("message") or error))
      return {"reason": message, "code": error.get("code")}
  return {"reason": "the cloud gives no reason"}


def hosts_of(accelerator_type: str) -> int:
  """Return the number of hosts of a slice.

  `v5litepod-64` and `v6e-64` count chips; `v4-64` and `v5p-64` count TensorCores, two per chip. A
  host has four chips, or all eight of `v5litepod-8` and `v6e-8`.

  Raises:
    UserError: the type does not end in a number.
  """
  kind, _, size = accelerator_type.rpartition("-")
  if not kind or not size.isdecimal() or not int(size):
    raise UserError(
      f"--accelerator_type={accelerator_type}: expected a kind and a size, such as "
      "v5litepod-64 or v4-64"
    )
  if kind in ("v5litepod", "v6e"):
    return 1 if int(size) <= 8 else -(-int(size) // 4)
  return -(-int(size) // 8)


def _no_capacity(text: str) -> bool:
  """Return whether a message of gcloud reports a lack of capacity."""
  text = text.lower()
  if "quota" in text:
    return False
  return any(phrase in text for phrase in ("capacity", "stockout", "resource_exhausted"))


def _failure(action: str, text: str) -> Exception:
  """Return the error for a message of gcloud."""
  message = last_line(text)
  lower_text = text.lower()
  if "quota" in lower_text:
    return UserError(
      f"gcloud {action}: {message}; request more quota, or give another --zone or "
      "--accelerator_type"
    )
  login_phrases = (
    "permission_denied",
    "unauthenticated",
    "not currently have an active account",
  )
  if any(phrase in lower_text for phrase in login_phrases):
    return UserError(
      f"gcloud {action}: {message}; log in with gcloud auth login, and see that the project is "
      "yours"
    )
  flag_phrases = ("invalid_argument", "invalid choice", "unrecognized arguments")
  if any(phrase in lower_text for phrase in flag_phrases):
    return UserError(
      f"gcloud {action}: {message}; see --accelerator_type, --runtime_version and --zone"
    )
  return TransientError(f"gcloud {action}: {message}")
