"""Token stores over the network: a web server and a bucket, both on this machine, that fail and
dawdle."""

import concurrent.futures
import contextlib
import itertools
import time

import numpy as np
import pytest

from object_server import Server, environment
from stores import many_documents, write
from t5x_like.data import loader, task
from t5x_like.errors import DamageError, TransientError, UserError
from t5x_like.files import remote, remote_ranges
from t5x_like.store.tokens import TokenStore

pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def running(tmp_path_factory):
  root = tmp_path_factory.mktemp("bucket")
  write(root / "train", many_documents(), shard_tokens=8_000)
  with pytest.MonkeyPatch.context() as patched, Server(root).running() as server:
    for name, value in environment(server).items():
      patched.setenv(name, value)
    remote.reset()  # of another test's server
    yield server


@pytest.fixture
def server(running):
  running.requests.clear()
  yield running
  running.unavailable = running.broken = running.delay = running.hangs = 0
  running.page = 1_000


@pytest.fixture(params=["http", "gs"])
def address(request, server):
  return f"{server.url}/train" if request.param == "http" else "gs://bucket/train"


@pytest.fixture(params=["cached", "larger than the cache"])
def cache(request, monkeypatch):
  monkeypatch.setattr(
    remote_ranges, "_budget", remote_ranges._Budget(10**9 if request.param == "cached" else 0)
  )
  monkeypatch.setattr(remote_ranges, "_BLOCK", 20_000)
  return request.param == "cached"


def tokens_of(server):
  return [(path, part) for path, part in server.requests if "/tokens/" in path]


def test_what_is_read_is_what_is_there(server, address, cache):
  local = TokenStore.open(server.root / "train")
  store = TokenStore.open(address, verify="full")
  assert (
    store.fingerprint == local.fingerprint
    and store.vocabulary.fingerprint == local.vocabulary.fingerprint
  )
  for length in (1, 568, 20_000):
    starts = np.random.default_rng(length).integers(0, store.num_tokens - length + 1, 40)
    np.testing.assert_array_equal(store.windows(starts, length), local.windows(starts, length))
  places = np.random.default_rng(0).integers(0, store.num_tokens, 500)
  np.testing.assert_array_equal(store.documents_at(places), local.documents_at(places))
  np.testing.assert_array_equal(store.document_ends(), local.document_ends())


def test_opening_takes_a_manifest_a_table_and_one_listing(server):
  store = TokenStore.open("gs://bucket/train", verify="size")
  # the listing is of two directories
  assert len(server.requests) == 4 and store.manifest.num_shards > 3
  assert "every file is there" in store.verification
  store = TokenStore.open(f"{server.url}/train", verify="size")
  assert len(server.requests) == 6 and "cannot be listed" in store.verification


@pytest.mark.parametrize("same", [False, True], ids=["other content", "the same content"])
def test_a_shard_that_is_overwritten_in_a_bucket_is_found(same, server, cache, monkeypatch):
  monkeypatch.setattr(remote_ranges, "_BLOCK", 2_000)
  store = TokenStore.open("gs://bucket/train", verify="size")
  store.windows(np.array([0]), 10)
  file = server.root / "train" / "tokens" / "00000000"
  content = file.read_bytes()
  monkeypatch.setitem(server.versions, "train/tokens/00000000", 7)
  try:
    file.write_bytes(content if same else content[::-1])
    store.check_unchanged()
    store.windows(np.array([5_000]), 10)
    with (
      contextlib.nullcontext()
      if same
      else pytest.raises(DamageError, match="tokens/00000000: found SHA-256")
    ):
      store.check_unchanged()
  finally:
    file.write_bytes(content)


def test_a_lost_file_is_named(server, tmp_path):
  lost = server.root / "train" / "tokens" / "00000002"
  lost.rename(tmp_path / "lost")
  try:
    with pytest.raises(UserError, match="gs://bucket/train/tokens/00000002: found no such file"):
      TokenStore.open("gs://bucket/train", verify="size")
    store = TokenStore.open(f"{server.url}/train", verify="size")
    with pytest.raises(UserError, match="http://.*/train/tokens/00000002: found no such file"):
      store.windows([0], store.num_tokens)
    lost.write_bytes((tmp_path / "lost").read_bytes()[:-40])
    with pytest.raises(
      DamageError, match="http://.*/train/tokens/00000002: is damaged: .*copy it again"
    ):
      TokenStore.open(f"{server.url}/train", verify="full")
  finally:
    (tmp_path / "lost").replace(lost)


def test_a_cached_store_is_fetched_once_whoever_asks(server, address, monkeypatch):
  monkeypatch.setattr(remote_ranges, "_BLOCK", 1_000)
  server.delay = 0.005
  store = TokenStore.open(address, verify="size")
  starts = [
    np.random.default_rng(seed).integers(0, store.num_tokens - 300, 100) for seed in range(16)
  ]
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    list(pool.map(lambda starts_B: store.windows(starts_B, 300), starts))
  asked = tokens_of(server)
  assert len(asked) == len(set(asked)) > 40
  store.windows([0], store.num_tokens)
  before = len(server.requests)
  store.windows(np.concatenate(starts), 300)
  assert len(server.requests) == before


def test_the_cache_is_of_all_stores_and_given_back(server, monkeypatch):
  size = TokenStore.open(server.root / "train")._shards.num_bytes
  budget = remote_ranges._Budget(size)
  monkeypatch.setattr(remote_ranges, "_budget", budget)
  first, second = (TokenStore.open(f"{server.url}/train", verify="size") for _ in range(2))
  first.windows([0], 10), second.windows([0], 10)
  assert first._files._blocks and not second._files._blocks and not budget.take(1)
  del first
  assert budget.take(size)


def test_windows_of_a_large_store_are_read_as_they_are_and_at_once(server, monkeypatch):
  monkeypatch.setattr(remote_ranges, "_budget", remote_ranges._Budget(0))
  store = TokenStore.open(f"{server.url}/train", verify="size")
  server.requests.clear()
  server.delay, begin = 0.2, time.monotonic()
  store.windows(np.arange(0, 8_000, 200), 100)
  assert time.monotonic() - begin < 0.2 * 40 / 4
  assert {part for _, part in server.requests} >= {"bytes=0-199", "bytes=400-599"} and len(
    server.requests
  ) >= 40


def test_failures_and_slow_answers_change_nothing(server, address, cache):
  local = TokenStore.open(server.root / "train")
  server.unavailable = 0.2
  server.broken = 0.05
  server.delay = 0.002
  store = TokenStore.open(address, verify="size")
  for seed in range(3):
    starts = np.random.default_rng(seed).integers(0, store.num_tokens - 568, 30)
    np.testing.assert_array_equal(store.windows(starts, 568), local.windows(starts, 568))
    np.testing.assert_array_equal(store.documents_at(starts), local.documents_at(starts))


def test_training_batches_are_those_of_the_local_store_from_any_step(server):
  local = task.build("span_corruption", "train", store=str(server.root), inputs_length=64)
  expected = list(itertools.islice(loader.train_batches(local, batch_size=16, seed=0), 6))
  server.unavailable = 0.2
  server.delay = 0.002
  remote = task.build(
    "span_corruption", "train", store="gs://bucket", inputs_length=64, verify="size"
  )
  assert remote.fingerprint == local.fingerprint
  for start in (0, 3):  # from the beginning, and resumed
    batches = itertools.islice(
      loader.train_batches(remote, batch_size=16, seed=0, start_step=start), 6 - start
    )
    for one, other in zip(expected[start:], batches, strict=True):
      for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def test_a_read_that_hangs_is_asked_for_again(server, cache, monkeypatch):
  monkeypatch.setattr(remote, "_ATTEMPT_SECONDS", 0.3)
  store = TokenStore.open(f"{server.url}/train", verify="size")
  server.hangs = 1
  assert store.windows([0], 100).shape == (1, 100)


def test_one_that_is_gone_is_one_line(server, address, cache, monkeypatch):
  store = TokenStore.open(address, verify="size")
  monkeypatch.setattr(remote_ranges, "PATIENCE_SECONDS", 0.5)
  server.unavailable = 1.0
  for read in (lambda: store.windows([0], 100), lambda: TokenStore.open(address)):
    with pytest.raises(TransientError, match="no answer; check the network") as error:
      read()
    assert "\n" not in str(error.value)
  server.unavailable = 0.0
  assert store.windows([0], 100).shape == (1, 100)


def test_a_hot_store_is_read_at_over_ten_million_tokens_a_second(server):
  """In time of the processor, which others on the machine do not take away."""
  store = TokenStore.open(f"{server.url}/train", verify="size")
  starts = np.random.default_rng(0).integers(0, store.num_tokens - 568, (100, 128))
  store.windows([0], store.num_tokens)
  begin = time.process_time()
  for starts_B in starts:
    store.windows(starts_B, 568)
  assert starts.size * 568 / (time.process_time() - begin) > 10e6
