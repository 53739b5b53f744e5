"""Memory that a process keeps from one step to the next, on CPU.

XLA on CPU allocates the temporaries of a step together, anew for each step. By default glibc maps
so large a piece for itself and returns it to the kernel afterwards, which zeroes every page of it
at the next step: a quarter to a third of the CPU time of a fine-tuning step
(docs/reference/performance.md).
"""

import ctypes
import os
import platform

# Options of `mallopt` in malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4
# `mallopt` takes an int. No limit replaces larger thresholds.
_NO_LIMIT = -1
_MAX_INT = 2**31 - 1
_SPARE_BYTES = 2**26  # for the other memory that a step allocates and frees
_largest = 0  # bytes of temporaries


def keep_freed_memory(temporaries: int) -> bool:
  """Keep as much freed memory as the largest program uses; return whether that is possible.

  Call it after a program is compiled, so that the compiler's memory is not kept. Does nothing
  without glibc, or if GLIBC_TUNABLES already sets `glibc.malloc.trim_threshold` or
  `glibc.malloc.mmap_max`.

  Args:
    temporaries: bytes that each run of the program allocates and frees.
  """
  global _largest
  tunables = os.environ.get("GLIBC_TUNABLES", "")
  if (
    platform.libc_ver()[0] != "glibc"
    or "malloc.trim_threshold" in tunables
    or "malloc.mmap_max" in tunables
  ):
    return False
  _largest = max(_largest, temporaries)
  # If more memory is free at the end of its heap, glibc returns all of it.
  trim_threshold = 2 * _largest + _SPARE_BYTES
  mallopt = ctypes.CDLL(None).mallopt
  return bool(
    mallopt(_MMAP_MAX, 0)
    and mallopt(_TRIM_THRESHOLD, trim_threshold if trim_threshold <= _MAX_INT else _NO_LIMIT)
  )
