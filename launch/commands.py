"""The launchers' common parts: the train command, a job's name, and commands that are printed, run
and tried again."""

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
# a tab is none that breaks lines
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")
EXIT_NO_ANSWER = 124  # as timeout(1) has it
ASK_SECONDS = 120.0  # for a question about a state
COMMAND_SECONDS = 600.0  # for a command that changes something
_KILL_SECONDS = 10.0


@dataclass(frozen=True)
class Job:
  """A training job.

  Attributes:
    name: of the job on every platform; the same for the same workdir, so that starting again is
      going on.
    command: the train command.
    workdir: its workdir.
    environment: variables for it.
  """

  name: str
  command: list[str]
  workdir: str
  environment: dict[str, str]


def make_parser(description: str, actions: Sequence[str]) -> Parser:
  """Return the flags of all launchers."""
  flags = Parser(description, opens_runs=False)
  flags.add_argument("action", choices=actions)
  flags.add_argument(
    "--dry_run", action="store_true", help="print every command and file, run and write nothing"
  )
  flags.add_argument("--name", help="of the job (default: made from the workdir)")
  flags.add_argument(
    "--env", action="append", default=[], metavar="NAME[=VALUE]", help="a variable for the job"
  )
  unchecked = "start without a check of the train command on this machine: recipe, flags and keys"
  flags.add_argument("--unchecked", action="store_true", help=unchecked)
  return flags


def check_train_command(
  args: argparse.Namespace, directory: str = "", folders: Sequence[str] | None = None
) -> None:
  """Check the train command of `start` before anything is created, see `train_command.check`.

  Raises:
    UserError: as `train_command.check`.
  """
  if args.unchecked or args.action != "start":
    return
  from launch import train_command

  try:
    train_command.check(args.command, directory, folders)
  except ImportError as error:
    log(f"the train command is not checked here: {error}")


def parse(flags: Parser, argv: Sequence[str] | None) -> argparse.Namespace:
  """Parse the flags, and the train command after `--` as `command`.

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


def parse_hours(text: str) -> float:
  """Parse a number of hours, as the type of a flag.

  Raises:
    argparse.ArgumentTypeError: it is no number of hours.
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
    UserError: no train command or workdir, a name that platforms refuse, or a variable that is not
      set.
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
  made = Job(name, args.command, workdir, dict(_variable(text) for text in args.env))
  return _printable_job(made) if args.dry_run else made


def _printable_job(job: Job) -> Job:
  """Return the job without its secrets: quotes around them, in scripts and manifests, cannot tear
  them apart."""
  environment = {
    name: "***" if is_secret_name(name) else redact_word(value)
    for name, value in job.environment.items()
  }
  return Job(job.name, _printable_words(job.command), redact_word(job.workdir), environment)


def job_name(workdir: str) -> str:
  """Derive a job's name: `gs://bucket/runs/T5 base` -> `t5-base-` and eight digits of a hash of the
  whole address."""
  stem = (
    re.sub(r"[^a-z0-9]+", "-", workdir.rstrip("/").rpartition("/")[2].lower())
    .strip("-")[:28]
    .strip("-")
  )
  stem = stem if stem[:1].isalpha() else f"run-{stem}".rstrip("-")
  return f"{stem}-{hashlib.sha256(workdir.rstrip('/').encode()).hexdigest()[:8]}"


def check_remote(job: Job, reason: str) -> str:
  """Return the job's workdir; refuse one that not all hosts see.

  Raises:
    UserError: a path of this machine.
  """
  if "://" not in job.workdir:
    raise UserError(
      f"--workdir={job.workdir}: expected a bucket, gs://…, that every host of {reason} can "
      "write to"
    )
  return job.workdir


def refuse_secrets(job: Job) -> None:
  """Refuse variables that are named like secrets, where they would be written into a manifest.

  Raises:
    UserError: naming the variable.
  """
  for name in filter(is_secret_name, job.environment):
    raise UserError(
      f"--env={name}: looks like a secret, which does not belong in a manifest; use "
      "--secret, see --help"
    )


def _variable(text: str) -> tuple[str, str]:
  name, equals, value = text.partition("=")
  if not re.fullmatch(r"[A-Za-z_]\w*", name):
    raise UserError(f"--env={ascii(redact(name))}: expected NAME, or NAME=VALUE")
  if not equals and name not in os.environ:
    raise UserError(f"--env={name}: not set here; set it, or give --env={name}=VALUE")
  return name, check_line(f"--env={name}", value if equals else os.environ[name])


def check_line(subject: str, text: str) -> str:
  """Return `text` if it is one line, as scripts, directives and manifests need.

  Raises:
    UserError: it has a line break, NUL or another control character; `subject` names it.
  """
  control = _CONTROL.search(text)
  if control:  # the text may be a secret, and is not shown
    raise UserError(
      f"{subject}: found {ascii(control[0])} at character {control.start()}, expected one line "
      "without control characters"
    )
  return text


def quote(*arguments: str) -> str:
  """Quote arguments for a line of a shell script.

  Raises:
    UserError: as `check_line`.
  """
  return shlex.join(check_line("a word of the command", str(argument)) for argument in arguments)


def export_lines(environment: dict[str, str]) -> list[str]:
  """Return a line of shell script for each variable."""
  return [
    f"export {name}={quote(check_line(f'--env={name}', value))}"
    for name, value in environment.items()
  ]


def job_key_line() -> str:
  """Return a line of shell script that sets a new secret for the processes of a job.

  Processes that connect to the coordinator's port without it are ignored
  (`t5x_like.parallel.distributed`).
  """
  return f"export T5X_LIKE_JOB_KEY={secrets.token_hex(16)}"


_CLIENTS = {"gs": "gcs", "s3": "s3"}  # extras of pyproject.toml by the scheme of the workdir


def extras_of(job: Job, accelerator: str) -> str:
  """Return the extras of this project that a job needs: its accelerator's, and the client of its
  workdir."""
  client = _CLIENTS.get(job.workdir.partition("://")[0])
  return ",".join([accelerator, client] if client else [accelerator])


def install_lines(extras: str, project: str, venv: str) -> str:
  """Return a shell script that installs a copy of the project into a virtual environment, once.

  The project needs Python 3.11 or newer; TPU VM images of Ubuntu 22.04 have 3.10. `uv` then brings
  one. The versions of constraints.txt hold on the Python that they were frozen for.

  Args:
    extras: of the project, such as `tpu,gcs`.
    project, venv: directories, as written in a shell script.
  """
  new = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))"
  pins = (
    f"import sys; print('-c {project}/constraints.txt' if sys.version_info[:2] == (3, 11) else '')"
  )
  return "\n".join(
    [
      "set -e",
      f"if [ ! -x {venv}/bin/python ]; then",
      "  for python in python3.11 python3.12 python3; do",
      f'    if "$python" -c {quote(new)} 2> /dev/null; then "$python" -m venv {venv}; break; fi',
      "  done",
      "fi",
      f"if [ ! -x {venv}/bin/python ]; then",
      "  python3 -m pip install --quiet --user uv && python3 -m uv venv --quiet --seed --python "
      f"3.11 {venv}",
      "fi",
      f"pins=$({venv}/bin/python -c {quote(pins)})",
      f"{venv}/bin/python -m pip install --quiet $pins -e {project}'[{extras}]'",
      "",
    ]
  )


def preflight_line(job: Job) -> str:
  """Return the check before a job, as a part of a line of shell script."""
  return quote("python", "-m", "launch.preflight", f"--workdir={job.workdir}")


def parse_answer(process: subprocess.CompletedProcess, kind: type, command: str) -> Any:
  """Parse the JSON that a command has printed.

  Raises:
    TransientError: it is no JSON, or of another type than `kind`.
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
  """Runs commands, or with `dry_run` only prints them. Arguments are never read by a shell."""

  dry_run: bool
  sleep: Callable[[float], None] = time.sleep

  def run(
    self,
    command: Sequence[str],
    text: str | None = None,
    asks: bool = False,
    seconds: float | None = None,
  ) -> subprocess.CompletedProcess:
    """Run a command to its end, with `text` on its standard input.

    Args:
      asks: only asks for a state, so it is not printed unless nothing is run.
      seconds: the longest it may take; default: `ASK_SECONDS` or `COMMAND_SECONDS`. Then it is
        ended, with the exit code `EXIT_NO_ANSWER` and a message as its standard error.
    """
    if self.dry_run or not asks:
      print("$", format_command(command), flush=True)
    if self.dry_run:
      return subprocess.CompletedProcess(command, 0, "", "")
    if seconds is None:
      seconds = ASK_SECONDS if asks else COMMAND_SECONDS
    with self._start_process(
      command, subprocess.PIPE if text else subprocess.DEVNULL, subprocess.PIPE
    ) as process:
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
    """Run a command whose output is the user's; return its exit code, `EXIT_NO_ANSWER` if it had to
    be ended."""
    print("$", format_command(command), flush=True)
    if self.dry_run:
      return 0
    with self._start_process(command, subprocess.DEVNULL, None) as process:
      try:
        return process.wait(seconds)
      except subprocess.TimeoutExpired:
        _end_group(process)
        log(f"{command[0]}: not done within {seconds:g} s; ended")
        return EXIT_NO_ANSWER
      except BaseException:
        _end_group(process)
        raise

  def _start_process(self, command: Sequence[str], stdin, output) -> subprocess.Popen:
    """Start a command as a process group, which ends with its own children, such as ssh."""
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
    """Write a file that only its owner can read, replacing any file or link; print in a dry run."""
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
  """End a process and its children: TERM, then KILL."""
  _signal_group(process, signal.SIGTERM)
  with contextlib.suppress(subprocess.TimeoutExpired):
    process.wait(_KILL_SECONDS)
  _signal_group(process, signal.SIGKILL)
  process.wait()


def _signal_group(process: subprocess.Popen, number: int) -> None:
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, number)


def format_command(command: Sequence[str]) -> str:
  """Return a command as one line of shell, without its secrets."""
  return shlex.join(_printable_words(command))


def _printable_words(command: Sequence[str]) -> list[str]:
  arguments = [str(argument) for argument in command]
  for index, argument in enumerate(arguments[:-1]):
    is_flag = argument.startswith("-") and "=" not in argument
    if is_flag and is_secret_name(argument) and _is_value(arguments[index + 1]):
      arguments[index + 1] = "***"
  return [redact_word(argument) for argument in arguments]


def _is_value(argument: str) -> bool:
  """Return whether an argument may be a secret's value, not a flag or a name such as HF_TOKEN."""
  is_name = re.fullmatch("[A-Z][A-Z0-9_]*", argument) is not None and is_secret_name(argument)
  return not argument.startswith("-") and not is_name


def log(message: str) -> None:
  print(f"[launcher] {escape_controls(message)}", file=sys.stderr, flush=True)


def last_line(text: str) -> str:
  """Return the last line of a program's output that is not blank, redacted, for a message."""
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  return redact(lines[-1])[:300] if lines else "no message"


def choose_exit_code(codes: Sequence[int]) -> int:
  """Return the exit code of a job's processes: a cause before its consequences.

  docs/reference/exit-codes.md lists the codes.
  """
  rank = dict.fromkeys(EXITS_NOT_RESTARTED, 0) | {EXIT_TRANSIENT: 2, EXIT_PREEMPTED: 3}
  failures = [code for code in codes if code]
  return min(failures, key=lambda code: rank.get(code, 1), default=0)


def is_restarted(code: int) -> bool:
  return code not in (0, *EXITS_NOT_RESTARTED) and code is not None
