"""Measure the training step of a recipe against the machine's matrix multiplication."""

import argparse
import json
import time

from t5x_like import recipes
from t5x_like.errors import UserError

from . import timing

_OVERRIDES = ("model.dropout=0.0",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declare the command's flags."""
  parser.add_argument("--config", required=True, help="recipe, such as configs/t5/base.py:small")
  parser.add_argument(
    "--set", action="append", default=[], metavar="KEY=VALUE", help="change a key of the recipe"
  )
  parser.add_argument("--batch", type=int, default=8, help="examples in a step (default: 8)")
  parser.add_argument(
    "--length", type=int, help="tokens of encoders and decoders (default: the recipe's)"
  )
  parser.add_argument(
    "--inputs", type=int, default=128, help="encoder tokens of encoder-decoders (default: 128)"
  )
  parser.add_argument(
    "--targets", type=int, default=32, help="decoder tokens of encoder-decoders (default: 32)"
  )
  parser.add_argument(
    "--dtype", default="auto", help="compute dtype (default: float32 on CPU, else bfloat16)"
  )
  parser.add_argument("--steps", type=int, default=20, help="steps to time (default: 20)")
  parser.add_argument("--warmup", type=int, default=3, help="untimed steps first (default: 3)")
  parser.add_argument(
    "--profile",
    metavar="DIRECTORY",
    help="directory for a trace of three steps, which is divided by kind of work",
  )


def main(args: argparse.Namespace) -> None:
  """Measure and print the result; refuse a recipe that cannot be used."""
  sizes = (args.batch, args.length or 1, args.inputs, args.targets, args.steps)
  if min(sizes) < 1 or args.warmup < 0:
    raise UserError(
      "--batch, --length, --inputs, --targets, --steps: expected at least 1 each, "
      "--warmup at least 0"
    )
  config = recipes.load(args.config, [f"batch_size={args.batch}", f"model.dtype={args.dtype}"])
  shape = []
  if "inputs_length" in config.task:
    shape = [f"task.inputs_length={args.inputs}", f"task.targets_length={args.targets}"]
  elif args.length:
    shape = [f"task.length={args.length}"]
  overrides = [
    *_OVERRIDES,
    f"model.dtype={args.dtype}",
    f"batch_size={args.batch}",
    *shape,
    *args.set,
  ]
  config = recipes.load(args.config, overrides)

  from t5x_like.runtime import process
  from t5x_like.training import compilation

  process.prepare()
  config, compiled, state, batch, model_flops, compile_seconds = _compile(config, args)
  counts = compilation.count_positions(batch)
  print(
    f"Method: {args.config} with {' '.join(overrides)}; layers={config.model.layers}, "
    f"dtype={config.model.dtype}. One step of the training loop (forward, backward, "
    f"{config.optimizer.name}, metrics), compiled as the loop compiles it, on a fixed batch of "
    f"{counts['positions']:,} {counts.get('of', 'random tokens')}. "
    + timing.METHOD.format(warmup=args.warmup, steps=args.steps),
    flush=True,
  )
  options = dict(
    model_flops=model_flops, dtype=config.model.dtype, steps=args.steps, warmup=args.warmup
  )
  figures = timing.measure(compiled, state, batch, **options, trace=args.profile)
  print(json.dumps(figures | {"compile_seconds": compile_seconds}))


def _compile(config, args: argparse.Namespace):
  """Compile the training step of a recipe.

  Returns:
    The resolved config, the compiled step, a state, a batch of random tokens, the FLOPs of the
    model in a step, and the seconds of compilation.
  """
  import jax

  from t5x_like.planning import steps
  from t5x_like.training import compilation
  from t5x_like.training.build import build_parts
  from t5x_like.training.state import init_state

  config, task = steps.resolve(config, jax.default_backend(), None)
  parts = build_parts(config)
  step = steps.make("train", config, parts, task)
  start = time.perf_counter()
  compiled, _ = compilation.compile_lowered_step(step.lower(), jax.devices()[0])
  seconds = time.perf_counter() - start
  batch = {
    name: timing.random_feature(name, x, config.model.get("vocab_size", 2))
    for name, x in step.batch.items()
  }
  batch = jax.device_put(batch, {name: x.sharding for name, x in step.batch.items()})
  state = init_state(parts.make_model, parts.optimizer, parts.state, config.seed)
  return config, compiled, state, batch, step.model_flops, seconds
