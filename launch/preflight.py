"""Check the hosts of a job before the job starts.

  python -m launch.preflight --workdir=gs://bucket/run

It runs on every host and connects the hosts as the training command does. jax must use the expected
accelerator (--platform). Each device multiplies two matrices with a known product. All devices add
up their numbers by an all-reduce of a large buffer. A file is written to the workdir, read and
removed. The local disk must have free space. Each check prints one line per host, and the exit code
is 0. A failed check prints one line with the host and device, and ends with an exit code of
docs/reference/exit-codes.md.
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

_MATRIX_SIZE = 1024
_LINK_BYTES = 2**26  # size of the all-reduce on a device


def check_devices() -> str:
  """Check that every device of this host computes correctly.

  Raises:
    TransientError: a device computes a wrong product.
  """
  import jax
  import jax.numpy as jnp
  import numpy as np

  for device in jax.local_devices():
    row_n = jnp.arange(_MATRIX_SIZE, dtype=jnp.float32, device=device) % 7
    outer_nn = jnp.outer(row_n, jnp.ones(_MATRIX_SIZE, device=device))
    product_nn = outer_nn @ jnp.eye(_MATRIX_SIZE, device=device)
    if not (np.asarray(product_nn)[:, 5] == np.arange(_MATRIX_SIZE) % 7).all():
      raise TransientError(
        f"{device} of {socket.gethostname()} computes wrong products; replace the host"
      )
  kind = jax.local_devices()[0].device_kind
  return f"{jax.local_device_count()} devices compute correctly ({kind})"


def check_platform(platform: str) -> str:
  """Check that jax uses the accelerator of the job, and not the CPU instead.

  Args:
    platform: `tpu`, `gpu` or `cpu`.

  Raises:
    UserError: jax uses another platform.
  """
  import jax

  backend = jax.default_backend()
  if backend != platform:
    extra = {"tpu": "tpu", "gpu": "cuda12"}.get(platform, "")
    raise UserError(
      f"--platform={platform}: jax of {socket.gethostname()} found {backend} devices only; install "
      f"the extra {extra}, in an image by --build-arg EXTRAS={extra},gcs, or see the driver"
    )
  return f"jax uses the {platform}"


def check_links(devices: int | None) -> str:
  """Check that all devices can add up their numbers; report the rate of a large all-reduce.

  Args:
    devices: expected number of devices of the job, or None.

  Raises:
    UserError: the number of devices differs from `devices`.
    TransientError: the sum is wrong.
  """
  import jax
  import jax.numpy as jnp
  from jax.sharding import Mesh, NamedSharding, PartitionSpec

  count = jax.device_count()
  if devices is not None and count != devices:
    raise UserError(
      f"--devices={devices}: found {count} in {jax.process_count()} processes; check that no host "
      "is missing"
    )
  mesh = Mesh(jax.devices(), ("all",))
  split = NamedSharding(mesh, PartitionSpec("all"))
  replicated = NamedSharding(mesh, PartitionSpec())
  width = _LINK_BYTES // 4
  if jax.default_backend() == "cpu":
    width //= 64
  make = jax.jit(
    lambda: jnp.ones((count, width), jnp.float32) * jnp.arange(1, count + 1)[:, None],
    out_shardings=split,
  )
  add = jax.jit(lambda x_DN: x_DN.sum(axis=0), out_shardings=replicated)
  x_DN = make()
  add(x_DN)  # compiles
  start = time.perf_counter()
  sum_N = add(x_DN).block_until_ready()
  seconds = time.perf_counter() - start
  total = float(sum_N.addressable_data(0)[-1])
  expected = count * (count + 1) / 2
  if total != expected:
    raise TransientError(
      f"{socket.gethostname()}: {count} devices add up to {total:g}, expected {expected:g}"
    )
  rate = 2 * 4 * width * (count - 1) / count / seconds / 1e9
  return (
    f"{count} devices of {jax.process_count()} hosts add up correctly, {rate:.2f} GB/s a device "
    "around the ring"
  )


def check_workdir(workdir: str) -> str:
  """Write, read and remove a file of this host in the workdir.

  Raises:
    UserError, TransientError: the file cannot be written, read or removed.
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
    message = (
      f"{socket.gethostname()} cannot write, read and remove a file: {type(error).__name__}: "
      f"{one_line(error)}"
    )
    kind = TransientError if is_transient(error) else UserError
    raise kind(f"--workdir={workdir}: {message[:300]}") from None
  return f"{workdir} is written and read in {time.perf_counter() - start:.2f} s"


def check_disk(gigabytes: float) -> str:
  """Check the free space on the disk of temporary files.

  Raises:
    UserError: fewer than `gigabytes` are free.
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
  """End this process with the code of a transient error.

  A link or a store that hangs does not recover, and the slice is billed meanwhile.
  """
  print(
    f"transient error: preflight {socket.gethostname()}: not finished in {seconds:g} s: a device, "
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
  parser.add_argument("--devices", type=int, help="expected number of devices of all hosts")
  parser.add_argument(
    "--platform", choices=("tpu", "gpu", "cpu"), help="expected platform (default: any)"
  )
  parser.add_argument(
    "--free_gigabytes",
    type=float,
    default=5,
    help="space that must be free on the local disk (default: 5)",
  )
  parser.add_argument(
    "--seconds", type=float, default=1800, help="time limit of all checks together (default: 1800)"
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
  results = [check_disk(args.free_gigabytes), check_workdir(args.workdir)]

  from t5x_like.runtime import process

  process.prepare()
  if args.platform is not None:
    results.append(check_platform(args.platform))
  results += [check_devices(), check_links(args.devices)]
  for line in results:
    print(f"preflight {socket.gethostname()}: {line}", flush=True)


if __name__ == "__main__":
  from t5x_like import command_line

  command_line.run_program(main)
