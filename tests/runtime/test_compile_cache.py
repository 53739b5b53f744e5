"""Compiled programs are cached between starts with the same bits; damaged ones are recompiled."""

import os
import random
import subprocess
import sys

import pytest
from jax._src import compilation_cache

from t5x_like.parallel import jax_internals
from t5x_like.runtime import compile_cache
from tests.runs import REPO, environment

PROGRAM = """
import sys
sys.path[:0] = [{repo!r}]
import jax, jax.numpy as jnp
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
from t5x_like.runtime import compile_cache
said = compile_cache.enable({workdir!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
x = jax.random.normal(jax.random.key(0), (64, 64))
y = jax.jit(lambda x: jnp.tanh(x @ x).sum(0) / 3)(x)
print(said)
print(compile_cache.hit_count())
print(hash(y.tobytes()))
"""


def start(workdir, devices=1, home="home"):
  command = [sys.executable, "-c", PROGRAM.format(repo=str(REPO), workdir=str(workdir))]
  env = {
    k: v
    for k, v in environment(devices).items()
    if k not in ("JAX_COMPILATION_CACHE_DIR", "T5X_LIKE_CACHE")
  }
  process = subprocess.run(
    command,
    env=env | {"PYTHONHASHSEED": "0", "HOME": os.path.join(workdir, home)},
    capture_output=True,
    text=True,
    timeout=600,
  )
  assert process.returncode == 0, process.stderr
  assert not process.stderr, process.stderr
  printed, hits, bits = process.stdout.splitlines()
  return printed, int(hits), bits


def test_a_workdir_that_cannot_be_written_has_no_cache_and_no_warning(tmp_path):
  (tmp_path / "file").write_text("")
  printed, hits, _ = start(tmp_path / "file" / "run", home=str(tmp_path / "home"))
  assert "file/run/compiled/cpu-" in printed
  assert printed.endswith("cannot be written")
  assert hits == 0


def flip_bit(data: bytes, generator: random.Random) -> bytes:
  position = generator.randrange(len(data) // 4, len(data))
  return (
    data[:position] + bytes([data[position] ^ 1 << generator.randrange(8)]) + data[position + 1 :]
  )


def test_programs_are_cached_exactly_and_recompiled_if_damaged(tmp_path):
  generator = random.Random(0)
  printed, hits, bits = start(tmp_path)
  assert ": 0 programs, 0.0 MB" in printed
  assert hits == 0
  entries = sorted((tmp_path / "compiled").glob("cpu-*/*-cache"))
  printed, hits, again = start(tmp_path)
  assert hits >= len(entries) > 0
  assert again == bits
  assert f": {len(entries)} programs" in printed
  for damage in (lambda data: data[:-20], lambda data: flip_bit(data, generator), lambda data: b""):
    for entry in entries:
      written = entry.stat()
      entry.write_bytes(damage(entry.read_bytes()))
      os.utime(entry, ns=(written.st_atime_ns, written.st_mtime_ns))  # as when a disk loses bits
    printed, hits, again = start(tmp_path)
    assert hits == 0
    assert again == bits
    assert f"removed {len(entries)} damaged programs" in printed
  assert start(tmp_path)[1] >= len(entries)


def test_programs_that_another_user_put_into_a_workdir_are_not_run(tmp_path):
  assert start(tmp_path, home="theirs")[1] == 0
  foreign_programs = sorted((tmp_path / "compiled").glob("cpu-*/*-cache"))
  assert foreign_programs
  assert start(tmp_path, home="theirs")[1] == len(foreign_programs)
  assert start(tmp_path, home="mine")[1] == 0
  assert len(list((tmp_path / "compiled").glob("cpu-*"))) == 2
  assert (tmp_path / "mine/.cache/t5x_like/secret").stat().st_mode & 0o777 == 0o600


def test_without_a_home_directory_no_program_is_cached(tmp_path):
  (tmp_path / "home").write_text("a file")
  printed, hits, _ = start(tmp_path)
  assert "are not kept" in printed
  assert "set T5X_LIKE_CACHE" in printed
  assert hits == 0
  assert not (tmp_path / "compiled").exists()


def test_every_flipped_bit_is_found(monkeypatch):
  """Compression leaves an entry of random bytes as it is."""
  generator = random.Random(1)
  monkeypatch.setattr(
    compilation_cache, "compress_executable", compilation_cache.compress_executable
  )
  jax_internals.write_cache_checksums()
  entry = compilation_cache.compress_executable(generator.randbytes(5_000) + b"code" * 5_000)
  for _ in range(300):
    with pytest.raises(Exception):  # noqa: B017 -- the library's own
      compilation_cache.decompress_executable(flip_bit(entry, generator))


def test_programs_of_several_simulated_devices_are_not_cached(tmp_path):
  """Read from a cache, their collectives may deadlock."""
  printed, hits, bits = start(tmp_path, devices=2)
  assert "are not kept: simulated CPU devices" in printed
  assert start(tmp_path, devices=2) == (printed, 0, bits)
  assert not (tmp_path / "compiled").exists()


def test_the_oldest_programs_are_deleted_for_new_ones(tmp_path, monkeypatch):
  monkeypatch.setattr(compile_cache, "_MAX_BYTES", 250)
  for age, name in enumerate(("new", "old", "older", "oldest")):
    entry = tmp_path / f"{name}-cache"
    entry.write_bytes(bytes(100))
    os.utime(entry, (1_000 - age, 1_000 - age))
  assert compile_cache._trim(tmp_path) == 2
  assert sorted(entry.name for entry in tmp_path.iterdir()) == ["new-cache", "old-cache"]
  assert compile_cache._trim(tmp_path) == 0
  assert compile_cache._trim(tmp_path / "none") == 0


@pytest.mark.parametrize("mode, private", [(0o755, True), (0o775, False), (0o777, False)])
def test_a_shared_cache_has_a_directory_for_each_secret(tmp_path, monkeypatch, mode, private):
  shared = tmp_path / "shared"
  shared.mkdir()
  shared.chmod(mode)
  monkeypatch.setenv("T5X_LIKE_CACHE", str(shared))
  directories = set()
  for home in ("mine", "theirs"):
    monkeypatch.setenv("HOME", str(tmp_path / home))
    directories.add(compile_cache._directory(str(tmp_path / "run")))
  assert len(directories) == (1 if private else 2)
  assert all(directory.parent == shared / "compiled" for directory in directories)
