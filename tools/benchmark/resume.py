"""Measure the time from the start of the command to the next step, and the steps of killed runs."""

import argparse
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

from t5x_like.errors import UserError

_STEP = re.compile(r"^step (\d+)/(\d+) ")
_ENDLESS_STEPS = 10**6  # more than a run takes before it is killed


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declare the command's flags."""
  parser.add_argument(
    "--config", default="configs/t5/quickstart.py", help="recipe (default: %(default)s)"
  )
  parser.add_argument(
    "--set", action="append", default=[], metavar="KEY=VALUE", help="change a key of the recipe"
  )
  parser.add_argument(
    "--steps", type=int, default=20, help="steps of the first start (default: %(default)s)"
  )
  parser.add_argument(
    "--repeats", type=int, default=3, help="starts to time (default: %(default)s)"
  )
  parser.add_argument(
    "--kills", type=int, default=0, help="times to kill the run afterwards (default: %(default)s)"
  )
  parser.add_argument(
    "--after", default="20:40", metavar="A:B", help="seconds until a kill (default: %(default)s)"
  )
  parser.add_argument("--seed", type=int, default=0, help="seed of the times of kills (default: 0)")


def main(args: argparse.Namespace) -> None:
  """Time the starts, kill the run, and print the figures, the last line as JSON.

  Raises:
    UserError: a flag is wrong, or a run does not start.
  """
  low, _, high = args.after.partition(":")
  if not (low.isdigit() and high.isdigit() and int(low) <= int(high)):
    raise UserError(f"--after={args.after}: expected two numbers of seconds, such as 20:40")
  if args.repeats < 1 or args.steps < 1:
    raise UserError("--repeats, --steps: expected at least 1")
  kills = ""
  if args.kills:
    kills = f" Then it is killed {args.kills} times, each {args.after} s (uniform) after its start."
  print(
    f"Method: {args.config} is trained for {args.steps} steps and ends with a checkpoint and a "
    f"filled compile cache. Then the same command is started {args.repeats} times for one more "
    "step each, and timed from the start of the process until the line of that step is printed: "
    "imports, opening the data, restoring, compiling (from the cache), computing. The figure is "
    f"the median.{kills}",
    flush=True,
  )
  with tempfile.TemporaryDirectory() as folder:
    workdir = pathlib.Path(folder) / "run"
    whole_seconds, _ = _train(args, workdir, args.steps)
    resume_seconds = []
    for repeat in range(args.repeats):
      _, seconds = _train(args, workdir, args.steps + 1 + repeat)
      resume_seconds.append(seconds)
    resume_seconds.sort()
    median = resume_seconds[len(resume_seconds) // 2]
    print(
      f"first start, {args.steps} steps: {whole_seconds:.1f} s; resumed to the next step in "
      f"{median:.1f} s",
      flush=True,
    )
    saved_steps = _kill_runs(args, workdir, (int(low), int(high)))
  figures = {
    "resume_seconds": median,
    "starts": resume_seconds,
    "reached": saved_steps,
    "load_average": os.getloadavg()[0],
  }
  print(json.dumps(figures))


def _command(args: argparse.Namespace, workdir: pathlib.Path, total: int) -> list[str]:
  """Return the command that trains up to step `total`."""
  return [
    sys.executable,
    "-m",
    "t5x_like.train",
    f"--config={args.config}",
    f"--workdir={workdir}",
    f"--config.total_steps={total}",
    "--config.log_every=1",
    *(f"--config.{change}" for change in args.set),
  ]


def _train(args: argparse.Namespace, workdir: pathlib.Path, total: int) -> tuple[float, float]:
  """Train up to step `total`.

  Returns:
    (the seconds until the end, the seconds until the line of the first step).
  """
  start_time = time.perf_counter()
  first_step_seconds = None
  tail = []
  command = _command(args, workdir, total)
  with subprocess.Popen(
    command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
  ) as child:
    for line in child.stdout:
      tail = [*tail[-20:], line]
      if first_step_seconds is None and _STEP.match(line):
        first_step_seconds = time.perf_counter() - start_time
  if child.returncode or first_step_seconds is None:
    raise UserError(f"the run ended with exit code {child.returncode}: {''.join(tail)[-2000:]}")
  return time.perf_counter() - start_time, first_step_seconds


def _kill_runs(
  args: argparse.Namespace, workdir: pathlib.Path, seconds: tuple[int, int]
) -> list[int]:
  """Start and kill the run repeatedly; return the saved step after each kill."""
  generator = random.Random(args.seed)
  saved_steps = []
  for _ in range(args.kills):
    command = _command(args, workdir, _ENDLESS_STEPS)
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    time.sleep(generator.uniform(*seconds))
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    steps = [int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit()]
    saved_steps.append(max(steps, default=0))
    print(f"killed; the newest saved step is {saved_steps[-1]}", flush=True)
  return saved_steps
