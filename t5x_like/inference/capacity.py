"""Check that memory can hold the tokens of a generation."""

import os
import pathlib

import jax
import numpy as np

from t5x_like.decoding.unrolled import prepare_for_decoding
from t5x_like.errors import UserError
from t5x_like.rows import Runner

_COPIES = 2  # of the cache: a step reads one and writes another
# slots, more than any window
_FEW = 2**16
_MANY = 2**17
_ROW = 512  # the least bytes of Python objects per finished prediction
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
    UserError: it does not fit; names the longest length that does.
  """
  available = free_memory()
  if available is None:
    return
  with run.rules.activate():
    few_bytes, many_bytes = (
      jax.eval_shape(
        lambda model, batch, n=n: prepare_for_decoding(model).start_decoding(batch, n),
        run.model,
        features,
      )
      for n in (_FEW, _MANY)
    )
  few_bytes = _bytes(few_bytes)
  many_bytes = _bytes(many_bytes)
  slot_bytes = max((many_bytes - few_bytes) // (_MANY - _FEW), 1)
  shards = run.rules.ways("batch")
  device_rows = -(-min(run.batch_size, rows) // shards)  # on one device
  device_rows *= jax.local_device_count() if jax.default_backend() == "cpu" else 1
  fixed_bytes = max(few_bytes - slot_bytes * _FEW, 0)
  sequences = _COPIES * device_rows * beams
  longest = available // max(sequences * slot_bytes, 1) - prompt - fixed_bytes // slot_bytes
  answer_bytes = 4 * rows * beams  # bytes for every new token
  longest = min(longest, max(available - rows * _ROW, 0) // max(answer_bytes, 1))
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
  """Return the free bytes of the first accelerator, or of a host without one; None if the system
  does not tell."""
  stats = jax.local_devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
  if stats and "bytes_limit" in stats:
    return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
  if jax.default_backend() != "cpu":
    return None
  free = [_available(), _within_group()]
  return min((one for one in free if one is not None), default=None)


def _available() -> int | None:
  try:
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
  except (OSError, ValueError, StopIteration):
    pass
  try:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
  except (ValueError, OSError):
    return None


def _within_group() -> int | None:
  """Return the bytes that the container may still allocate; None without a limit."""
  try:
    limit, used = (int((_CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
  except (OSError, ValueError):  # no limit, or another version of cgroups
    return None
  return max(limit - used, 0)


def _bytes(tree) -> int:
  return sum(int(np.prod(x.shape, dtype=object)) * x.dtype.itemsize for x in jax.tree.leaves(tree))
