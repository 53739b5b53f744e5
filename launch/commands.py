"""The launchers' common parts: the train command, a job's name, and commands that are printed, run and tried again."""

import argparse
import hashlib
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from t5x_like.command_line import Parser
from t5x_like.errors import EXIT_PREEMPTED, EXIT_TRANSIENT, EXITS_NOT_RESTARTED, UserError
from t5x_like.files.places import directory

ROOT = pathlib.Path(__file__).resolve().parents[1]
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")  # a tab is none that breaks lines
_SECRET = re.compile(r"(?i)(token|secret|password|passwd|credential|api_?key|access_?key)")


@dataclass(frozen=True)
class Job:
  """A training job.

  Attributes:
    name: of the job on every platform; the same for the same workdir, so that starting again is going on.
    command: the train command.
    workdir: its workdir.
    environment: variables for it.
  """

  name: str
  command: list[str]
  workdir: str
  environment: dict[str, str]


def parser(description: str, actions: Sequence[str]) -> Parser:
  """Return the flags of all launchers."""
  made = Parser(description, opens_runs=False)
  made.add_argument("action", choices=actions)
  made.add_argument("--dry_run", action="store_true", help="print every command and file, run and write nothing")
  made.add_argument("--name", help="of the job (default: made from the workdir)")
  made.add_argument("--env", action="append", default=[], metavar="NAME[=VALUE]", help="a variable for the job")
  return made


def parse(made: Parser, argv: Sequence[str] | None) -> argparse.Namespace:
  """Parse the flags, and as `command` the words after `--`: the train command.

  Raises:
    UserError: a flag that cannot be, or a word of more than one line.
  """
  words = list(sys.argv[1:] if argv is None else argv)
  end = words.index("--") if "--" in words else len(words)
  for word in words:
    check_line(word.partition("=")[0] if word.startswith("--") and "=" in word else "an argument", word)
  args = made.parse_args(words[:end])
  args.command = words[end + 1 :]
  return args


def job(args: argparse.Namespace) -> Job:
  """Return the job of the parsed flags.

  Raises:
    UserError: no train command or workdir, a name that platforms refuse, or a variable that is not set.
  """
  pairs = zip(args.command, [*args.command[1:], ""])
  words = (f"{word}={after}" if word == "--workdir" else word for word, after in pairs)
  *_, workdir = "", *(word.partition("=")[2] for word in words if word.startswith("--workdir="))  # the last counts
  if workdir.startswith("-"):
    raise UserError(f"--workdir={workdir}: found a flag, expected a directory; write it as ./{workdir}")
  if not workdir:
    raise UserError(
      "no train command with a --workdir; give it after --, for example: -- python -m t5x_like.train"
      " --config=configs/t5/base.py --workdir=gs://bucket/run"
    )
  directory(workdir)
  name = args.name or job_name(workdir)
  if not re.fullmatch(r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?", name):
    raise UserError(f"--name={name}: expected up to 42 of a-z, 0-9 and -, beginning with a letter, not ending with -")
  return Job(name, args.command, workdir, dict(_variable(text) for text in args.env))


def job_name(workdir: str) -> str:
  """Derive a job's name: `gs://bucket/runs/T5 base` -> `t5-base-` and eight digits of a hash of the whole address."""
  stem = re.sub(r"[^a-z0-9]+", "-", workdir.rstrip("/").rpartition("/")[2].lower()).strip("-")[:28].strip("-")
  stem = stem if stem[:1].isalpha() else f"run-{stem}".rstrip("-")
  return f"{stem}-{hashlib.sha256(workdir.rstrip('/').encode()).hexdigest()[:8]}"


def remote(job: Job, what: str) -> str:
  """Return the job's workdir; refuse one that not all hosts see.

  Raises:
    UserError: a path of this machine.
  """
  if "://" not in job.workdir:
    raise UserError(f"--workdir={job.workdir}: expected a bucket, gs://…, that every host of {what} can write to")
  return job.workdir


def without_secrets(job: Job) -> None:
  """Refuse variables that are named like secrets, where they would be written into a manifest.

  Raises:
    UserError: naming the variable.
  """
  for name in filter(_SECRET.search, job.environment):
    raise UserError(f"--env={name}: looks like a secret, which does not belong in a manifest; use --secret, see --help")


def _variable(text: str) -> tuple[str, str]:
  name, equals, value = text.partition("=")
  if not re.fullmatch(r"[A-Za-z_]\w*", name):
    raise UserError(f"--env={masked(text)}: expected NAME, or NAME=VALUE")
  if not equals and name not in os.environ:
    raise UserError(f"--env={name}: not set here; set it, or give --env={name}=VALUE")
  return name, check_line(f"--env={name}", value if equals else os.environ[name])


def masked(text: str) -> str:
  """Text to print: values of variables and flags that are named like secrets become ***."""
  return re.sub(
    r"([A-Za-z_][\w.-]*)(=)('[^']*'|\"[^\"]*\"|[^\s'\"]+)",
    lambda found: f"{found[1]}=***" if _SECRET.search(found[1]) else found[0],
    text,
  )


def check_line(what: str, text: str) -> str:
  """Return `text` if it is one line, as every value in a script, a directive or a manifest has to be.

  Raises:
    UserError: it has a line break, NUL or another control character; `what` names it.
  """
  if odd := _CONTROL.search(text):  # the text may be a secret
    raise UserError(
      f"{what}: found {ascii(odd[0])} at character {odd.start()}, expected one line without control characters"
    )
  return text


def quoted(*words: str) -> str:
  """Quote words for a line of a shell script.

  Raises:
    UserError: as `check_line`.
  """
  return shlex.join(check_line("a word of the command", str(word)) for word in words)


def exports(environment: dict[str, str]) -> list[str]:
  """Return a line of shell script for each variable."""
  return [f"export {name}={quoted(check_line(f'--env={name}', value))}" for name, value in environment.items()]


_CLIENTS = {"gs": "gcs", "s3": "s3"}  # extras of pyproject.toml by the scheme of the workdir


def extras(job: Job, accelerator: str) -> str:
  """Return the extras of this project that a job needs: its accelerator's, and the client of its workdir."""
  client = _CLIENTS.get(job.workdir.partition("://")[0])
  return ",".join([accelerator, client] if client else [accelerator])


def installation(extras: str, project: str, venv: str) -> str:
  """Return a shell script that installs a copy of the project into a virtual environment, once.

  The project needs Python 3.11 or newer; TPU VM images of Ubuntu 22.04 have 3.10. `uv` then brings one. The versions
  of constraints.txt hold on the Python that they were frozen for.

  Args:
    extras: of the project, such as `tpu,gcs`.
    project, venv: directories, as written in a shell script.
  """
  new = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))"
  pins = f"import sys; print('-c {project}/constraints.txt' if sys.version_info[:2] == (3, 11) else '')"
  return "\n".join(
    [
      "set -e",
      f"if [ ! -x {venv}/bin/python ]; then",
      "  for python in python3.11 python3.12 python3; do",
      f'    if "$python" -c {quoted(new)} 2> /dev/null; then "$python" -m venv {venv}; break; fi',
      "  done",
      "fi",
      f"if [ ! -x {venv}/bin/python ]; then",
      f"  python3 -m pip install --quiet --user uv && python3 -m uv venv --quiet --seed --python 3.11 {venv}",
      "fi",
      f"pins=$({venv}/bin/python -c {quoted(pins)})",
      f"{venv}/bin/python -m pip install --quiet $pins -e {project}'[{extras}]'",
      "",
    ]
  )


def preflight(job: Job) -> str:
  """Return the check before a job, as a part of a line of shell script."""
  return quoted("python", "-m", "launch.preflight", f"--workdir={job.workdir}")


@dataclass
class Shell:
  """Runs commands, or with `dry_run` only prints them. Arguments are never read by a shell."""

  dry_run: bool
  sleep: Callable[[float], None] = time.sleep

  def run(self, command: Sequence[str], text: str | None = None, asks: bool = False) -> subprocess.CompletedProcess:
    """Run a command to its end, with `text` on its standard input.

    Args:
      asks: only asks for a state, so it is not printed unless nothing is run.
    """
    if self.dry_run or not asks:
      print("$", masked(quoted(*command)), flush=True)
    if self.dry_run:
      return subprocess.CompletedProcess(command, 0, "", "")
    try:
      return subprocess.run(
        command, input=text, capture_output=True, text=True, stdin=None if text else subprocess.DEVNULL
      )
    except FileNotFoundError:
      raise UserError(f"{command[0]}: not installed, or not on the PATH; this launcher needs it") from None

  def stream(self, command: Sequence[str]) -> int:
    """Run a command whose output is the user's; return its exit code."""
    print("$", masked(quoted(*command)), flush=True)
    return 0 if self.dry_run else subprocess.run(command, stdin=subprocess.DEVNULL).returncode

  def write(self, path: pathlib.Path, text: str) -> None:
    """Write a file that only its owner can read; with `dry_run`, print it."""
    if self.dry_run:
      print(f"# {path.name}\n{masked(text)}", end="" if text.endswith("\n") else "\n", flush=True)
      return
    path.touch(mode=0o600)
    path.write_text(text)


def say(message: str) -> None:
  print(f"[launcher] {message}", file=sys.stderr, flush=True)


def last_line(text: str) -> str:
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  return masked(lines[-1])[:300] if lines else "no message"


def class_of(codes: Sequence[int]) -> int:
  """Choose one exit code of the processes of a job: a cause before its consequences (docs/reference/exit-codes.md)."""
  rank = dict.fromkeys(EXITS_NOT_RESTARTED, 0) | {EXIT_TRANSIENT: 2, EXIT_PREEMPTED: 3}
  bad = [code for code in codes if code]
  return min(bad, key=lambda code: rank.get(code, 1)) if bad else 0


def starts_again(code: int) -> bool:
  return code not in (0, *EXITS_NOT_RESTARTED) and code is not None
