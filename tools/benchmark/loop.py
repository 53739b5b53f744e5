"""Measure the time that the training loop adds to its steps, and the delay caused by a save."""

import argparse
import dataclasses
import json
import os
import statistics
import tempfile
import time
from importlib import metadata

from t5x_like import recipes
from t5x_like.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declare the command's flags."""
  parser.add_argument(
    "--config", default="configs/t5/quickstart.py", help="recipe (default: %(default)s)"
  )
  parser.add_argument(
    "--set", action="append", default=[], metavar="KEY=VALUE", help="change a key of the recipe"
  )
  parser.add_argument("--steps", type=int, default=60, help="steps to time (default: %(default)s)")
  parser.add_argument("--saves", type=int, default=4, help="saves to time (default: %(default)s)")


@dataclasses.dataclass
class _Times:
  """Seconds of the loop.

  Attributes:
    host: processor seconds of the loop's thread in every step.
    wall: wall seconds of every step, including its save.
    save_calls: wall seconds of the call that saves, by the index of its step.
  """

  host: list[float] = dataclasses.field(default_factory=list)
  wall: list[float] = dataclasses.field(default_factory=list)
  save_calls: dict[int, float] = dataclasses.field(default_factory=dict)


def _time_steps(run, steps: int, steps_per_save: int) -> _Times:
  """Time the steps of a run after a warm-up with a save; save every `steps_per_save` steps."""
  for _ in range(5):
    run.advance()
  run.drain()
  run.save()
  run.session.wait_for_save()
  run.advance()
  run.drain()
  times = _Times()
  for index in range(steps - 1):
    start = time.perf_counter()
    thread_start = time.thread_time()
    run.advance()
    times.host.append(time.thread_time() - thread_start)
    if index % steps_per_save == steps_per_save // 2:
      run.drain()
      save_start = time.perf_counter()
      run.save()
      times.save_calls[index] = time.perf_counter() - save_start
    times.wall.append(time.perf_counter() - start)
  run.drain()
  return times


def _step_and_stall(times: _Times) -> tuple[float, float]:
  """Return the seconds of a step, and the seconds by which a save delays the loop.

  A save delays its own step and the next one, so pairs of steps are compared.
  """
  saving_pairs = []
  usual_pairs = []
  for index in range(len(times.wall) - 1):
    pair = times.wall[index] + times.wall[index + 1]
    if index in times.save_calls:
      saving_pairs.append(pair)
    elif not {index - 1, index + 1} & times.save_calls.keys():
      usual_pairs.append(pair)
  step = statistics.median(usual_pairs) / 2
  return step, statistics.median(saving_pairs) - 2 * step


def main(args: argparse.Namespace) -> None:
  """Measure and print the result; refuse a recipe that cannot be used."""
  if args.saves < 1 or args.steps < 2 * args.saves:
    raise UserError("--steps, --saves: expected at least one save, and two steps for each")
  recipe = recipes.load(args.config, [*args.set, f"total_steps={args.steps + 5}", "log_every=1"])

  import jax

  from t5x_like.runtime import process
  from t5x_like.training.resolve import resolve
  from t5x_like.training.run import open_training_run

  process.prepare()
  # A step that runs in this thread would count as the loop's time.
  jax.config.update("jax_cpu_enable_async_dispatch", True)
  config = resolve(recipe)
  steps_per_save = args.steps // args.saves
  print(
    f"Method: the loop of {args.config} (layers={config.model.layers}, "
    f"dtype={config.model.dtype}), which writes its metrics at every step. After five steps, "
    f"{args.steps} are timed. host_seconds_per_step is the processor time of the loop's thread in "
    "a step (median): taking a batch, dispatching, reading and writing metrics; waiting for the "
    "device does not count. overhead_of_half_a_second is its share of a step of 0.5 s. "
    "save_stall_seconds is how much longer the loop takes for a step whose state it saves and the "
    f"one after it than for two others (medians; a save every {steps_per_save} steps). It includes "
    "the wait for the step itself, which a save needs. On a CPU the writing threads also take "
    "cores from the step.",
    flush=True,
  )
  with tempfile.TemporaryDirectory() as workdir, open_training_run(config, workdir) as run:
    times = _time_steps(run, args.steps, steps_per_save)
  step, stall = _step_and_stall(times)
  host_seconds = statistics.median(times.host)
  blocked = statistics.median(times.save_calls.values())
  print(
    f"a step takes {step:.3f} s, {host_seconds * 1e3:.2f} ms of them the host's "
    f"({host_seconds / 0.5:.2%} of a step of 0.5 s); a save delays the loop by {stall:.3f} s "
    f"({stall / 0.5:.1%} of a step of 0.5 s), {blocked:.3f} s of them in the call.",
    flush=True,
  )
  figures = {
    "seconds_per_step": step,
    "host_seconds_per_step": host_seconds,
    "overhead_of_half_a_second": host_seconds / 0.5,
    "save_stall_seconds": stall,
    "save_call_seconds": blocked,
    "save_stall_of_half_a_second": stall / 0.5,
    "load_average": os.getloadavg()[0],
    "versions": {
      name: metadata.version(name) for name in ("jax", "jaxlib", "flax", "orbax-checkpoint")
    },
  }
  print(json.dumps(figures))
