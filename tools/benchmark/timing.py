"""Time a compiled training step against the machine's matrix multiplication, and profile it."""

import os
import pathlib
import statistics
import time
from collections.abc import Callable
from importlib import metadata

import numpy as np

from . import profile

METHOD = (
  "After {warmup} steps, {steps} are timed one by one, each until all its outputs are there; "
  "seconds_per_step is their median. model_flops: three times the matrix products of the forward "
  "pass (causal attention halved; gathers, elementwise work and the optimizer free). "
  "matmul_flops_per_second: the fastest product of two square matrices of the compute dtype, "
  "through the same compiler, measured before and after the steps; mfu is against the device's "
  "published dense 16-bit peak."
)


def measure(
  compiled: Callable,
  state,
  batch: dict,
  *,
  model_flops: float,
  dtype: str,
  steps: int,
  warmup: int,
  trace: str | None,
) -> dict:
  """Time a step, print a summary and return the figures as values of JSON.

  Args:
    compiled: `(state, batch) -> (state, metrics)`, which may donate the state.
    state: state of the first step.
    batch: arrays of the batch, the same in every step.
    model_flops: FLOPs of the model in a step.
    dtype: compute dtype.
    steps: number of timed steps.
    warmup: number of steps before these.
    trace: directory for a trace of three further steps, which is divided by kind of work; None for
      no trace.
  """
  import jax

  from t5x_like.training import device_peak

  before = device_peak.matmul_flops_per_second(dtype)
  for _ in range(warmup):
    state, metrics = compiled(state, batch)
  jax.block_until_ready(state)
  state, metrics, seconds, cpu_seconds = _time_steps(compiled, state, batch, steps)
  after = device_peak.matmul_flops_per_second(dtype)
  median = statistics.median(seconds)
  matmul = max(before, after)
  print(
    f"{model_flops / 1e9:.1f} GFLOPs a step, {median:.3f} s (fastest {min(seconds):.3f}): "
    f"{model_flops / median / 1e9:.0f} GFLOP/s of {matmul / 1e9:.0f} (before {before / 1e9:.0f}, "
    f"after {after / 1e9:.0f}): {model_flops / median / matmul:.1%}. A machine with other work on "
    "it shows in the spread.",
    flush=True,
  )
  device = jax.devices()[0]
  devices = len(metrics["loss"].sharding.device_set)
  peak, _ = device_peak.peak_flops(device)
  tokens = sum(x.size for name, x in batch.items() if name.endswith("_input_tokens"))
  return {
    "model_flops": model_flops,
    "seconds_per_step": median,
    "matmul_flops_per_second": matmul,
    "fraction_of_matmul": model_flops / median / matmul,
    "mfu": model_flops / median / (peak * devices) if peak else None,
    "tokens_per_second": tokens / median,
    "examples_per_second": len(next(iter(batch.values()))) / median,
    "peak_gigabytes": (device.memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e9 or None,
    "milliseconds_by_kind": _profile_step(compiled, state, batch, trace) if trace else None,
    "fastest_seconds_per_step": min(seconds),
    "cpu_seconds_per_step": cpu_seconds / steps,
    "matmul_before": before,
    "matmul_after": after,
    "loss": float(metrics["loss"]),
    "device": device.device_kind,
    "devices": devices,
    "load_average": os.getloadavg()[0],
    "versions": {name: metadata.version(name) for name in ("jax", "jaxlib", "flax", "optax")},
    "seconds": [round(s, 4) for s in seconds],
  }


def _time_steps(compiled: Callable, state, batch: dict, steps: int):
  """Return the last state and metrics, the wall seconds of each step, and all CPU seconds."""
  import jax

  seconds = []
  cpu_start = sum(os.times()[:2])
  for _ in range(steps):
    start = time.perf_counter()
    state, metrics = compiled(state, batch)
    jax.block_until_ready((state, metrics))
    seconds.append(time.perf_counter() - start)
  return state, metrics, seconds, sum(os.times()[:2]) - cpu_start


def _profile_step(compiled: Callable, state, batch: dict, trace: str) -> dict[str, float]:
  """Trace three steps; print and return the milliseconds of a step by kind of work."""
  import jax

  with jax.profiler.trace(trace):
    for _ in range(3):
      state, metrics = compiled(state, batch)
    jax.block_until_ready((state, metrics))
  kinds = {kind: ms / 3 for kind, ms in profile.milliseconds(pathlib.Path(trace)).items()}
  for kind, ms in kinds.items():
    print(f"{ms:9.2f} ms  {kind}", flush=True)
  return kinds


def random_feature(name: str, feature, vocab_size: int) -> np.ndarray:
  """Return rows of one document each: random tokens, weights of 1, positions from 0, labels of 0.

  Images are ones.

  Args:
    name: name of the feature.
    feature: shape and dtype of the feature.
    vocab_size: bound of the token ids.
  """
  if feature.dtype == np.float32 or name.endswith("segment_ids"):
    return np.ones(feature.shape, feature.dtype)
  if name.endswith("positions"):
    return np.broadcast_to(np.arange(feature.shape[-1], dtype=np.int32), feature.shape)
  if name.endswith("tokens"):
    return np.random.default_rng(len(name)).integers(1, vocab_size, feature.shape, np.int32)
  return np.zeros(feature.shape, feature.dtype)
