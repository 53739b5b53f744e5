"""`python -m tools.benchmark step`: the train step of any recipe, against the machine's own matrix multiplication."""

import argparse
import json
import os
import pathlib
import statistics
import time
from importlib import metadata

import numpy as np

from t5x_like import recipes
from t5x_like.errors import UserError

from . import profile

_OVERRIDES = ("model.dropout=0.0",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declare the command's flags."""
  parser.add_argument("--config", required=True, help="a recipe, such as configs/t5/base.py:small")
  parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a key of the recipe")
  parser.add_argument("--batch", type=int, default=8, help="examples in a step (default: 8)")
  parser.add_argument("--length", type=int, help="tokens of encoders and decoders (default: the recipe's)")
  parser.add_argument("--inputs", type=int, default=128, help="encoder tokens of encoder-decoders (default: 128)")
  parser.add_argument("--targets", type=int, default=32, help="their decoder tokens (default: 32)")
  parser.add_argument("--dtype", default="auto", help="compute dtype (default: float32 on CPU, else bfloat16)")
  parser.add_argument("--steps", type=int, default=20, help="steps to time (default: 20)")
  parser.add_argument("--warmup", type=int, default=3, help="untimed steps first (default: 3)")
  parser.add_argument("--profile", metavar="DIRECTORY", help="also keep a trace of three steps here, and break it down")


def main(args: argparse.Namespace) -> None:
  """Measure and print; raise UserError for a recipe that cannot be used."""
  if min(args.batch, args.length or 1, args.inputs, args.targets, args.steps) < 1 or args.warmup < 0:
    raise UserError("--batch, --length, --inputs, --targets, --steps: expected at least 1 each, --warmup at least 0")
  config = recipes.load(args.config, [f"batch_size={args.batch}", f"model.dtype={args.dtype}"])
  keys = ("inputs_length", "targets_length") if "inputs_length" in config.task else ("length",)
  values = (args.inputs, args.targets) if "inputs_length" in config.task else (args.length,)
  shape = [f"task.{key}={value}" for key, value in zip(keys, values) if value]
  overrides = [*_OVERRIDES, f"model.dtype={args.dtype}", f"batch_size={args.batch}", *shape, *args.set]
  config = recipes.load(args.config, overrides)

  import jax

  from t5x_like.runtime import process
  from t5x_like.training import compilation

  process.prepare()
  config, compiled, state, batch, model_flops, compile_seconds = _compile(config, args)
  tokens = sum(x.size for name, x in batch.items() if name.endswith("_input_tokens"))
  print(
    f"Method: {args.config} with {' '.join(overrides)}; layers={config.model.layers}, dtype={config.model.dtype}. One"
    f" step of the training loop (forward, backward, {config.optimizer.name}, metrics), compiled as the loop compiles"
    f" it, on a fixed batch of random tokens, {tokens:,} of them. After {args.warmup} steps, {args.steps} are timed one"
    " by one, each until all its outputs are there; seconds_per_step is their median. model_flops: three times the"
    " matrix products of the forward pass (causal attention halved; gathers, elementwise work and the optimizer"
    " free). matmul_flops_per_second: the fastest product of two square matrices of the compute dtype, through the"
    " same compiler, measured before and after the steps; mfu is against the device's published dense peak.",
    flush=True,
  )
  before = compilation.matmul_flops_per_second(config.model.dtype)
  for _ in range(args.warmup):
    state, metrics = compiled(state, batch)
  jax.block_until_ready(state)
  seconds, cpu = [], os.times()
  for _ in range(args.steps):
    start = time.perf_counter()
    state, metrics = compiled(state, batch)
    jax.block_until_ready((state, metrics))
    seconds.append(time.perf_counter() - start)
  cpu_seconds = sum(os.times()[:2]) - sum(cpu[:2])
  after = compilation.matmul_flops_per_second(config.model.dtype)
  median, matmul = statistics.median(seconds), max(before, after)
  print(
    f"{model_flops / 1e9:.1f} GFLOPs a step, {median:.3f} s (fastest {min(seconds):.3f}):"
    f" {model_flops / median / 1e9:.0f} GFLOP/s of {matmul / 1e9:.0f} (before {before / 1e9:.0f}, after"
    f" {after / 1e9:.0f}): {model_flops / median / matmul:.1%}. A machine with other work on it shows in the spread.",
    flush=True,
  )
  peak, _ = compilation.peak_flops(jax.devices()[0])
  print(
    json.dumps(
      {
        "model_flops": model_flops,
        "seconds_per_step": median,
        "matmul_flops_per_second": matmul,
        "fraction_of_matmul": model_flops / median / matmul,
        "mfu": model_flops / median / (peak * jax.device_count()) if peak else None,
        "tokens_per_second": tokens / median,
        "examples_per_second": args.batch / median,
        "peak_gigabytes": (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e9 or None,
        "milliseconds_by_kind": _profiled(args, compiled, state, batch),
        "fastest_seconds_per_step": min(seconds),
        "cpu_seconds_per_step": cpu_seconds / args.steps,
        "matmul_before": before,
        "matmul_after": after,
        "compile_seconds": compile_seconds,
        "loss": float(metrics["loss"]),
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "load_average": os.getloadavg()[0],
        "versions": {name: metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax")},
        "seconds": [round(s, 4) for s in seconds],
      }
    )
  )


def _profiled(args: argparse.Namespace, compiled, state, batch) -> dict[str, float] | None:
  """Return, and print, milliseconds of a step by kind of work, from a trace of three."""
  import jax

  if not args.profile:
    return None
  folder = pathlib.Path(args.profile)
  with jax.profiler.trace(str(folder)):
    for _ in range(3):
      state, metrics = compiled(state, batch)
    jax.block_until_ready((state, metrics))
  kinds = {kind: ms / 3 for kind, ms in profile.milliseconds(folder).items()}
  for kind, ms in kinds.items():
    print(f"{ms:9.2f} ms  {kind}", flush=True)
  return kinds


def _compile(config, args: argparse.Namespace):
  """Return the loop's compiled step for this recipe, and its arguments: a batch of random tokens."""
  import jax

  from t5x_like.planning import steps
  from t5x_like.training.build import build
  from t5x_like.training.state import init_state

  config, task = steps.resolve(config, jax.default_backend(), None)
  parts = build(config)
  step = steps.make("train", config, parts, task)
  start = time.perf_counter()
  compiled = step.lower().compile()
  seconds = time.perf_counter() - start
  batch = {name: _random(name, x, config.model.vocab_size) for name, x in step.batch.items()}
  batch = jax.device_put(batch, {name: x.sharding for name, x in step.batch.items()})
  state = init_state(parts.make_model, parts.optimizer, parts.state, config.seed)
  return config, compiled, state, batch, step.model_flops, seconds


def _random(name: str, feature, vocab_size: int) -> np.ndarray:
  """Return a full row of one document: random tokens, weights of 1, positions from 0, labels of 0."""
  if feature.dtype == np.float32 or name.endswith("segment_ids"):
    return np.ones(feature.shape, feature.dtype)
  if name.endswith("positions"):
    return np.broadcast_to(np.arange(feature.shape[-1], dtype=np.int32), feature.shape)
  if name.endswith("tokens"):
    return np.random.default_rng(len(name)).integers(1, vocab_size, feature.shape, np.int32)
  return np.zeros(feature.shape, feature.dtype)
