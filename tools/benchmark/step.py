"""`python -m tools.benchmark step`: the train step, against the machine's own matrix multiplication."""

import argparse
import json
import os
import statistics
import time
from importlib import metadata

from t5x_like import recipes
from t5x_like.errors import UserError

_OVERRIDES = ("model.dropout=0.0",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the command's flags."""
  parser.add_argument("--config", required=True, help="a recipe, such as configs/t5/base.py:small")
  parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a key of the recipe")
  parser.add_argument("--batch", type=int, default=8, help="examples in a step (default: 8)")
  parser.add_argument("--inputs", type=int, default=128, help="encoder tokens in an example (default: 128)")
  parser.add_argument("--targets", type=int, default=32, help="decoder tokens in an example (default: 32)")
  parser.add_argument("--dtype", default="auto", help="compute dtype (default: float32 on CPU, else bfloat16)")
  parser.add_argument("--steps", type=int, default=20, help="steps to time (default: 20)")
  parser.add_argument("--warmup", type=int, default=3, help="untimed steps first (default: 3)")


def main(args: argparse.Namespace) -> None:
  """Measures and prints; raises UserError for a recipe that cannot be used."""
  if min(args.batch, args.inputs, args.targets, args.steps) < 1 or args.warmup < 0:
    raise UserError("--batch, --inputs, --targets and --steps: expected at least 1 each, --warmup at least 0")
  overrides = [*_OVERRIDES, f"model.dtype={args.dtype}", f"batch_size={args.batch}", *args.set]
  config = recipes.load(args.config, overrides)

  import jax

  from t5x_like.training import assembly, flops, process

  process.prepare()
  config = assembly.resolve(config)
  compiled, state, batch, model_flops, compile_seconds = _compile(config, args)
  print(
    f"Method: {args.config} with {' '.join(overrides)}; layers={config.model.layers}, dtype={config.model.dtype}. One"
    f" step of the training loop (forward, backward, {config.optimizer.name}, metrics), compiled as"
    f" the loop compiles it, on a fixed batch of random tokens: {args.batch} x ({args.inputs} + {args.targets}). After"
    f" {args.warmup} steps, {args.steps} are timed one by one, each until all its outputs are there; seconds_per_step"
    " is their median. model_flops: three times the matrix products of the forward pass (causal attention halved;"
    " gathers, elementwise work and the optimizer free). matmul_flops_per_second: the fastest float32 product of"
    " two square matrices of 2048 or 4096, through the same compiler, measured before and after the steps.",
    flush=True,
  )
  before = flops.matmul_flops_per_second()
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
  after = flops.matmul_flops_per_second()
  median, matmul = statistics.median(seconds), max(before, after)
  print(
    f"{model_flops / 1e9:.1f} GFLOPs a step, {median:.3f} s (fastest {min(seconds):.3f}):"
    f" {model_flops / median / 1e9:.0f} GFLOP/s of {matmul / 1e9:.0f} (before {before / 1e9:.0f}, after"
    f" {after / 1e9:.0f}): {model_flops / median / matmul:.1%}. A machine with other work on it shows in the spread.",
    flush=True,
  )
  print(
    json.dumps(
      {
        "model_flops": model_flops,
        "seconds_per_step": median,
        "matmul_flops_per_second": matmul,
        "fraction_of_matmul": model_flops / median / matmul,
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


def _compile(config, args: argparse.Namespace):
  """The loop's compiled step for this recipe, and its arguments."""
  import jax
  import jax.numpy as jnp

  from t5x_like.training import assembly, flops
  from t5x_like.training.state import init_state, shardings
  from t5x_like.training.step import make_step

  parts = assembly.build(config)
  lengths = {
    "encoder_input_tokens": args.inputs,
    "decoder_input_tokens": args.targets,
    "decoder_target_tokens": args.targets,
  }
  sharding = parts.rules.batch()
  keys = jax.random.split(jax.random.key(0), len(lengths))
  batch = {
    name: jax.random.randint(key, (args.batch, length), 1, config.model.vocab_size, jnp.int32)
    for key, (name, length) in zip(keys, lengths.items(), strict=True)
  } | {"decoder_loss_weights": jnp.ones((args.batch, args.targets), jnp.float32)}
  batch = jax.device_put(batch, sharding)
  abstract = {n: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for n, x in batch.items()}
  step = make_step(
    parts.model,
    parts.objective,
    parts.optimizer,
    parts.schedule,
    parts.rules,
    seed=config.seed,
    accumulation_steps=config.accumulation_steps,
  )
  start = time.perf_counter()
  out = (shardings(parts.state), parts.rules.replicated)
  lowered = jax.jit(step, donate_argnums=0, out_shardings=out).lower(parts.state, abstract)
  compiled = lowered.compile()
  compile_seconds = time.perf_counter() - start
  state = init_state(parts.make_model, parts.optimizer, parts.state, config.seed)
  return compiled, state, batch, flops.step_flops(parts.model, parts.objective, abstract), compile_seconds
