"""Parse the train command, name its job, and run the commands of a launcher."""

import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import re
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from t5x_like.command_line import Parser
from t5x_like.errors import (
  EXIT_PREEMPTED,
  EXIT_TRANSIENT,
  EXITS_NOT_RESTARTED,
  TransientError,
  UserError,
)
from t5x_like.files.paths import check_directory
from t5x_like.redaction import is_secret_name, redact, redact_word
from t5x_like.terminal_text import escape_controls

ROOT = pathlib.Path(__file__).resolve().parents[1]
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")  # all but the tab
EXIT_NO_ANSWER = 124  # the exit code of timeout(1)
EXIT_INTERRUPTED = 130  # a launcher that was stopped by ^C
QUERY_SECONDS = 120.0  # time limit of a command that only reads a state
COMMAND_SECONDS = 600.0  # time limit of a command that changes something
_KILL_SECONDS = 10.0  # from TERM to KILL
KEY_VARIABLE = "T5X_LIKE_JOB_KEY"  # the secret of a job's processes
# Runs a command that ends with its parent: on Linux, the kernel kills it when the parent exits
# (prctl 1 is PR_SET_PDEATHSIG, 9 is SIGKILL; the setting survives exec).
_CHILD_PROGRAM = """
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


@dataclass(frozen=True)
class Job:
  """A training job.

  Attributes:
    name: name of the job on every platform. It depends on the workdir only, so the same command
      continues the same job.
    command: words of the train command.
    workdir: directory or bucket of the run.
    environment: environment variables of the train command.
  """

  name: str
  command: list[str]
  workdir: str
  environment: dict[str, str]


def make_parser(description: str, actions: Sequence[str]) -> Parser:
  """Return a parser with the flags that all launchers share."""
  flags = Parser(description, opens_runs=False)
  flags.add_argument("action", choices=actions)
  flags.add_argument(
    "--dry_run", action="store_true", help="print every command and file; run and write nothing"
  )
  flags.add_argument("--name", help="name of the job (default: derived from the workdir)")
  flags.add_argument(
    "--env",
    action="append",
    default=[],
    metavar="NAME[=VALUE]",
    help="environment variable of the job",
  )
  flags.add_argument(
    "--unchecked",
    action="store_true",
    help="start without checking recipe, flags and keys of the train command on this machine",
  )
  return flags


def check_train_command(
  args: argparse.Namespace, directory: str = "", folders: Sequence[str] | None = None
) -> None:
  """Check the train command of the action `start` before anything is created.

  Args:
    directory, folders: arguments of `train_command.check`.

  Raises:
    UserError: the command would fail; see `train_command.check`.
  """
  if args.unchecked or args.action != "start":
    return
  from launch import train_command

  try:
    train_command.check(args.command, directory, folders)
  except ImportError as error:
    log(f"the train command is not checked here: {error}")


def parse(flags: Parser, argv: Sequence[str] | None) -> argparse.Namespace:
  """Parse the flags; store the words after `--`, the train command, as `command`.

  Raises:
    UserError: a flag is invalid, or an argument has more than one line.
  """
  words = list(sys.argv[1:] if argv is None else argv)
  end = words.index("--") if "--" in words else len(words)
  for word in words:
    is_flag = word.startswith("--") and "=" in word
    check_line(word.partition("=")[0] if is_flag else "an argument", word)
  args = flags.parse_args(words[:end])
  args.command = words[end + 1 :]
  return args


def check_least_slices(args: argparse.Namespace) -> None:
  """Check --least_slices against --slices.

  Raises:
    UserError: --least_slices is less than 1 or more than --slices.
  """
  if args.least_slices is not None and not 1 <= args.least_slices <= args.slices:
    raise UserError(f"--least_slices={args.least_slices}: expected 1 to --slices={args.slices}")


def parse_hours(text: str) -> float:
  """Parse the value of a flag that takes a number of hours.

  Raises:
    argparse.ArgumentTypeError: the text is not a number of hours above 0.
  """
  try:
    number = float(text)
  except ValueError:
    number = 0.0
  if not 0 < number < 10_000:
    raise argparse.ArgumentTypeError(f"found {text!r}, expected a number of hours above 0")
  return number


def read_job(args: argparse.Namespace) -> Job:
  """Return the job of the parsed flags.

  Raises:
    UserError: there is no train command or workdir, platforms refuse the name, or a variable is
      not set.
  """
  workdir = ""
  for argument, following in zip(args.command, [*args.command[1:], ""]):
    if argument == "--workdir":
      workdir = following
    elif argument.startswith("--workdir="):
      workdir = argument.partition("=")[2]
  if workdir.startswith("-"):
    raise UserError(
      f"--workdir={workdir}: found a flag, expected a directory; write it as ./{workdir}"
    )
  if not workdir:
    raise UserError(
      "no train command with a --workdir; give it after --, for example: -- python -m "
      "t5x_like.train --config=configs/t5/base.py --workdir=gs://bucket/run"
    )
  check_directory(workdir)
  name = args.name or job_name(workdir)
  if not re.fullmatch(r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?", name):
    raise UserError(
      f"--name={name}: expected up to 42 of a-z, 0-9 and -, beginning with a "
      "letter, not ending with -"
    )
  environment = dict(_parse_variable(text) for text in args.env)
  job = Job(name, args.command, workdir, environment)
  return _printable_job(job) if args.dry_run else job


def _printable_job(job: Job) -> Job:
  """Return the job without its secrets, for a dry run.

  Secrets are removed before scripts and manifests quote them, because quotes inside a secret could
  split it into parts that are not recognized.
  """
  environment = {
    name: "***" if is_secret_name(name) else redact_word(value)
    for name, value in job.environment.items()
  }
  return Job(job.name, _printable_words(job.command), redact_word(job.workdir), environment)


def job_name(workdir: str) -> str:
  """Derive a job's name from its workdir.

  `gs://bucket/runs/T5 base` becomes `t5-base-` and eight digits of a hash of the whole address.
  """
  address = workdir.rstrip("/")
  last_part = address.rpartition("/")[2].lower()
  stem = re.sub(r"[^a-z0-9]+", "-", last_part).strip("-")[:28].strip("-")
  if not stem[:1].isalpha():
    stem = f"run-{stem}".rstrip("-")
  digest = hashlib.sha256(address.encode()).hexdigest()
  return f"{stem}-{digest[:8]}"


def check_remote(job: Job, reason: str) -> str:
  """Return the job's workdir, which all hosts must be able to write to.

  Raises:
    UserError: the workdir is a path of this machine.
  """
  if "://" not in job.workdir:
    raise UserError(
      f"--workdir={job.workdir}: expected a bucket, gs://…, that every host of {reason} can "
      "write to"
    )
  return job.workdir


def refuse_secrets(job: Job) -> None:
  """Refuse environment variables with names of secrets, which a manifest would show.

  Raises:
    UserError: a variable has the name of a secret.
  """
  for name in filter(is_secret_name, job.environment):
    raise UserError(
      f"--env={name}: looks like a secret, which does not belong in a manifest; use "
      "--secret, see --help"
    )


def _parse_variable(text: str) -> tuple[str, str]:
  """Return name and value of `NAME=VALUE`, or of a `NAME` that is set in this environment."""
  name, equals, value = text.partition("=")
  if not re.fullmatch(r"[A-Za-z_]\w*", name):
    raise UserError(f"--env={ascii(redact(name))}: expected NAME, or NAME=VALUE")
  if not equals and name not in os.environ:
    raise UserError(f"--env={name}: not set here; set it, or give --env={name}=VALUE")
  return name, check_line(f"--env={name}", value if equals else os.environ[name])


def check_line(subject: str, text: str) -> str:
  """Return `text` if it is one line; scripts, directives and manifests need one line.

  Args:
    subject: name of the text in the error message.

  Raises:
    UserError: the text has a line break, NUL or another control character.
  """
  control = _CONTROL.search(text)
  if control:  # The message does not show the text, which may be a secret.
    raise UserError(
      f"{subject}: found {ascii(control[0])} at character {control.start()}, expected one line "
      "without control characters"
    )
  return text


def quote(*arguments: str) -> str:
  """Quote arguments for a line of a shell script.

  Raises:
    UserError: an argument is not one line; see `check_line`.
  """
  return shlex.join(check_line("a word of the command", str(argument)) for argument in arguments)


def export_lines(environment: dict[str, str]) -> list[str]:
  """Return a line of a shell script for each variable."""
  lines = []
  for name, value in environment.items():
    check_line(f"--env={name}", value)
    lines.append(f"export {name}={quote(value)}")
  return lines


def job_key_line() -> str:
  """Return a line of a shell script that sets a new secret for the processes of a job.

  Processes that connect to the coordinator's port without it are ignored
  (`t5x_like.parallel.distributed`).
  """
  return f"export {KEY_VARIABLE}={secrets.token_hex(16)}"


_CLIENTS = {"gs": "gcs", "s3": "s3"}  # extras of pyproject.toml by the scheme of the workdir


def extras_of(job: Job, accelerator: str) -> str:
  """Return the extras of this project for the job's accelerator and its workdir's bucket."""
  scheme = job.workdir.partition("://")[0]
  if scheme in _CLIENTS:
    return f"{accelerator},{_CLIENTS[scheme]}"
  return accelerator


def install_lines(extras: str, project: str, venv: str) -> str:
  """Return a shell script that installs a copy of the project into a virtual environment, once.

  The project needs Python 3.11 or newer. TPU VM images of Ubuntu 22.04 have 3.10; there, `uv`
  downloads 3.12.

  Args:
    extras: extras of the project, such as `tpu,gcs`.
    project, venv: directories, quoted for a shell script.
  """
  check = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))"
  constraints = f"{project}/constraints.txt"
  return "\n".join(
    [
      "set -e",
      f"if [ ! -x {venv}/bin/python ]; then",
      "  for python in python3.12 python3.13 python3.11 python3; do",
      f'    if "$python" -c {quote(check)} 2> /dev/null; then "$python" -m venv {venv}; break; fi',
      "  done",
      "fi",
      f"if [ ! -x {venv}/bin/python ]; then",
      "  python3 -m pip install --quiet --user uv && python3 -m uv venv --quiet --seed --python "
      f"3.12 {venv}",
      "fi",
      f"{venv}/bin/python -m pip install --quiet -c {constraints} -e {project}'[{extras}]'",
      "",
    ]
  )


def preflight_line(job: Job, platform: str | None = None) -> str:
  """Return the command that checks a host before its job, quoted for a shell script.

  Args:
    platform: expected platform of jax, `tpu` or `gpu`; None for any.
  """
  platform_flags = [f"--platform={platform}"] if platform else []
  return quote("python", "-m", "launch.preflight", f"--workdir={job.workdir}", *platform_flags)


def member_line(job: Job, platform: str, limits: dict[str, float]) -> str:
  """Return the program of a host of an elastic job, quoted for a shell script.

  Args:
    platform: `tpu` for slices that libtpu connects.
    limits: flags of launch/member.py.
  """
  flags = [f"--{name}={value:g}" for name, value in limits.items()]
  meeting = f"--meeting={job.workdir.rstrip('/')}/elastic"
  platform_flags = [f"--platform={platform}"] if platform else []
  return quote("python", "-m", "launch.member", meeting, *platform_flags, *flags)


def parse_answer(process: subprocess.CompletedProcess, kind: type, command: str) -> Any:
  """Return the JSON that a command has printed.

  Args:
    kind: expected type, `dict` or `list`.

  Raises:
    TransientError: the output is not JSON or has another type.
  """
  try:
    answer = json.loads(process.stdout or "{}")
  except ValueError:
    answer = None
  if not isinstance(answer, kind):
    raise TransientError(
      f"{command}: expected JSON as its answer, found {last_line(process.stdout)!r}"
    )
  return answer


@dataclass
class Shell:
  """Runs commands without a shell.

  Attributes:
    dry_run: print commands and files, run and write nothing.
    sleep: function that waits for a number of seconds.
  """

  dry_run: bool
  sleep: Callable[[float], None] = time.sleep

  def run(
    self,
    command: Sequence[str],
    text: str | None = None,
    is_query: bool = False,
    seconds: float | None = None,
  ) -> subprocess.CompletedProcess:
    """Run a command to its end, with `text` on its standard input.

    Args:
      is_query: whether the command only reads a state; a query is printed in a dry run only.
      seconds: limit of the command's duration; default: `QUERY_SECONDS` or `COMMAND_SECONDS`. A
        command that exceeds it is ended; its result has the exit code `EXIT_NO_ANSWER` and a
        message as standard error.
    """
    if self.dry_run or not is_query:
      print("$", format_command(command), flush=True)
    if self.dry_run:
      return subprocess.CompletedProcess(command, 0, "", "")
    if seconds is None:
      seconds = QUERY_SECONDS if is_query else COMMAND_SECONDS
    stdin = subprocess.PIPE if text else subprocess.DEVNULL
    with self._start_process(command, stdin, subprocess.PIPE) as process:
      try:
        out, err = process.communicate(text, timeout=seconds)
      except subprocess.TimeoutExpired:
        _end_group(process)
        return subprocess.CompletedProcess(
          command, EXIT_NO_ANSWER, "", f"no answer within {seconds:g} s"
        )
      except BaseException:
        _end_group(process)
        raise
      return subprocess.CompletedProcess(command, process.returncode, out, err)

  def stream(self, command: Sequence[str], seconds: float = COMMAND_SECONDS) -> int:
    """Run a command that prints to the user's terminal and return its exit code.

    A command that takes longer than `seconds` is ended; its exit code is `EXIT_NO_ANSWER`.
    """
    print("$", format_command(command), flush=True)
    if self.dry_run:
      return 0
    with self._start_process(command, subprocess.DEVNULL, None) as process:
      try:
        return process.wait(seconds)
      except subprocess.TimeoutExpired:
        _end_group(process)
        log(f"{command[0]}: not finished within {seconds:g} s; ended")
        return EXIT_NO_ANSWER
      except BaseException:
        _end_group(process)
        raise

  def _start_process(self, command: Sequence[str], stdin, output) -> subprocess.Popen:
    """Start a command in a new process group, so that children such as ssh can be ended with it."""
    options = {
      "stdin": stdin,
      "stdout": output,
      "stderr": output,
      "text": True,
      "errors": "replace",
    }
    try:
      return subprocess.Popen(command, start_new_session=True, **options)
    except OSError as error:
      raise UserError(
        f"{command[0]}: not installed, or not on the PATH ({error.strerror}); this launcher needs "
        "it"
      ) from None

  def write(self, path: pathlib.Path, text: str) -> None:
    """Write a file that only its owner can read and replace a file or link at `path`.

    A dry run prints the file, without secrets.
    """
    if self.dry_run:
      print(f"# {path.name}\n{redact(text)}", end="" if text.endswith("\n") else "\n", flush=True)
      return
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
      with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
      draft.replace(path)
    except OSError as error:
      draft.unlink(missing_ok=True)
      raise UserError(f"{path}: cannot be written: {error.strerror}") from None


def _end_group(process: subprocess.Popen) -> None:
  """End a process and its children by TERM and, after `_KILL_SECONDS`, by KILL."""
  signal_group(process, signal.SIGTERM)
  with contextlib.suppress(subprocess.TimeoutExpired):
    process.wait(_KILL_SECONDS)
  signal_group(process, signal.SIGKILL)
  process.wait()


def bind_to_this_process(command: Sequence[str]) -> list[str]:
  """Return a form of the command that the kernel kills when this process ends (on Linux)."""
  return [sys.executable, "-c", _CHILD_PROGRAM, str(os.getpid()), *command]


def signal_group(process: subprocess.Popen, number: int) -> None:
  """Send a signal to a process and its children, if they still exist."""
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, number)


def format_command(command: Sequence[str]) -> str:
  """Return a command as one line for a shell, without secrets."""
  return shlex.join(_printable_words(command))


def _printable_words(command: Sequence[str]) -> list[str]:
  arguments = [str(argument) for argument in command]
  for index, argument in enumerate(arguments[:-1]):
    is_flag = argument.startswith("-") and "=" not in argument
    if is_flag and is_secret_name(argument) and _is_value(arguments[index + 1]):
      arguments[index + 1] = "***"
  return [redact_word(argument) for argument in arguments]


def _is_value(argument: str) -> bool:
  """Return whether an argument may be a secret, and not a flag or a name such as HF_TOKEN."""
  if argument.startswith("-"):
    return False
  is_variable_name = re.fullmatch("[A-Z][A-Z0-9_]*", argument) is not None
  return not (is_variable_name and is_secret_name(argument))


def log(message: str) -> None:
  """Print a message of the launcher to standard error."""
  print(f"[launcher] {escape_controls(message)}", file=sys.stderr, flush=True)


def last_line(text: str) -> str:
  """Return the last line of an output that is not blank, without secrets, for a message."""
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  return redact(lines[-1])[:300] if lines else "no message"


def choose_exit_code(codes: Sequence[int]) -> int:
  """Return the exit code of a job by the codes of its processes (docs/reference/exit-codes.md).

  Codes of causes, such as a user's error, take precedence over codes of consequences, such as a
  lost peer.
  """
  failures = [code for code in codes if code]
  return min(failures, key=cause_rank, default=0)


def cause_rank(code: int) -> int:
  """Return the rank of a failure's exit code; the lower, the likelier it is the cause of others."""
  ranks = dict.fromkeys(EXITS_NOT_RESTARTED, 0) | {EXIT_TRANSIENT: 2, EXIT_PREEMPTED: 3}
  return ranks.get(code, 1)


def is_restarted(code: int) -> bool:
  """Return whether a job is started again after an exit code."""
  return code not in (0, *EXITS_NOT_RESTARTED) and code is not None
