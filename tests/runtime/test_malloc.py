"""A process reuses its memory between the steps of a program."""

import os
import platform
import subprocess
import sys

import pytest

from t5x_like.runtime import malloc

_PROGRAM = """
import resource
from t5x_like.runtime import process
process.prepare()
import jax, jax.numpy as jnp
from t5x_like.training import compilation
x = jnp.ones((4096, 32))
lowered = jax.jit(lambda x: jnp.tanh(x @ x.T) @ (x @ (x.T @ x))).lower(x)  # one temporary of 64 MB
step, _ = compilation.compile_lowered_step(lowered, jax.devices()[0])
assert step.memory_analysis().temp_size_in_bytes >= 2**26
for _ in range(16):
  before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
  step(x).block_until_ready()
  print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="acts on glibc's allocator")
def test_steps_reuse_their_pages():
  """Without it, every step has a page fault for each 4 KB of its temporaries."""
  environment = os.environ | {
    "GLIBC_TUNABLES": "",
    "JAX_PLATFORMS": "cpu",
    "PYTHONPATH": os.getcwd(),
  }
  command = [sys.executable, "-c", _PROGRAM]
  out = subprocess.run(
    command, env=environment, capture_output=True, text=True, timeout=600, check=True
  ).stdout
  # with jax 0.12 it can take five steps until the free pieces of memory fit
  faults = sorted(map(int, out.split()[8:]))
  assert faults[len(faults) // 2] < 2**26 // 4096 // 4


@pytest.mark.parametrize(
  "tunable", ["glibc.malloc.trim_threshold=1", "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=9"]
)
def test_the_users_tunables_are_not_changed(tunable, monkeypatch):
  monkeypatch.setenv("GLIBC_TUNABLES", tunable)
  assert not malloc.keep_freed_memory(0)
