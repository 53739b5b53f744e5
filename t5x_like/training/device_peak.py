"""Find the peak FLOP/s of a device, the denominator of MFU, in a table or by a measurement."""

import time

import jax
import jax.numpy as jnp

from t5x_like.runtime import compile_cache, process

# Peak dense 16-bit FLOP/s of one jax device, from the vendors' data sheets, by the start of
# `device_kind`.
_PEAK = {
  # A device of TPU v2 or v3 is one of the two cores of a chip.
  "TPU v2": 22.5e12,
  "TPU v3": 61.5e12,
  "TPU v4 lite": 138e12,
  "TPU v4": 275e12,
  "TPU v5 lite": 197e12,
  "TPU v5e": 197e12,
  "TPU v5": 459e12,
  "TPU v6 lite": 918e12,
  "TPU v6e": 918e12,
  "TPU7x": 1153.5e12,
  "NVIDIA H200 NVL": 835e12,
  "NVIDIA H100 NVL": 835e12,
  "NVIDIA B200": 2250e12,
  "NVIDIA H200": 989e12,
  "NVIDIA H100 PCIe": 756e12,
  "NVIDIA H100": 989e12,
  "NVIDIA GH200": 989e12,
  "NVIDIA A100": 312e12,
  "NVIDIA L40S": 362e12,
  "NVIDIA L40": 181e12,
  "NVIDIA L4": 121e12,
  "NVIDIA A10G": 70e12,
  "NVIDIA A10": 125e12,
  "Tesla V100": 125e12,
  "Tesla T4": 65e12,
}


def peak_flops(device: jax.Device) -> tuple[float, str]:
  """Return (FLOP/s, source of the figure) of one device.

  For accelerators the data sheet's dense 16-bit rate, 0 for one that is not in the table; for a CPU
  the float32 rate of a large matrix product, measured on all of the process's cores and shared
  among its devices.
  """
  kind = device.device_kind
  for name in sorted(_PEAK, key=len, reverse=True):
    if kind.startswith(name) and " MIG " not in kind:  # MIG is a part of a GPU
      return _PEAK[name], f"{name} data sheet, 16-bit"
  if device.platform != "cpu":
    return 0.0, f"no data sheet of {kind} is known; set --config.peak_flops"
  rate = compile_cache.measure_once(f"matmul-{process.core_count()}", matmul_flops_per_second)
  return rate / jax.local_device_count(), "float32 matrix product measured on this machine"


def matmul_flops_per_second(
  dtype: str = "float32", repeats: int = 5, seconds: float = 1.0
) -> float:
  """Return the best rate of products of two square matrices that fill a device.

  Args:
    repeats: the maximum number of timed products of each size.
    seconds: the time after which no further product begins.
  """
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
