"""Eight simulated CPU devices for every test, set before jax is imported."""

import gc
import importlib.metadata
import os

import hypothesis
import pytest

os.environ["JAX_PLATFORMS"] = "cpu"
# Most of a test's time is the compiler's. Programs as small as these run as fast without the last
# optimizations. A program that is not divided among threads, which other workers keep busy anyway,
# compiles in a seventh less time. Processes that tests start inherit these flags.
FLAGS = [
  "--xla_force_host_platform_device_count=8",
  "--xla_backend_optimization_level=0",
  "--xla_cpu_parallel_codegen_split_count=1",
]
if importlib.metadata.version("jaxlib").startswith("0.10."):
  # A program compiles in a third of the time without the newer fusion emitters.
  FLAGS.append("--xla_cpu_use_fusion_emitters=false")
else:
  # jaxlib 0.11 has only the newer emitters. These flags save a fifth of the time, which is still
  # 1.7 times as long as with jaxlib 0.10.
  FLAGS += [
    "--xla_cpu_opt_preset=FAST_COMPILE",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_disable_hlo_passes=fusion-wrapper",
  ]
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS]).strip()
LARGEST_CACHE = 2**30  # bytes
hypothesis.settings.register_profile("any machine", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("any machine")
# By default, garbage collection among millions of objects takes a sixth of the time.
gc.set_threshold(100_000, 20, 20)
# The files that take longest start first: at the end, one of them would keep one core busy while
# the others wait.
FIRST = (
  "tests/test_resume.py",
  "tests/test_recipes.py",
  "tests/models/test_families.py",
  "tests/training/test_guard.py",
  "tests/training/test_phases.py",
  "tests/training/test_optimizer_names.py",
  "tests/test_command_refusals.py",
  "tests/test_evaluate.py",
  "tests/interop/test_three_commands.py",
)


def pytest_xdist_auto_num_workers(config):
  """Start one more worker than cores, at most four, since some tests wait for processes."""
  return min((os.cpu_count() or 1) + 1, 4)


def pytest_configure(config):
  """Empty the compilation cache when it has grown too large, before any worker starts."""
  if hasattr(config, "cache") and not hasattr(config, "workerinput"):
    files = [path for path in config.cache.mkdir("compiled").iterdir() if path.is_file()]
    if sum(path.stat().st_size for path in files) > LARGEST_CACHE:
      for path in files:
        path.unlink()


def pytest_collection_finish():
  """Exempt modules and tests, which stay to the end, from garbage collection."""
  gc.freeze()


def pytest_collection_modifyitems(items):
  """Put the tests of `FIRST` in front."""
  order = {name: i for i, name in enumerate(FIRST)}
  items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(FIRST)))


@pytest.fixture(scope="session")
def compiled(request, tmp_path_factory):
  """Provide a compilation cache, so that a program of several tests is compiled once.

  All workers share it, and the next session finds it under .pytest_cache. Cached programs give the
  same bits as compiled ones: `test_resume.py` proves it with a cache of its own, because processes
  that are killed may leave a partial entry.
  """
  import jax
  from jax.experimental.compilation_cache import compilation_cache

  cache = getattr(request.config, "cache", None)  # None under -p no:cacheprovider
  path = cache.mkdir("compiled") if cache else tmp_path_factory.mktemp("compiled")
  compilation_cache.reset_cache()  # a run in this process may have made one in its workdir
  jax.config.update("jax_compilation_cache_dir", str(path))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
  yield path
  jax.config.update("jax_compilation_cache_dir", None)
  compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def uncached():
  """Disable the compilation cache, for tests of many layouts of eight devices.

  Programs that XLA on CPU reads from a cache may run collectives in another order on each device,
  which then wait for each other forever.
  """
  import jax
  from jax.experimental.compilation_cache import compilation_cache

  path = jax.config.jax_compilation_cache_dir
  jax.config.update("jax_compilation_cache_dir", None)
  compilation_cache.reset_cache()
  yield
  jax.config.update("jax_compilation_cache_dir", path)
  compilation_cache.reset_cache()


@pytest.fixture
def one_device():
  """Hide all devices but one from the test; wider fixtures are made before, on all devices."""
  from tests.runs import hide_other_devices

  with hide_other_devices():
    yield


@pytest.fixture(scope="session")
def trained(tmp_path_factory, compiled):
  """Return the workdir of a finished run of four steps, with checkpoints 2 and 4; do not change it.

  It ran on one device.
  """
  from t5x_like import train
  from tests.runs import hide_other_devices

  workdir = tmp_path_factory.mktemp("trained")
  flags = (
    "--config.total_steps=4",
    "--config.eval_every=4",
    "--config.checkpoint.every=2",
    "--config.evals.loss={}",
  )
  with hide_other_devices():
    assert train.main(["--config=tests/recipes/nano.py", f"--workdir={workdir}", *flags]) == 0
  return workdir
