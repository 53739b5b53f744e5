"""Measure the time from the start of the command to the next step, also of runs that are killed."""

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
    "--kills", type=int, default=0, help="afterwards kill the run so often and report its steps"
  )
  parser.add_argument(
    "--after", default="20:40", metavar="A:B", help="seconds until a kill (default: %(default)s)"
  )
  parser.add_argument("--seed", type=int, default=0, help="seed of the kills' moments (default: 0)")


def main(args: argparse.Namespace) -> None:
  """Measure and print; raise UserError for a run that does not start."""
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
    first, _ = _start(args, workdir, args.steps)
    starts = sorted(_start(args, workdir, args.steps + 1 + i)[1] for i in range(args.repeats))
    median = starts[len(starts) // 2]
    print(
      f"first start, {args.steps} steps: {first:.1f} s; resumed to the next step in {median:.1f} s",
      flush=True,
    )
    reached = _kill_runs(args, workdir, (int(low), int(high)))
  figures = {
    "resume_seconds": median,
    "starts": starts,
    "reached": reached,
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


def _start(args: argparse.Namespace, workdir: pathlib.Path, total: int) -> tuple[float, float]:
  """Train up to step `total`.

  Returns the seconds until the end and the seconds until the line of the first step.
  """
  begin = time.perf_counter()
  first = None
  tail = []
  command = _command(args, workdir, total)
  with subprocess.Popen(
    command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
  ) as child:
    for line in child.stdout:
      tail = [*tail[-20:], line]
      if first is None and _STEP.match(line):
        first = time.perf_counter() - begin
  if child.returncode or first is None:
    raise UserError(f"the run ended with exit code {child.returncode}: {''.join(tail)[-2000:]}")
  return time.perf_counter() - begin, first


def _kill_runs(
  args: argparse.Namespace, workdir: pathlib.Path, seconds: tuple[int, int]
) -> list[int]:
  """Start and kill the run repeatedly; return the saved step after each kill."""
  draw = random.Random(args.seed)
  reached = []
  for _ in range(args.kills):
    child = subprocess.Popen(
      _command(args, workdir, 10**6), stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )
    time.sleep(draw.uniform(*seconds))
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    steps = [int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit()]
    reached.append(max(steps, default=0))
    print(f"killed; the newest saved step is {reached[-1]}", flush=True)
  return reached
