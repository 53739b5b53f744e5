"""Digests of batches, numbers and metrics, the same on any number of hosts.

The digest of a batch is the sum, modulo 2**256, of the SHA-256 of its rows, each hashed with its
index in the global batch. The order of a sum does not matter: each host sums over its rows, and the
hosts' sums are added.
"""

import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

_MODULUS = 2**256
# Metrics that are measured on a host, and so differ between starts.
_MEASURED_ENDS = ("seconds", "per_second")
_MEASURED = (
  "seconds_per_step",
  "data_wait_fraction",
  "padding_fraction",
  "goodput",
  "mfu",
  "slowest_host",
)


def sum_row_digests(batch: Mapping[str, np.ndarray], rows: Sequence[int]) -> int:
  """Return the sum of the digests of rows of a global batch, below 2**256.

  Args:
    batch: features by name, each [R, *shape] of any numeric type.
    rows: the index of each row in the global batch, R of them.
  """
  names = sorted(batch)
  layout = tuple((name, batch[name].dtype, batch[name].shape[1:]) for name in names)
  header = _hash_layout(layout)
  bytes_RN = np.concatenate([_row_bytes(batch[name]) for name in names], axis=1)
  total = 0
  for row, bytes_N in zip(rows, bytes_RN, strict=True):
    row_digest = header.copy()
    row_digest.update(int(row).to_bytes(8, "little"))
    row_digest.update(bytes_N)
    total += int.from_bytes(row_digest.digest(), "little")
  return total % _MODULUS


@functools.lru_cache(maxsize=64)
def _hash_layout(layout: tuple[tuple[str, np.dtype, tuple[int, ...]], ...]):
  """Return a SHA-256 that has hashed names, types and shapes of features, to be copied."""
  described = [[name, str(dtype), list(shape)] for name, dtype, shape in layout]
  return hashlib.sha256(json.dumps(described).encode())


def combine_sums(sums: Iterable[int]) -> str:
  """Return the digest of a batch, 64 hexadecimal digits, from the hosts' sums."""
  return f"{sum(sums) % _MODULUS:064x}"


def digest_batch(batch: Mapping[str, np.ndarray]) -> str:
  """Return the digest of a whole global batch, with all rows in order."""
  num_rows = len(next(iter(batch.values())))
  return combine_sums([sum_row_digests(batch, range(num_rows))])


def _row_bytes(x: np.ndarray) -> np.ndarray:
  """Return the bytes of each row: [R, ...] -> uint8 [R, N]."""
  x_RN = np.ascontiguousarray(x).reshape(len(x), math.prod(x.shape[1:]))
  return x_RN.view(np.uint8)


def float_bits(value: float) -> str:
  """Return the bits of a float32 number as 8 hexadecimal digits; all NaNs are 7fc00000."""
  if math.isnan(value):
    return "7fc00000"
  with np.errstate(over="ignore"):  # becomes infinity
    number = np.float32(value)
  return f"{int(number.view(np.uint32)):08x}"


def float_value(bits: str) -> float:
  """Return the number whose `float_bits` are given."""
  return float(np.uint32(int(bits, 16)).view(np.float32))


def digest_metrics(metrics: Mapping[str, float | None]) -> str:
  """Return the digest, 32 hexadecimal digits, of metrics by name, without measured times.

  Values that are not finite count as None, as in `metrics.jsonl`.
  """
  values = {}
  for name, value in metrics.items():
    if name in _MEASURED or name.endswith(_MEASURED_ENDS):
      continue
    is_number = value is not None and math.isfinite(value)
    values[name] = float(value).hex() if is_number else None
  return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]
