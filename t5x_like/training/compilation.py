"""Compile the step of a run, and compute its cost: its FLOPs and the devices' peak, the two numbers
behind MFU."""

import dataclasses
import math
import os
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend import core

from t5x_like import slots
from t5x_like.nn.attention import CAUSAL_SCOPE, Attention
from t5x_like.nn.cores import describe_cores, record_cores
from t5x_like.nn.cores.dense import Dense
from t5x_like.objectives import evaluate
from t5x_like.objectives._cross_entropy import COLUMNS_SCOPE
from t5x_like.parallel import distributed
from t5x_like.runtime import compile_cache, process
from t5x_like.training.state import shardings
from t5x_like.training.step import make_step

if TYPE_CHECKING:  # `tools.benchmark marks` runs without ml_collections
  from ml_collections import ConfigDict

  from t5x_like.training.build import Parts

# Peak dense 16-bit FLOP/s of one jax device, from the vendors' data sheets, by the start of
# `device_kind`.
_PEAK = {
  "TPU v2": 22.5e12, "TPU v3": 61.5e12,  # a device is one of two cores of a chip
  "TPU v4 lite": 138e12, "TPU v4": 275e12, "TPU v5 lite": 197e12, "TPU v5e": 197e12, "TPU v5": 459e12,
  "TPU v6 lite": 918e12, "TPU v6e": 918e12, "TPU7x": 1153.5e12, "NVIDIA H200 NVL": 835e12, "NVIDIA H100 NVL": 835e12,
  "NVIDIA B200": 2250e12, "NVIDIA H200": 989e12, "NVIDIA H100 PCIe": 756e12, "NVIDIA H100": 989e12,
  "NVIDIA GH200": 989e12, "NVIDIA A100": 312e12, "NVIDIA L40S": 362e12, "NVIDIA L40": 181e12, "NVIDIA L4": 121e12,
  "NVIDIA A10G": 70e12, "NVIDIA A10": 125e12, "Tesla V100": 125e12, "Tesla T4": 65e12,
}  # fmt: skip


_DETERMINISTIC = "xla_gpu_deterministic_ops"


@dataclasses.dataclass(frozen=True)
class Cost:
  """The cost of one step.

  Attributes:
    positions: input positions of the global batch, padding included, or its images.
    flops: model FLOPs, see `step_flops`.
    peak: peak FLOP/s of all devices together, 0 if unknown.
    of: the unit of `positions`, "tokens" or "images".
  """

  positions: int
  flops: float
  peak: float
  of: str = "tokens"


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


def compiled_step(
  lowered: jax.stages.Lowered, device: jax.Device, **more
) -> tuple[jax.stages.Compiled, dict]:
  """Return (a compiled train step, the chip's options of the compiler); `more` are further ones,
  for TPUs and GPUs."""
  if device.platform == "tpu":
    return slots.module("tpu_options", "t5x_like.training").compiled(
      lowered, device.device_kind, **more
    )
  if device.platform == "gpu" and more:
    return lowered.compile(compiler_options=more), more
  compiled = lowered.compile()
  if device.platform == "cpu":
    slots.module("malloc", "t5x_like.runtime").keep(compiled.memory_analysis().temp_size_in_bytes)
  return compiled, {}


def gpu_options(config: "ConfigDict", device: jax.Device) -> dict[str, bool]:
  """Return the options of the compiler for a step on GPUs that a second computation must equal bit
  by bit.

  GPUs add up scattered values in any order otherwise. A flag that `XLA_FLAGS` names is the user's.
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
) -> tuple[Callable, Cost]:
  """Compile the step for such batches in all processes, print the time and the step's cost, and
  return (a function `(state, batch) -> (state, metrics)` that donates the state, the cost)."""
  start = time.perf_counter()
  hits = compile_cache.hits()
  with record_cores() as used:
    lowered = lower_step(config, parts, batch)
  device = jax.devices()[0]
  compiled, options = compiled_step(lowered, device, **gpu_options(config, device))
  # A process that compiled faster (from a cache) would time out in the first collective after 30 s.
  distributed.agree({"compiled step with options": str(options)}, timeout_seconds=3600)
  cost = step_flops(parts.model, parts.objective, batch, parts.trained)
  devices = jax.device_count()
  peak, source = (
    (config.peak_flops, "the config") if config.peak_flops else peak_flops(jax.devices()[0])
  )
  cores = ", ".join(
    f"{place}: {name}".replace("_", " ") for place, name in describe_cores(used).items()
  )
  against = (
    f"MFU against {peak * devices / 1e12:,.3f} TFLOP/s of {devices} device{'s' * (devices > 1)}"
  )
  process.say(
    f"step compiled in {time.perf_counter() - start:.1f} "
    f"s{' (from the cache)' * (compile_cache.hits() > hits)}: {cost / 1e9:,.1f} model GFLOPs "
    f"(causal attention halved); {cores}; {against if peak else 'no MFU'} ({source})"
    + "".join(f"; {name}={value}" for name, value in options.items())
  )
  if parts.rules.dropped:
    process.say(
      "activations not split, as their sizes do not divide: "
      f"{', '.join(sorted(parts.rules.dropped))}"
    )
  return compiled, Cost(flops=cost, peak=peak * devices, **positions(batch))


def positions(batch: dict[str, jax.ShapeDtypeStruct]) -> dict[str, int | str]:
  """Return the `positions` of a batch, and what they are `of`, for its `Cost`."""
  if "image" in batch:
    return {"positions": batch["image"].shape[0], "of": "images"}
  return {
    "positions": sum(
      math.prod(x.shape) for name, x in batch.items() if name.endswith("_input_tokens")
    )
  }


def step_flops(
  model, objective: Callable, batch: dict[str, jax.ShapeDtypeStruct], trained=None
) -> float:
  """Count the model FLOPs of one train step: three times the matrix products of the forward pass.

  The usual convention of MFU: a multiplication and an addition are two FLOPs; the backward pass
  costs twice the forward pass; recomputation, elementwise work, gathers and the optimizer are free.
  Causal attention counts half of what the dense core computes, because causality hides half of the
  logits (Dao 2023, section 4.1), and other exact cores count as the dense one; bidirectional
  attention, also of a batch with a bidirectional prefix, counts in full. Windows count the keys
  that they leave, experts the tokens that choose them, in the traced forward pass.

  Args:
    model: an abstract or concrete model.
    objective: `(model, batch, key) -> (loss sum, sums)`.
    batch: abstract features of the global batch.
    trained: names of the trained parameters; None for all. See `training.frozen_flops` for some.
  """
  if trained is not None:
    return slots.module("frozen_flops", "t5x_like.training").step_flops(
      dense(model), objective, batch, trained
    )
  return 3.0 * forward_flops(
    lambda model, batch: evaluate(objective, model, batch)[0], dense(model), batch
  )


def dense(model):
  """Return the model to count: with the dense core for every exact one, on the keys that a window
  leaves, and without slots that experts leave empty."""
  made = jax.tree.map(lambda x: x, model)
  for _, part in list(nnx.iter_modules(made)):
    if isinstance(part, Attention) and part.core.exact:
      part.core = (
        Dense()
        if part.window is None
        else slots.module("window_flops", "t5x_like.training").Windowed()
      )
    elif hasattr(part, "experts"):
      part.experts = dataclasses.replace(part.experts, dispatch="dropless")
  return made


def forward_flops(function: Callable, *args) -> float:
  """Count the FLOPs of the matrix products of one call of `function` on (abstract) arguments."""
  return jaxpr_flops(jax.make_jaxpr(function)(*args).jaxpr)


def peak_flops(device: jax.Device) -> tuple[float, str]:
  """Return (FLOP/s, source of the figure) of one device.

  For accelerators the data sheet's dense 16-bit rate, 0 for one that is not in the table; for a CPU
  the float32 rate of a large matrix product, measured on all of the process's cores and shared
  among its devices.
  """
  kind = device.device_kind
  for name in sorted(_PEAK, key=len, reverse=True):
    if kind.startswith(name) and " MIG " not in kind:  # a part of a GPU
      return _PEAK[name], f"{name} data sheet, 16-bit"
  if device.platform != "cpu":
    return 0.0, f"no data sheet of {kind} is known; set --config.peak_flops"
  rate = compile_cache.remembered(f"matmul-{process.cores()}", matmul_flops_per_second)
  return rate / jax.local_device_count(), "float32 matrix product measured on this machine"


def matmul_flops_per_second(
  dtype: str = "float32", repeats: int = 5, seconds: float = 1.0
) -> float:
  """Return the best rate of products of two square matrices that fill a device, of `repeats` times
  or `seconds`."""
  best = 0.0
  for size in (2048, 4096) if jax.default_backend() == "cpu" else (4096, 8192):
    a = jnp.ones((size, size), dtype)
    product = jax.jit(jnp.matmul).lower(a, a).compile()
    product(a, a).block_until_ready()
    end = time.perf_counter() + seconds
    for _ in range(repeats):
      start = time.perf_counter()
      product(a, a).block_until_ready()
      best = max(best, 2.0 * size**3 / (time.perf_counter() - start))
      if time.perf_counter() > end:
        break
  return best


def jaxpr_flops(jaxpr: core.Jaxpr, halved: bool = False) -> float:
  return sum(equation_flops(equation, halved) for equation in jaxpr.eqns)


def equation_flops(equation, halved: bool) -> float:
  """Count the FLOPs of one equation; `halved` means that causality is already accounted for."""
  if not halved and CAUSAL_SCOPE in str(equation.source_info.name_stack):
    return 0.5 * equation_flops(equation, True)
  name = equation.primitive.name
  params = equation.params
  # ragged: every row is multiplied by its group's matrix
  if name in ("dot_general", "ragged_dot_general"):
    ragged = params.get("ragged_dot_dimension_numbers")
    (lhs_contracted, _), _ = ragged.dot_dimension_numbers if ragged else params["dimension_numbers"]
    contracted = math.prod(equation.invars[0].aval.shape[axis] for axis in lhs_contracted)
    return (
      2.0
      * math.prod(equation.outvars[0].aval.shape)
      * contracted
      * _share(str(equation.source_info.name_stack))
    )
  if name == "conv_general_dilated":
    kernel = equation.invars[1].aval
    out_features = params["dimension_numbers"].rhs_spec[0]
    # already divided by feature groups
    window = math.prod(kernel.shape) / kernel.shape[out_features]
    return 2.0 * math.prod(equation.outvars[0].aval.shape) * window
  if name == "cond":
    return max(jaxpr_flops(branch.jaxpr, halved) for branch in params["branches"])
  return (params["length"] if name == "scan" else 1) * sum(
    jaxpr_flops(jaxpr, halved) for jaxpr in inner(params)
  )


def _share(scopes: str) -> float:
  """Return the share of a product's columns that counts: chunks of a vocabulary may overlap."""
  found = re.search(COLUMNS_SCOPE + r"(\d+)_of_(\d+)", scopes)
  return int(found[1]) / int(found[2]) if found else 1.0


def inner(params) -> list[core.Jaxpr]:
  """Return the jaxprs among an equation's parameters, as jit, scan, checkpoint and while have
  them."""
  found = (getattr(value, "jaxpr", value) for value in params.values())
  return [jaxpr for jaxpr in found if isinstance(jaxpr, core.Jaxpr)]
