"""Checks the hosts of a job before it costs anything: python -m launch.preflight
--workdir=gs://bucket/run

Runs on every host, as the training command does, and finds the others as that does. Each device
multiplies two matrices whose product is known; all devices add up their numbers, and a buffer goes
round all links; the workdir is written, read and cleared, and the local disk has room. One line per
host and check, then 0; or an exit code of docs/reference/exit-codes.md after one line that names
the host and device.
"""

import argparse
import os
import pathlib
import shutil
import socket
import sys
import tempfile
import threading
import time

if __package__ in (None, ""):
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from t5x_like.errors import (
  EXIT_TRANSIENT,
  TransientError,
  UserError,
  handle_errors,
  is_transient,
  one_line,
)
from t5x_like.files.paths import as_path, check_directory

_SIZE = 1024
_LINK_BYTES = 2**26  # of the all-reduce, a device


def check_devices() -> str:
  """Check that every device of this host computes correctly.

  Raises:
    TransientError: naming the device.
  """
  import jax
  import jax.numpy as jnp
  import numpy as np

  for device in jax.local_devices():
    row_n = jnp.arange(_SIZE, dtype=jnp.float32, device=device) % 7
    product_nn = jnp.outer(row_n, jnp.ones(_SIZE, device=device)) @ jnp.eye(_SIZE, device=device)
    if not (np.asarray(product_nn)[:, 5] == np.arange(_SIZE) % 7).all():
      raise TransientError(
        f"{device} of {socket.gethostname()} computes wrong products; replace the host"
      )
  return f"{jax.local_device_count()} devices compute right ({jax.local_devices()[0].device_kind})"


def check_links(devices: int | None) -> str:
  """Check that all devices add up their numbers; return the rate of a large all-reduce.

  Raises:
    UserError: there are not as many devices as expected.
    TransientError: the sum is wrong.
  """
  import jax
  import jax.numpy as jnp
  from jax.sharding import Mesh, NamedSharding, PartitionSpec

  count = jax.device_count()
  if devices is not None and count != devices:
    raise UserError(
      f"--devices={devices}: found {count} in {jax.process_count()} processes; is a host missing?"
    )
  mesh = Mesh(jax.devices(), ("all",))
  split = NamedSharding(mesh, PartitionSpec("all"))
  replicated = NamedSharding(mesh, PartitionSpec())
  width = max(1, _LINK_BYTES // 4 // (1 if jax.default_backend() != "cpu" else 64))
  make = jax.jit(
    lambda: jnp.ones((count, width), jnp.float32) * jnp.arange(1, count + 1)[:, None],
    out_shardings=split,
  )
  add = jax.jit(lambda x: x.sum(axis=0), out_shardings=replicated)
  x = make()
  total = add(x)
  start = time.perf_counter()
  total = add(x).block_until_ready()
  seconds = time.perf_counter() - start
  received = float(total.addressable_data(0)[-1])
  if received != count * (count + 1) / 2:
    raise TransientError(
      f"{socket.gethostname()}: {count} devices add up to {received:g}, expected "
      f"{count * (count + 1) / 2:g}"
    )
  rate = 2 * 4 * width * (count - 1) / count / seconds / 1e9
  return (
    f"{count} devices of {jax.process_count()} hosts add up right, {rate:.2f} GB/s a device "
    "around the ring"
  )


def check_workdir(workdir: str) -> str:
  """Write, read and remove a file of this host there.

  Raises:
    UserError, TransientError: it cannot be.
  """
  content = os.urandom(2**16)
  start = time.perf_counter()
  try:
    file = as_path(workdir) / f".preflight-{socket.gethostname()}-{os.getpid()}"
    file.write_bytes(content)
    if file.read() != content:
      raise TransientError(
        f"{workdir}: {socket.gethostname()} reads other bytes than it has written"
      )
    file.unlink()
  except (UserError, TransientError):
    raise
  except Exception as error:
    said = (
      f"{socket.gethostname()} cannot write, read and remove a file: {type(error).__name__}: "
      f"{one_line(error)}"
    )
    raise (TransientError if is_transient(error) else UserError)(
      f"--workdir={workdir}: {said[:300]}"
    ) from None
  return f"{workdir} is written and read in {time.perf_counter() - start:.2f} s"


def check_disk(gigabytes: float) -> str:
  """Check the room on the disk of temporary files.

  Raises:
    UserError: it has less room.
  """
  folder = tempfile.gettempdir()
  free = shutil.disk_usage(folder).free / 1e9
  if free < gigabytes:
    raise UserError(
      f"{folder}: {free:.1f} GB are free on {socket.gethostname()}, expected {gigabytes:g}; clear "
      "the disk"
    )
  return f"{free:.1f} GB free in {folder}"


def _end_late(seconds: float) -> None:
  """End this process: a link or a store that hangs does not come back, and the slice costs
  meanwhile."""
  print(
    f"transient error: preflight {socket.gethostname()}: not done within {seconds:g} s: a device, "
    "link or store hangs",
    file=sys.stderr,
    flush=True,
  )
  os._exit(EXIT_TRANSIENT)


@handle_errors
def main(argv: list[str] | None = None) -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    "--workdir", required=True, type=check_directory, help="the run's directory or bucket"
  )
  parser.add_argument("--devices", type=int, help="how many there should be in all")
  parser.add_argument(
    "--free_gigabytes", type=float, default=5, help="on the local disk (default: 5)"
  )
  parser.add_argument(
    "--seconds", type=float, default=1800, help="limit of all checks together (default: 1800)"
  )
  args = parser.parse_args(argv)
  timer = threading.Timer(args.seconds, _end_late, (args.seconds,))
  timer.daemon = True
  timer.start()
  try:
    check_host(args)
  finally:
    timer.cancel()


def check_host(args: argparse.Namespace) -> None:
  """Run all checks of this host and print their results.

  Raises:
    UserError, TransientError: a check has failed.
  """
  # Each process checks its own host before it waits for the others.
  found = [check_disk(args.free_gigabytes), check_workdir(args.workdir)]

  from t5x_like.runtime import process

  process.prepare()
  found += [check_devices(), check_links(args.devices)]
  for line in found:
    print(f"preflight {socket.gethostname()}: {line}", flush=True)


if __name__ == "__main__":
  from t5x_like import command_line

  command_line.run_program(main)
