"""Give processes of this machine simulated CPU devices, and copy their output."""

import re
import sys
from collections.abc import Mapping
from typing import BinaryIO

_DEVICE_FLAG = "--xla_force_host_platform_device_count"
# Variables of another job, which processes must not inherit.
_FOREIGN_VARIABLES = (
  "JAX_COORDINATOR_BIND_ADDRESS",
  "JAX_COORDINATOR_PORT",
  "JAX_LOCAL_DEVICE_IDS",
)


def simulated_devices(base: Mapping[str, str], devices: int) -> dict[str, str]:
  """Return an environment in which jax has a number of simulated CPU devices.

  Args:
    base: environment of the launcher.
  """
  env = {name: value for name, value in base.items() if name not in _FOREIGN_VARIABLES}
  flags = re.sub(rf"{_DEVICE_FLAG}=\S*", "", env.get("XLA_FLAGS", ""))
  return env | {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": f"{flags} {_DEVICE_FLAG}={devices}".strip(),
    "PYTHONUNBUFFERED": "1",
  }


def copy_lines(stream: BinaryIO, prefix: str) -> None:
  """Copy the lines of a stream to the standard output, each after a prefix."""
  for line in stream:
    sys.stdout.buffer.write(prefix.encode() + line.rstrip(b"\r\n") + b"\n")
    sys.stdout.buffer.flush()
