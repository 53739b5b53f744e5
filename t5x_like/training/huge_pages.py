"""Huge pages for a process's memory. Imports nothing of jax: it acts before anything large is allocated.

XLA on CPU allocates the temporaries of a step (about 1 GB for T5-1.1-small) anew each time, and the kernel hands them
out in pages of 4 KB unless asked otherwise: hundreds of thousands of page faults a step, a fifth of its time
(docs/explanation/measurements.md). glibc asks for huge pages if GLIBC_TUNABLES says so when a process starts, so the
process starts itself again.
"""

import os
import pathlib
import platform
import sys

_TUNABLE = "glibc.malloc.hugetlb"
_KERNEL = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")


def use_huge_pages() -> None:
  """Replaces this process by itself with huge pages on, where that helps and has not been decided already.

  To be called at the start of a program's `__main__`, before threads start or jax is imported. The process keeps its
  id, arguments, files and terminal. Does nothing unless glibc and a kernel that gives huge pages on request
  ("madvise") are found, or where GLIBC_TUNABLES sets `glibc.malloc.hugetlb` itself (0 turns this off).
  """
  environment = with_huge_pages(dict(os.environ))
  if environment is None or not _on_request():
    return
  sys.stdout.flush()
  sys.stderr.flush()
  try:
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
  except OSError:  # without, the run is only slower
    return


def with_huge_pages(environment: dict[str, str]) -> dict[str, str] | None:
  """The environment with the tunable added, or None where it has it."""
  tunables = environment.get("GLIBC_TUNABLES", "")
  if _TUNABLE in tunables:
    return None
  return environment | {"GLIBC_TUNABLES": ":".join(filter(None, (tunables, f"{_TUNABLE}=1")))}


def _on_request() -> bool:
  if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc" or not sys.executable:
    return False
  try:
    return "[madvise]" in _KERNEL.read_text()
  except OSError:
    return False
