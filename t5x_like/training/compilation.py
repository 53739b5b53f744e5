"""Compile the step of a run, and compute its cost."""

import dataclasses
import math
import time
from collections.abc import Callable

import jax
from ml_collections import ConfigDict

from t5x_like.nn.cores import cores_used, in_words
from t5x_like.parallel import distributed
from t5x_like.runtime import compile_cache, process
from t5x_like.training import flops
from t5x_like.training.build import Parts, abstract_batch
from t5x_like.training.state import shardings
from t5x_like.training.step import make_step


@dataclasses.dataclass(frozen=True)
class Cost:
  """The cost of one step.

  Attributes:
    positions: input positions of the global batch, padding included, or its images.
    flops: model FLOPs, see `flops.step_flops`.
    peak: peak FLOP/s of all devices together.
    of: the unit of `positions`, "tokens" or "images".
  """

  positions: int
  flops: float
  peak: float
  of: str = "tokens"


def lower_step(config: ConfigDict, parts: Parts, batch: dict[str, jax.ShapeDtypeStruct]) -> jax.stages.Lowered:
  """Trace the step for batches of these shapes, ready to be compiled for the mesh's devices."""
  arguments = (parts.model, parts.objective, parts.optimizer, parts.schedule, parts.rules)
  options = dict(accumulation_steps=config.accumulation_steps, guard=parts.guard, trained=parts.trained)
  step = make_step(*arguments, seed=config.seed, **options)
  out = (shardings(parts.state), parts.rules.replicated)
  return jax.jit(step, donate_argnums=0, out_shardings=out).lower(parts.state, batch)


def compile_step(config: ConfigDict, parts: Parts, task) -> tuple[Callable, Cost]:
  """Compile the step for batches of a task in all processes; print the time and the step's cost.

  Returns:
    (`(state, batch) -> (state, metrics)`, which donates the state; its cost)
  """
  batch = abstract_batch(config, parts.rules, task)
  start, hits = time.perf_counter(), compile_cache.hits()
  with cores_used() as used:
    lowered = lower_step(config, parts, batch)
  compiled = lowered.compile()
  # A process that compiled faster (from a cache) would time out in the first collective after 30 s.
  distributed.agree({"compiled step": "yes"}, timeout_seconds=3600)
  cost, devices = flops.step_flops(parts.model, parts.objective, batch), jax.device_count()
  peak, source = (config.peak_flops, "the config") if config.peak_flops else flops.peak_flops(jax.devices()[0])
  cores = ", ".join(f"{place}: {name}".replace("_", " ") for place, name in in_words(used).items())
  kept = " (from the cache)" if compile_cache.hits() > hits else ""
  process.say(
    f"step compiled in {time.perf_counter() - start:.1f} s{kept}: {cost / 1e9:,.1f} model GFLOPs (causal attention"
    f" halved); {cores}; MFU against {peak * devices / 1e12:,.3f} TFLOP/s ({devices} devices, {source})"
  )
  if parts.rules.dropped:
    process.say(f"activations not split, as their sizes do not divide: {', '.join(sorted(parts.rules.dropped))}")
  if "image" in batch:
    return compiled, Cost(batch["image"].shape[0], cost, peak * devices, "images")
  positions = sum(math.prod(x.shape) for name, x in batch.items() if name.endswith("_input_tokens"))
  return compiled, Cost(positions, cost, peak * devices)
