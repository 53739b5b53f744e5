"""Set up a process before it uses a device, describe its machine, and print in the first one."""

import functools
import importlib.util
import logging
import os
import pathlib
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import jax

from t5x_like.parallel import distributed
from t5x_like.terminal_text import escape_controls

_PACKAGES = (
  "t5x-like",
  "jax",
  "jaxlib",
  "libtpu",
  "jax-cuda12-plugin",
  "jax-cuda13-plugin",
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


def prepare() -> None:
  """Join the job of this process, if any, and set up jax and logging.

  It raises as `distributed.initialize` does.
  """
  handler = logging.StreamHandler()
  handler.setFormatter(_Formatter("warning: %(message)s"))
  logging.basicConfig(level=logging.WARNING, handlers=[handler])
  jax.config.update("jax_threefry_partitionable", True)
  _skip_absent_tpus()
  distributed.initialize()
  # A single process on CPU runs steps in this thread, where `runtime.malloc` has an effect. In a
  # job, steps run in other threads, so that each host can measure its work apart from the steps.
  jax.config.update("jax_cpu_enable_async_dispatch", jax.distributed.is_initialized())


def build_task(slot: str, name: str | None, split: str, arguments: dict[str, Any]):
  """Build a task by `data.task.build_at`; from a source, in the first process before the others."""
  from t5x_like.data import task as tasks  # imports TensorFlow

  def make():
    return tasks.build_at(slot, name, split, arguments)

  return distributed.run_first_alone(make) if _names_a_source(arguments) else make()


def _names_a_source(values: Any) -> bool:
  return isinstance(values, Mapping) and (
    values.get("source") is not None or any(_names_a_source(value) for value in values.values())
  )


def _skip_absent_tpus() -> None:
  """Choose the CPU if libtpu is installed, as for plans, but there is no TPU.

  jax would search for a TPU for seconds, and print a warning.
  """
  chips = [*pathlib.Path("/dev").glob("accel[0-9]*"), *pathlib.Path("/dev/vfio").glob("[0-9]*")]
  gpu_plugins = [
    name
    for name in ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm7_plugin")
    if _is_installed(name)
  ]
  if jax.config.jax_platforms is None and _is_installed("libtpu") and not chips and not gpu_plugins:
    jax.config.update("jax_platforms", "cpu")


def _is_installed(module: str) -> bool:
  return importlib.util.find_spec(module) is not None


def is_first() -> bool:
  """Return whether this is the one process that prints and writes files."""
  return jax.process_index() == 0


class _Formatter(logging.Formatter):
  """A formatter that escapes control characters, as texts of warnings may come from data."""

  def format(self, record: logging.LogRecord) -> str:
    return escape_controls(super().format(record))


def log(text: str) -> None:
  """Print in the first process only, with control characters escaped, which data may contain."""
  if is_first():
    print(escape_controls(text), flush=True)


def describe_environment() -> dict[str, Any]:
  """Return a flat dict of strings and numbers that describes devices, host and versions.

  It initialises jax's devices, so call `distributed.initialize` first.
  """
  devices = jax.devices()
  environment = {
    "devices": len(devices),
    "device_kind": devices[0].device_kind,
    "platform": devices[0].platform,
    "processes": jax.process_count(),
    "devices_per_process": jax.local_device_count(),
    "host_cpu": _cpu_model(),
    "host_cores": core_count(),
    "operating_system": f"{platform.system()} {platform.release()}",
    "code_version": distributed.code_version(),
  }
  return environment | package_versions()


@functools.cache
def package_versions() -> dict[str, str]:
  """Return the versions of Python and of the packages that a run's numbers depend on."""
  installed = {"python": platform.python_version()}
  for package in _PACKAGES:
    try:
      installed[package] = metadata.version(package)
    except metadata.PackageNotFoundError:
      continue
  return installed


def core_count() -> int:
  """Return the number of the host's cores that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _cpu_model() -> str:
  try:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
      if line.startswith("model name"):
        return line.partition(":")[2].strip()
  except OSError:
    pass
  return platform.processor() or platform.machine()
