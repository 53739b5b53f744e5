"""Compile the step of a run, and compute the cost of a step."""

import dataclasses
import math
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax

from t5x_like.nn.cores import describe_cores, record_cores
from t5x_like.parallel import distributed
from t5x_like.runtime import compile_cache, process
from t5x_like.training.device_peak import peak_flops
from t5x_like.training.flops import step_flops
from t5x_like.training.state import shardings
from t5x_like.training.step import make_step

if TYPE_CHECKING:  # `tools.benchmark marks` runs without ml_collections
  from ml_collections import ConfigDict

  from t5x_like.training.build import Parts

_DETERMINISTIC = "xla_gpu_deterministic_ops"


@dataclasses.dataclass(frozen=True)
class StepProgram:
  """The compiled program of a step.

  Attributes:
    compiled: the program, with its text and the compiler's analysis of its memory.
    cores: the attention cores in it by log name.
    seconds: the seconds of tracing and compiling.
  """

  compiled: jax.stages.Compiled
  cores: dict[str, str]
  seconds: float


@dataclasses.dataclass(frozen=True)
class StepCost:
  """The cost of one step.

  Attributes:
    positions: input positions of the global batch, padding included, or its images.
    flops: model FLOPs, see `step_flops`.
    peak: peak FLOP/s of all devices together, 0 if unknown.
    unit: the unit of `positions`, "tokens" or "images".
    program: the compiled step; None if the cost is of no program.
  """

  positions: int
  flops: float
  peak: float
  unit: str = "tokens"
  program: StepProgram | None = None


def lower_step(
  config: "ConfigDict", parts: "Parts", batch: dict[str, jax.ShapeDtypeStruct]
) -> jax.stages.Lowered:
  """Trace the step for batches of these shapes, ready to be compiled for the mesh's devices."""
  arguments = (parts.model, parts.objective, parts.optimizer, parts.schedule, parts.rules)
  options = dict(
    accumulation_steps=config.accumulation_steps, guard=parts.guard, trained=parts.trained
  )
  step = make_step(*arguments, seed=config.seed, **options)
  out = (shardings(parts.state), parts.rules.replicated)
  return jax.jit(step, donate_argnums=0, out_shardings=out).lower(parts.state, batch)


def compile_lowered_step(
  lowered: jax.stages.Lowered, device: jax.Device, **extra_options
) -> tuple[jax.stages.Compiled, dict]:
  """Return a compiled train step and the chip's options of the compiler.

  Args:
    extra_options: further options, for TPUs and GPUs.
  """
  if device.platform == "tpu":
    from t5x_like.training.tpu_options import compile_for_chip

    return compile_for_chip(lowered, device.device_kind, **extra_options)
  if device.platform == "gpu" and extra_options:
    return lowered.compile(compiler_options=extra_options), extra_options
  compiled = lowered.compile()
  if device.platform == "cpu":
    from t5x_like.runtime import malloc

    malloc.keep_freed_memory(compiled.memory_analysis().temp_size_in_bytes)
  return compiled, {}


def gpu_options(config: "ConfigDict", device: jax.Device) -> dict[str, bool]:
  """Return the compiler's options for a step that GPUs must compute reproducibly.

  Otherwise GPUs add up scattered values in any order. A flag in `XLA_FLAGS` takes precedence.
  """
  if (
    device.platform != "gpu"
    or not config.recompute_every
    or _DETERMINISTIC in os.environ.get("XLA_FLAGS", "")
  ):
    return {}
  return {_DETERMINISTIC: True}


def compile_step(
  config: "ConfigDict", parts: "Parts", batch: dict[str, jax.ShapeDtypeStruct]
) -> tuple[Callable, StepCost]:
  """Compile the step for abstract batches in all processes, and print the time and the step's cost.

  Returns:
    (a function `(state, batch) -> (state, metrics)` that donates the state, the cost).
  """
  start = time.perf_counter()
  hits = compile_cache.hit_count()
  with record_cores() as used:
    lowered = lower_step(config, parts, batch)
  device = jax.devices()[0]
  compiled, options = compile_lowered_step(lowered, device, **gpu_options(config, device))
  # A process that compiled faster (from a cache) would time out in the first collective after 30 s.
  distributed.check_agreement({"compiled step with options": str(options)}, timeout_seconds=3600)
  cost = step_flops(parts.model, parts.objective, batch, parts.trained)
  devices = jax.device_count()
  if config.peak_flops:
    peak = config.peak_flops
    source = "the config"
  else:
    peak, source = peak_flops(device)
  from_cache = " (from the cache)" if compile_cache.hit_count() > hits else ""
  cores = describe_cores(used)
  program = StepProgram(compiled, cores, time.perf_counter() - start)
  process.log(f"step compiled in {program.seconds:.1f} s{from_cache}")
  process.log(f"  compute   {cost / 1e9:,.1f} model GFLOPs a step (causal attention halved)")
  for log_name, core in cores.items():
    process.log(f"  core      {log_name.replace('_', ' ')}: {core.replace('_', ' ')}")
  if peak:
    noun = "device" if devices == 1 else "devices"
    total_peak = f"{peak * devices / 1e12:,.3f} TFLOP/s"
    process.log(f"  peak      {total_peak} of {devices} {noun} ({source})")
  else:
    process.log(f"  peak      unknown, so there is no MFU ({source})")
  for name, value in options.items():
    process.log(f"  compiler  {name}={value}")
  if parts.rules.dropped:
    process.log(
      "activations not split, as their sizes do not divide: "
      f"{', '.join(sorted(parts.rules.dropped))}"
    )
  positions = count_positions(batch)
  return compiled, StepCost(flops=cost, peak=peak * devices, program=program, **positions)


def count_positions(batch: dict[str, jax.ShapeDtypeStruct]) -> dict[str, int | str]:
  """Return the `positions` of a batch, and their `unit`, for its `StepCost`."""
  if "image" in batch:
    return {"positions": batch["image"].shape[0], "unit": "images"}
  return {
    "positions": sum(
      math.prod(x.shape) for name, x in batch.items() if name.endswith("_input_tokens")
    )
  }
