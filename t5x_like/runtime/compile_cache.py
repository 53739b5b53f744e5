"""A cache of compiled programs on disk, so that a restarted run does not compile again.

jax keys an entry by the program, the versions and the flags. On CPU an entry is machine code for
the features of one processor, so each set of features has its own directory. An entry is written in
place, with a checksum: machine code with a flipped bit would compute wrong values or crash. The
next start removes entries that are incomplete or damaged, since jax would warn of them at every
start and never replace them.

A program is executed after it is read. Programs in a workdir, or in a cache that others may write,
are therefore read only if this user wrote them: the directory's name contains a hash of its path
and of a secret in the user's cache directory, so the programs of others are in other directories.
"""

import contextlib
import functools
import hashlib
import hmac
import json
import os
import pathlib
import platform
import stat
from collections.abc import Callable

import jax
from jax.experimental.compilation_cache import compilation_cache

from t5x_like import trust
from t5x_like.errors import one_line
from t5x_like.parallel import distributed, jax_internals

_HIT = "/jax/compilation_cache/cache_hits"
COMPILATION = "/jax/core/compile/backend_compile_duration"  # jax's event with the seconds
_MIN_COMPILE_SECONDS = 0.2  # programs that compile faster are not stored
_MAX_BYTES = 20 * 10**9  # the largest size of all programs in a directory
_hits = 0
_compile_seconds = 0.0


def enable(workdir: str) -> str:
  """Make jax keep compiled programs in `compiled/` of a workdir; return one line about it.

  If `T5X_LIKE_CACHE` is set, they are kept in its directory; otherwise, with a remote workdir, in
  the user's cache directory. `JAX_COMPILATION_CACHE_DIR` names any other directory, and
  `JAX_ENABLE_COMPILATION_CACHE=false` turns the cache off. Several simulated CPU devices in one
  process have no cache unless `JAX_COMPILATION_CACHE_DIR` is set: the devices of a program that XLA
  has read from a cache may run its collectives in different orders, and then wait for each other
  until XLA aborts.
  """
  if not jax.config.jax_enable_compilation_cache:
    return "compiled programs are not kept (JAX_ENABLE_COMPILATION_CACHE)"
  if not jax.config.jax_compilation_cache_dir:
    if jax.default_backend() == "cpu" and jax.local_device_count() > 1:
      return (
        "compiled programs are not kept: simulated CPU devices may wait for each other in "
        "programs from a cache"
      )
    try:
      path = _directory(workdir)
      can_be_written = _can_be_written(path)
    except (OSError, RuntimeError) as error:
      return (
        f"compiled programs are not kept: {one_line(error)}; set T5X_LIKE_CACHE to a "
        "directory of yours"
      )
    if not can_be_written:  # jax would warn at every program
      return f"compiled programs are not kept: {path} cannot be written"
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _MIN_COMPILE_SECONDS)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
  _count_hits()
  jax_internals.write_cache_checksums()
  path = pathlib.Path(jax.config.jax_compilation_cache_dir)
  if "://" in str(path):
    return f"compiled programs are kept in {jax.config.jax_compilation_cache_dir}"
  removed = _remove_damaged(path) if jax.process_index() == 0 else 0
  trimmed = _trim(path) if jax.process_index() == 0 else 0
  entries = [entry.stat().st_size for entry in path.glob("*-cache")] if path.is_dir() else []
  notes = f"; removed {removed} damaged programs" if removed else ""
  if trimmed:
    notes += f"; removed the {trimmed} oldest, to keep at most {_MAX_BYTES / 1e9:,.0f} GB"
  return (
    f"compiled programs are kept in {path}: {len(entries)} programs, "
    f"{sum(entries) / 1e6:,.1f} MB{notes}"
  )


def forget(workdir) -> None:
  """Stop keeping programs in a workdir, so that it can be removed."""
  directory = jax.config.jax_compilation_cache_dir
  if directory and pathlib.Path(directory).is_relative_to(pathlib.Path(workdir).absolute()):
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()


def measure_once(name: str, measure: Callable[[], float]) -> float:
  """Return `measure()`, or its value at an earlier start on the same kind of processor."""
  directory = jax.config.jax_compilation_cache_dir
  if not directory or "://" in directory:
    return measure()
  path = pathlib.Path(directory) / f"{name}-{_machine()}.json"
  with contextlib.suppress(OSError, ValueError):
    return float(json.loads(path.read_text()))
  value = measure()
  with contextlib.suppress(OSError):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
  return value


def _can_be_written(path: pathlib.Path) -> bool:
  """Return whether this user may write into a directory, or into the parent that would have it."""
  existing = next(folder for folder in (path, *path.parents) if folder.exists())
  return os.access(existing, os.W_OK | os.X_OK)


def _directory(workdir: str) -> pathlib.Path:
  """Return the directory of this machine's programs.

  Raises:
    OSError, RuntimeError: the user's secret can be neither read nor created, or there is no home
      directory.
  """
  shared = os.environ.get("T5X_LIKE_CACHE", "")
  if shared and "://" not in shared:
    local = pathlib.Path(shared).absolute()
    if _is_private(local):
      return local / "compiled" / _machine()
  elif "://" in workdir:
    return pathlib.Path.home() / ".cache" / "t5x_like" / "compiled" / _machine()
  else:
    local = pathlib.Path(workdir).absolute()
  secret_part = distributed.broadcast_from_first(
    lambda: hmac.new(trust.load_secret(), os.fsencode(local), "sha256").hexdigest()[:16]
  )
  return local / "compiled" / f"{_machine()}-{secret_part}"


def _is_private(directory: pathlib.Path) -> bool:
  """Return whether only this user can write to a directory, which is created if it is missing.

  Raises:
    OSError: it cannot be created.
  """
  directory.mkdir(parents=True, exist_ok=True)
  about = directory.stat()
  return about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def hit_count() -> int:
  """Return the number of programs that this process has taken from the cache."""
  return _hits


def compile_seconds() -> float:
  """Return the seconds that this process has spent on compiling since the first call."""
  _time_compilations()
  return _compile_seconds


@functools.cache
def _time_compilations() -> None:
  """Time the compilations from now on; act once per process."""

  def add(event: str, seconds: float, **_):
    global _compile_seconds
    if event == COMPILATION:
      _compile_seconds += seconds

  jax.monitoring.register_event_duration_secs_listener(add)


@functools.cache
def _count_hits() -> None:
  """Count the hits from now on; act once per process."""

  def count(event: str, **_):
    global _hits
    _hits += event == _HIT

  jax.monitoring.register_event_listener(count)


def _machine() -> str:
  """Return `gpu`, `tpu`, or for a CPU its architecture and a digest of its features.

  Machine code depends on these.
  """
  backend = jax.default_backend()
  if backend != "cpu":
    return backend
  features = platform.processor()
  with contextlib.suppress(OSError):
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    features += next((line for line in lines if line.startswith(("flags", "Features"))), "")
  return f"cpu-{platform.machine()}-{hashlib.sha256(features.encode()).hexdigest()[:8]}"


def _remove_damaged(path: pathlib.Path) -> int:
  """Remove entries that cannot be decompressed; return their number."""
  removed = 0
  with contextlib.suppress(OSError):
    path.mkdir(parents=True, exist_ok=True)
    for entry in path.glob("*-cache"):
      if not _is_intact(entry):
        entry.unlink()
        removed += 1
  return removed


def _trim(path: pathlib.Path) -> int:
  """Remove the oldest entries of a directory that has grown too large; return their number."""
  removed = 0
  size = 0
  with contextlib.suppress(OSError):
    entries = {entry: entry.stat() for entry in path.glob("*-cache")}
    for entry in sorted(entries, key=lambda entry: entries[entry].st_mtime, reverse=True):
      size += entries[entry].st_size
      if size > _MAX_BYTES:
        entry.unlink()
        removed += 1
  return removed


def _is_intact(entry: pathlib.Path) -> bool:
  try:
    jax_internals.decompress_cache_entry(entry.read_bytes())
    return True
  except Exception:  # the compression libraries raise their own types
    return False
