"""The versions, devices and hosts of a run, for `environment.json` and the report."""

import os
import pathlib
import platform
from importlib import metadata
from typing import Any

import jax

from t5x_like.parallel.distributed import code_version

_PACKAGES = (
  "t5x-like",
  "jax",
  "jaxlib",
  "flax",
  "optax",
  "orbax-checkpoint",
  "tensorstore",
  "numpy",
  "tensorflow",
  "tensorflow-cpu",
  "tensorflow-datasets",
  "sentencepiece",
)


def environment() -> dict[str, Any]:
  """Return a flat dict of strings and numbers; it initialises jax's devices, so call `distributed.initialize` first."""
  devices = jax.devices()
  found = {
    "devices": len(devices),
    "device_kind": devices[0].device_kind,
    "platform": devices[0].platform,
    "processes": jax.process_count(),
    "devices_per_process": jax.local_device_count(),
    "host_cpu": _cpu_model(),
    "host_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    "operating_system": f"{platform.system()} {platform.release()}",
    "python": platform.python_version(),
    "code_version": code_version(),
  }
  for package in _PACKAGES:
    try:
      found[package] = metadata.version(package)
    except metadata.PackageNotFoundError:
      continue
  return found


def _cpu_model() -> str:
  try:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
      if line.startswith("model name"):
        return line.partition(":")[2].strip()
  except OSError:
    pass
  return platform.processor() or platform.machine()
