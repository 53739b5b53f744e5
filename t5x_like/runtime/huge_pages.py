"""Use huge pages for a process's memory.

This file does not import jax: it must act before anything large is allocated.

XLA on CPU allocates the temporaries of a step (about 1 GB for T5-1.1-small) anew each time, and by
default the kernel maps them in pages of 4 KB: hundreds of thousands of page faults per step, a
fifth of its time (docs/reference/performance.md). glibc requests huge pages if GLIBC_TUNABLES says
so at process start, so the process restarts itself.
"""

import os
import pathlib
import platform
import sys

_TUNABLE = "glibc.malloc.hugetlb"
_KERNEL = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")


def use_huge_pages() -> None:
  """Restart this process with huge pages, if that helps and the user has not chosen already.

  Call it at the start of a program's `__main__`, before threads start or jax is imported. The
  process keeps its id, arguments, files and terminal. Does nothing without glibc or a kernel that
  grants huge pages on request ("madvise"), or if GLIBC_TUNABLES already sets `glibc.malloc.hugetlb`
  (0 means no huge pages).
  """
  environment = with_huge_pages(dict(os.environ))
  if environment is None or not _can_request():
    return
  sys.stdout.flush()
  sys.stderr.flush()
  try:
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
  except OSError:  # without huge pages the run is only slower
    return


def with_huge_pages(environment: dict[str, str]) -> dict[str, str] | None:
  """Return the environment with the tunable added; None if it already has it."""
  tunables = environment.get("GLIBC_TUNABLES", "")
  if _TUNABLE in tunables:
    return None
  return environment | {"GLIBC_TUNABLES": ":".join(filter(None, (tunables, f"{_TUNABLE}=1")))}


def _can_request() -> bool:
  """Return whether this system grants huge pages on request."""
  if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc" or not sys.executable:
    return False
  try:
    return "[madvise]" in _KERNEL.read_text()
  except OSError:
    return False
