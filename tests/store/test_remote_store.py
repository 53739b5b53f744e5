"""Token stores can be read from web servers and buckets, even if these are slow and faulty."""

import concurrent.futures
import time

import numpy as np
import pytest

from object_server import Server, environment
from refusals import refuses
from stores import many_documents, write
from t5x_like.errors import DamageError, TransientError
from t5x_like.files import remote, remote_ranges
from t5x_like.store.tokens import TokenStore

pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def running_server(tmp_path_factory):
  root = tmp_path_factory.mktemp("bucket")
  write(root / "train", many_documents(), shard_tokens=8_000)
  with pytest.MonkeyPatch.context() as patched, Server(root).running() as server:
    for name, value in environment(server).items():
      patched.setenv(name, value)
    remote.reset()  # drop connections to another test's server
    yield server


@pytest.fixture
def server(running_server):
  running_server.requests.clear()
  yield running_server
  running_server.unavailable = 0
  running_server.broken = 0
  running_server.delay = 0
  running_server.hangs = 0
  running_server.page = 1_000


@pytest.fixture(params=["http", "gs"])
def url(request, server):
  return f"{server.url}/train" if request.param == "http" else "gs://bucket/train"


@pytest.fixture(params=["cached", "larger than the cache"])
def cache(request, monkeypatch):
  budget = 10**9 if request.param == "cached" else 0
  monkeypatch.setattr(remote_ranges, "_budget", remote_ranges._Budget(budget))
  monkeypatch.setattr(remote_ranges, "_BLOCK_BYTES", 20_000)


def requests_for_tokens(server):
  return [(path, part) for path, part in server.requests if "/tokens/" in path]


def test_remote_store_equals_the_local_one(server, url, cache):
  local = TokenStore.open(server.root / "train")
  store = TokenStore.open(url, verify="full")
  assert store.fingerprint == local.fingerprint
  assert store.vocabulary.fingerprint == local.vocabulary.fingerprint
  for length in (1, 568, 20_000):
    starts = np.random.default_rng(length).integers(0, store.num_tokens - length + 1, 40)
    np.testing.assert_array_equal(store.windows(starts, length), local.windows(starts, length))
  positions = np.random.default_rng(0).integers(0, store.num_tokens, 500)
  np.testing.assert_array_equal(store.documents_at(positions), local.documents_at(positions))
  np.testing.assert_array_equal(store.document_ends(), local.document_ends())


def test_opening_makes_no_request_for_each_shard(server):
  store = TokenStore.open("gs://bucket/train", verify="size")
  # The manifest, the table and the listings of two directories.
  assert len(server.requests) == 4
  assert store.manifest.num_shards > 3
  assert "every file is there" in store.verification
  store = TokenStore.open(f"{server.url}/train", verify="size")
  assert len(server.requests) == 6
  assert "cannot be listed" in store.verification


@pytest.mark.parametrize("is_same", [False, True], ids=["other content", "the same content"])
def test_overwritten_shard_is_an_error_if_its_content_differs(is_same, server, cache, monkeypatch):
  monkeypatch.setattr(remote_ranges, "_BLOCK_BYTES", 2_000)
  store = TokenStore.open("gs://bucket/train", verify="size")
  store.windows(np.array([0]), 10)
  file = server.root / "train" / "tokens" / "00000000"
  content = file.read_bytes()
  monkeypatch.setitem(server.versions, "train/tokens/00000000", 7)
  try:
    file.write_bytes(content if is_same else content[::-1])
    store.check_unchanged()  # nothing was read after the change
    store.windows(np.array([5_000]), 10)
    if is_same:
      store.check_unchanged()
    else:
      with refuses("tokens/00000000: found SHA-256", error=DamageError):
        store.check_unchanged()
  finally:
    file.write_bytes(content)


def test_error_about_a_lost_or_truncated_file_names_it(server, tmp_path):
  file = server.root / "train" / "tokens" / "00000002"
  backup = tmp_path / "backup"
  file.rename(backup)
  try:
    with refuses("gs://bucket/train/tokens/00000002: found no such file"):
      TokenStore.open("gs://bucket/train", verify="size")
    store = TokenStore.open(f"{server.url}/train", verify="size")
    with refuses("http://", "/train/tokens/00000002: found no such file"):
      store.windows([0], store.num_tokens)
    file.write_bytes(backup.read_bytes()[:-40])
    with refuses("http://", "/train/tokens/00000002: is damaged", error=DamageError):
      TokenStore.open(f"{server.url}/train", verify="full")
  finally:
    backup.replace(file)


def test_threads_fetch_each_range_of_a_cached_store_once(server, url, monkeypatch):
  monkeypatch.setattr(remote_ranges, "_BLOCK_BYTES", 1_000)
  server.delay = 0.005
  store = TokenStore.open(url, verify="size")
  starts = np.random.default_rng(0).integers(0, store.num_tokens - 300, (16, 100))
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    list(pool.map(lambda starts_B: store.windows(starts_B, 300), starts))
  requests = requests_for_tokens(server)
  assert len(requests) == len(set(requests)) > 40
  store.windows([0], store.num_tokens)
  num_requests = len(server.requests)
  store.windows(starts.reshape(-1), 300)
  assert len(server.requests) == num_requests


def test_stores_share_one_cache_and_free_their_share(server, monkeypatch):
  size = TokenStore.open(server.root / "train")._shards.num_bytes
  budget = remote_ranges._Budget(size)
  monkeypatch.setattr(remote_ranges, "_budget", budget)
  first = TokenStore.open(f"{server.url}/train", verify="size")
  second = TokenStore.open(f"{server.url}/train", verify="size")
  first.windows([0], 10)
  second.windows([0], 10)
  assert first._files._blocks
  assert not second._files._blocks
  assert not budget.take(1)
  del first
  assert budget.take(size)


def test_windows_without_a_cache_are_read_exactly_and_concurrently(server, monkeypatch):
  monkeypatch.setattr(remote_ranges, "_budget", remote_ranges._Budget(0))
  store = TokenStore.open(f"{server.url}/train", verify="size")
  server.requests.clear()
  server.delay = 0.2
  start_time = time.monotonic()
  store.windows(np.arange(0, 8_000, 200), 100)
  sequential_seconds = 40 * server.delay
  assert time.monotonic() - start_time < sequential_seconds / 4
  assert {part for _, part in server.requests} >= {"bytes=0-199", "bytes=400-599"}
  assert len(server.requests) >= 40


def test_failures_and_slow_answers_do_not_change_the_tokens(server, url, cache):
  local = TokenStore.open(server.root / "train")
  server.unavailable = 0.2
  server.broken = 0.05
  server.delay = 0.002
  store = TokenStore.open(url, verify="size")
  for seed in range(3):
    starts = np.random.default_rng(seed).integers(0, store.num_tokens - 568, 30)
    np.testing.assert_array_equal(store.windows(starts, 568), local.windows(starts, 568))
    np.testing.assert_array_equal(store.documents_at(starts), local.documents_at(starts))


def test_request_that_hangs_is_repeated(server, cache, monkeypatch):
  monkeypatch.setattr(remote, "_ATTEMPT_SECONDS", 0.3)
  store = TokenStore.open(f"{server.url}/train", verify="size")
  server.hangs = 1
  assert store.windows([0], 100).shape == (1, 100)


def test_unreachable_store_is_reported_in_one_line(server, url, cache, monkeypatch):
  store = TokenStore.open(url, verify="size")
  monkeypatch.setattr(remote_ranges, "READ_SECONDS", 0.5)
  server.unavailable = 1.0
  for read in (lambda: store.windows([0], 100), lambda: TokenStore.open(url)):
    with refuses("check the network", error=TransientError):
      read()
  server.unavailable = 0.0
  assert store.windows([0], 100).shape == (1, 100)


def test_cached_store_reads_over_ten_million_tokens_per_second(server):
  """Measure CPU time, which does not depend on other programs on the machine."""
  store = TokenStore.open(f"{server.url}/train", verify="size")
  starts = np.random.default_rng(0).integers(0, store.num_tokens - 568, (100, 128))
  store.windows([0], store.num_tokens)
  start_time = time.process_time()
  for starts_B in starts:
    store.windows(starts_B, 568)
  assert starts.size * 568 / (time.process_time() - start_time) > 10e6
