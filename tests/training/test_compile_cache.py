"""Compiled programs are kept between starts, give the same bits, and one that a kill cut short is compiled again."""

import subprocess
import sys

from tests.runs import REPO, environment

PROGRAM = """
import sys
sys.path[:0] = [{repo!r}]
import jax, jax.numpy as jnp
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
from t5x_like.training import compile_cache
said = compile_cache.use({workdir!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
x = jax.random.normal(jax.random.key(0), (64, 64))
y = jax.jit(lambda x: jnp.tanh(x @ x).sum(0) / 3)(x)
print(said)
print(compile_cache.hits())
print(hash(y.tobytes()))
"""


def start(workdir, devices=1, home="home"):
  command = [sys.executable, "-c", PROGRAM.format(repo=str(REPO), workdir=str(workdir))]
  env = {k: v for k, v in environment(devices).items() if k not in ("JAX_COMPILATION_CACHE_DIR", "T5X_LIKE_CACHE")}
  done = subprocess.run(
    command, env=env | {"PYTHONHASHSEED": "0", "HOME": f"{workdir}/{home}"}, capture_output=True, text=True, timeout=600
  )
  assert done.returncode == 0 and not done.stderr, done.stderr
  said, hits, bits = done.stdout.splitlines()
  return said, int(hits), bits


def test_kept_exact_and_mended(tmp_path):
  said, hits, bits = start(tmp_path)
  assert "0 of 0 MB" in said and hits == 0
  entries = sorted((tmp_path / "compiled").glob("cpu-*/*-cache"))
  said, hits, again = start(tmp_path)
  assert hits >= len(entries) > 0 and again == bits and f": {len(entries)} of" in said
  for entry in entries:
    entry.write_bytes(entry.read_bytes()[:-20])
  said, hits, again = start(tmp_path)
  assert hits == 0 and again == bits and f"{len(entries)} that were cut short are removed" in said
  assert start(tmp_path)[1] >= len(entries)


def test_programs_that_somebody_else_put_into_a_workdir_are_not_run(tmp_path):
  assert start(tmp_path, home="theirs")[1] == 0
  theirs = sorted((tmp_path / "compiled").glob("cpu-*/*-cache"))
  assert theirs and start(tmp_path, home="theirs")[1] == len(theirs)
  assert start(tmp_path, home="mine")[1] == 0
  assert len(list((tmp_path / "compiled").glob("cpu-*"))) == 2
  assert (tmp_path / "mine/.cache/t5x_like/secret").stat().st_mode & 0o777 == 0o600


def test_without_a_home_none_are_kept(tmp_path):
  (tmp_path / "home").write_text("a file")
  said, hits, _ = start(tmp_path)
  assert "are not kept" in said and "set T5X_LIKE_CACHE" in said and hits == 0
  assert not (tmp_path / "compiled").exists()


def test_several_simulated_devices_keep_none(tmp_path):
  """Read again, their collectives may deadlock."""
  said, hits, bits = start(tmp_path, devices=2)
  assert "are not kept: on several simulated CPU devices" in said and start(tmp_path, devices=2) == (said, 0, bits)
  assert not (tmp_path / "compiled").exists()
