"""Call private functions of jax, for which jax 0.10 to 0.12 has no public ones.

No other module of the package uses private functions, so a new version of jax is checked against
this file.
"""

from typing import Any


def key_value_client() -> Any:
  """Return the client of the coordinator's key-value store, which carries texts between processes.

  The public functions, in `jax.experimental.multihost_utils`, exchange arrays by collectives of
  the devices, which have no time limit.
  """
  from jax._src import distributed

  return distributed.global_state.client


def detect_job(timeout_seconds: int) -> tuple[str | None, int | None, int | None, list[int] | None]:
  """Detect the job of this process, as of Slurm, a TPU slice or GKE, without joining it.

  `jax.distributed.initialize` detects and joins in one call, which aborts the process on failure.

  Returns:
    (coordinator's address, number of processes, index of this process, its local devices), each
    None if it is unknown.
  """
  from jax._src import clusters

  return clusters.ClusterEnv.auto_detect_unset_distributed_params(
    None, None, None, None, None, timeout_seconds
  )


def write_cache_checksums() -> None:
  """Add a checksum to the entries of jax's compilation cache, which is compared on reading.

  jax has no option for this. Entries that jax compresses by zlib always have a checksum.
  """
  from jax._src import compilation_cache

  if zstandard := getattr(compilation_cache, "zstandard", None):
    compilation_cache.compress_executable = lambda x: zstandard.ZstdCompressor(
      write_checksum=True
    ).compress(x)
  elif zstd := getattr(compilation_cache, "zstd", None):  # from Python 3.14 on
    options = {zstd.CompressionParameter.checksum_flag: 1}
    compilation_cache.compress_executable = lambda x: zstd.compress(x, options=options)


def decompress_cache_entry(content: bytes) -> bytes:
  """Decompress an entry of the compilation cache by the library that jax uses for it.

  Raises:
    Exception: the entry is damaged; the type depends on the library.
  """
  from jax._src import compilation_cache

  return compilation_cache.decompress_executable(content)
