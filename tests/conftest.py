"""Eight simulated CPU devices for every test, set before jax is imported."""

import os

import pytest

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
  """A compilation cache for the tests that ask for it: a program that several of them run is compiled once."""
  import jax
  from jax.experimental.compilation_cache import compilation_cache

  path = tmp_path_factory.mktemp("compiled")
  jax.config.update("jax_compilation_cache_dir", str(path))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
  yield path
  jax.config.update("jax_compilation_cache_dir", None)
  compilation_cache.reset_cache()
