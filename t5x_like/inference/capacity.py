"""Check that memory can hold the tokens of a generation."""

import os
import pathlib

import jax
import numpy as np

from t5x_like.decoding.unrolled import prepare_for_decoding
from t5x_like.errors import UserError
from t5x_like.rows import Runner

_CACHE_COPIES = 2  # a step reads one and writes another
# Two numbers of cache slots, both more than any attention window.
_FEW_SLOTS = 2**16
_MANY_SLOTS = 2**17
_PREDICTION_BYTES = 512  # least size of the Python objects of a finished prediction
_CGROUP = pathlib.Path("/sys/fs/cgroup")


def check_memory(
  run: Runner, features: dict, *, rows: int, beams: int, prompt: int, new_tokens: int
) -> None:
  """Refuse a generation whose caches or answers do not fit into memory.

  Args:
    run: applies the model.
    features: the abstract batch that the model reads, of one row and `prompt` tokens.
    rows: the number of rows of all texts and samples.
    beams: sequences per row.
    prompt: cache slots taken by the longest prompt.
    new_tokens: the most tokens to generate.
  Raises:
    UserError: it does not fit; the message has the longest length that does.
  """
  available = free_memory()
  if available is None:
    return
  few_bytes = _decoding_bytes(run, features, _FEW_SLOTS)
  many_bytes = _decoding_bytes(run, features, _MANY_SLOTS)
  slot_bytes = max((many_bytes - few_bytes) // (_MANY_SLOTS - _FEW_SLOTS), 1)
  fixed_bytes = max(few_bytes - slot_bytes * _FEW_SLOTS, 0)

  shards = run.rules.ways("batch")
  device_rows = -(-min(run.batch_size, rows) // shards)
  if jax.default_backend() == "cpu":  # the simulated devices share the host's memory
    device_rows *= jax.local_device_count()
  sequences = _CACHE_COPIES * device_rows * beams
  longest = available // max(sequences * slot_bytes, 1) - prompt - fixed_bytes // slot_bytes

  token_bytes = 4 * rows * beams  # bytes of all answers for each new token
  free_for_answers = max(available - rows * _PREDICTION_BYTES, 0)
  longest = min(longest, free_for_answers // max(token_bytes, 1))
  if new_tokens > longest:
    limits = (
      f"found room for {max(longest, 0):,} with {rows:,} rows, "
      f"--batch_size={run.batch_size}, --beams={beams} and"
    )
    raise UserError(
      f"--max_new_tokens={new_tokens}: {limits} {available / 1e9:.1f} GB of free memory; generate "
      "fewer tokens, or use fewer samples or beams, a smaller --batch_size or shorter texts"
    )


def free_memory() -> int | None:
  """Return the free bytes of the first accelerator or the host, None if unknown."""
  if jax.default_backend() != "cpu":
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" not in stats:
      return None
    return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
  limits = [free for free in (_free_host_memory(), _free_cgroup_memory()) if free is not None]
  return min(limits, default=None)


def _free_host_memory() -> int | None:
  """Return the bytes that the kernel reports as available, or the physical memory, or None."""
  try:
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
      if line.startswith("MemAvailable:"):
        return 1024 * int(line.split()[1])
  except (OSError, ValueError):
    pass
  try:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
  except (ValueError, OSError):
    return None


def _free_cgroup_memory() -> int | None:
  """Return the bytes that the container may still allocate; None without a limit."""
  try:
    limit = int((_CGROUP / "memory.max").read_text())
    used = int((_CGROUP / "memory.current").read_text())
  except (OSError, ValueError):  # no limit, or another version of cgroups
    return None
  return max(limit - used, 0)


def _decoding_bytes(run: Runner, features: dict, slots: int) -> int:
  """Return the bytes of one row's decoding state with a cache of this many slots."""

  def start(model, batch):
    return prepare_for_decoding(model).start_decoding(batch, slots)

  with run.rules.activate():
    state = jax.eval_shape(start, run.model, features)
  arrays = jax.tree.leaves(state)
  return sum(int(np.prod(array.shape, dtype=object)) * array.dtype.itemsize for array in arrays)
