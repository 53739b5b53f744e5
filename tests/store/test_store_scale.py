"""Open files and memory do not grow with the number of shards of a store."""

import json
import pathlib
import resource
import tracemalloc

import numpy as np
import pytest

from refusals import refuses
from t5x_like.store.tokens import TokenStore
from tools.benchmark import __main__ as benchmark
from tools.benchmark.store import simulate

TOKENS = 2 * 10**10  # in sparse files, which take no space on the disk
SHARDS = 2_000
DOCUMENTS = 2 * 10**8


@pytest.fixture(scope="module")
def path(tmp_path_factory):
  """Return the path of a large token store of zeros."""
  path = tmp_path_factory.mktemp("scale") / "train"
  simulate(path, TOKENS, SHARDS, DOCUMENTS)
  return path


@pytest.fixture
def few_files():
  """Limit the open files of this process to 60 more than it has now.

  The pool of the store may use a quarter of the limit.
  """
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  opened = len(list(pathlib.Path("/proc/self/fd").iterdir()))
  resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 60, hard))
  yield opened
  resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_reading_all_shards_needs_few_open_files_and_little_memory(path, few_files):
  generator = np.random.default_rng(0)
  starts = np.append(
    generator.integers(0, TOKENS - 568, 10_000), np.arange(1, SHARDS) * (TOKENS // SHARDS) - 300
  )
  maps = len(pathlib.Path("/proc/self/maps").read_text().splitlines())
  tracemalloc.start()
  store = TokenStore.open(path)
  opening = tracemalloc.get_traced_memory()[1]
  shards = set()
  for starts_B in np.array_split(starts, 100):
    window_BW = store.windows(starts_B, 568)
    assert window_BW.shape == (len(starts_B), 568)
    assert not window_BW.any()
    shards |= set((starts_B // (TOKENS // SHARDS)).tolist())
  for positions_B in np.array_split(starts, 100):
    documents_B, starts_B, ends_B = store.documents_at(positions_B)
    np.testing.assert_array_equal(
      documents_B // (DOCUMENTS // SHARDS), positions_B // (TOKENS // SHARDS)
    )
    assert ((starts_B <= positions_B) & (positions_B < ends_B)).all()
    np.testing.assert_array_equal(store.document_spans(documents_B), (starts_B, ends_B))
  reading = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert len(shards) > SHARDS * 0.98
  assert opening < 4e6
  assert reading < 8e6  # bytes; all document ends would be 1.6e9
  assert len(pathlib.Path("/proc/self/maps").read_text().splitlines()) - maps < 20
  assert (path / "manifest.json").stat().st_size < 1_000


def test_documents_match_the_ends_in_the_file(path):
  store = TokenStore.open(path)
  tokens_per_shard = TOKENS // SHARDS
  ends = np.fromfile(path / "tokens.ends" / "00001234", "<i8", DOCUMENTS // SHARDS)
  positions = np.random.default_rng(1).integers(0, tokens_per_shard, 1_000)
  documents = np.searchsorted(ends, positions, side="right")
  numbers, starts, stops = store.documents_at(positions + 1234 * tokens_per_shard)
  np.testing.assert_array_equal(numbers, documents + 1234 * ends.size)
  np.testing.assert_array_equal(stops, ends[documents] + 1234 * tokens_per_shard)
  np.testing.assert_array_equal(starts, np.append(0, ends)[documents] + 1234 * tokens_per_shard)


def test_benchmark_runs_on_a_small_store(tmp_path, capfd):
  flags = [
    "--tokens=1e8",
    "--shards=1e3",
    "--documents=1e6",
    "--steps=3",
    "--repeats=1",
    "--open_files=200",
  ]
  limits = resource.getrlimit(resource.RLIMIT_NOFILE)
  assert benchmark.main(["store", *flags, f"--directory={tmp_path}"]) == 0
  figures = json.loads(capfd.readouterr().out.splitlines()[-1])
  assert figures["tokens"] == 10**8
  assert figures["shards"] == 10**3
  assert figures["documents"] == 10**6
  assert figures["open_files"] < 200
  assert figures["raw_tokens_per_second_again"] > 0
  assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits
  assert not list(tmp_path.iterdir())


def test_benchmark_refuses_shards_without_documents(tmp_path):
  with refuses("--documents=10", "found 0 a shard"):
    simulate(tmp_path / "train", 10**8, 10**3, 10)
