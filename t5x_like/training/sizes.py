"""Compare a run's state and batches with the memory of this machine, before any of it is allocated."""

import math
import os
from collections.abc import Sequence

import jax
from ml_collections import ConfigDict

from t5x_like.errors import UserError
from t5x_like.training.build import Parts
from t5x_like.training.phases import Phase


def check(config: ConfigDict, parts: Parts, phases: Sequence[Phase]) -> None:
  """Refuse a state or a batch that no memory here holds; one that barely fits may still run out in a step.

  Raises:
    UserError: naming the object, its size, and the memory.
  """
  leaves = jax.tree.leaves((parts.state.params, parts.state.opt_state))
  device = parts.rules.mesh.devices.flat[0]
  memory = _memory(device)
  need = sum(_bytes(x.sharding.shard_shape(x.shape), x.dtype) for x in leaves)
  if device.platform == "cpu":
    need *= jax.local_device_count()
  if need > memory:
    raise UserError(
      f"config.model: its parameters and their optimizer take {_told(need)}, and there are {_told(memory)} of memory;"
      " choose a smaller --config.model.variant or sizes, or more devices"
    )
  host = _host_memory()
  for phase in phases:
    rows, features = phase.config.batch_size, phase.task.features.values()
    need = rows * sum(_bytes(x.shape, x.dtype) for x in features) // jax.process_count()
    if need > host:
      raise UserError(
        f"config.{phase.batch_key}: found {rows}, a batch of which takes {_told(need)} of the {_told(host)} of this"
        " machine; choose a smaller batch or shorter rows"
      )


def _memory(device) -> int:
  """Return the bytes of a device, or of the host if it does not tell."""
  told = (device.memory_stats() or {}) if device.platform != "cpu" else {}
  return told.get("bytes_limit") or _host_memory()


def _host_memory() -> int:
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _bytes(shape: tuple[int, ...], dtype) -> int:
  return math.prod(map(int, shape)) * jax.numpy.dtype(dtype).itemsize


def _told(size: int) -> str:
  return f"{size / 2**30:,.1f} GiB"
