"""Each combination of a source and arguments is prepared once, in a separate store."""

import json

import numpy as np
import pytest

import stores
from refusals import refuses
from t5x_like.corpora.engines import processes
from t5x_like.corpora.job import BATCH_CHARACTERS, StoredBatch
from t5x_like.corpora.sources import open_source
from t5x_like.data import prepared
from t5x_like.data.tasks import tagging
from t5x_like.errors import DamageError
from t5x_like.store import writer
from t5x_like.store.manifest import FORMAT


class NumberStore(prepared.PreparedStore):
  """A prepared store with a number for each record, three in a shard."""

  items = "rows"
  advice = "write some"
  unit = "x"
  shard_values = 3
  prepared_paths = []

  def characters(self, item):
    return BATCH_CHARACTERS // 2

  def make(self, batch):
    self.prepared_paths.append(self.path)
    count = len(batch.items)
    return StoredBatch(
      {"x": (np.arange(count, dtype=np.int32), np.ones(count, np.int64))},
      [None] * count,
      [None] * count,
    )


@pytest.fixture
def make_request(tmp_path):
  """Return a function that returns the request of a store."""
  (tmp_path / "a.tsv").write_text("a\tb\n" + "x\ty\n" * 5)
  NumberStore.prepared_paths.clear()

  def make(split="train", classes=("x",), cache="cache", **arguments):
    source = open_source(f"tsv:{tmp_path}/a.tsv", fields=("a", "b"))
    return NumberStore(
      source, split, str(tmp_path / cache), {"classes": list(classes)}, arguments, None
    )

  return make


def open_store(request, verify="auto"):
  return prepared.open_store(request, processes.Engine(1), verify)


def test_equal_requests_share_a_store_that_is_prepared_once(make_request):
  requests = [
    make_request(),
    make_request(),
    make_request("train[:2]"),
    make_request(length=3),
    make_request(classes="xy"),
  ]
  for request in requests:
    store = open_store(request)
    assert store.num_items == (2 if "[" in request.split else 5)
    assert store.name == request.source.name
  assert len(NumberStore.prepared_paths) == 3 + 1 + 3 + 3
  assert len(set(NumberStore.prepared_paths)) == 4
  assert "-train2-" in requests[2].path.name


@pytest.mark.parametrize(
  "key, change", [("source", {"split": "x"}), ("facts", {"classes": ["other"]})]
)
def test_store_of_another_request_is_refused_with_a_remedy(make_request, key, change):
  rows = make_request(length=3)
  open_store(rows)
  stores.edit(rows.path, lambda manifest: manifest[key].update(change), checked=True)
  with refuses(f"manifest.json: {key}: ", "delete", "is made again"):
    open_store(rows, "size")


def test_damaged_store_is_refused_with_a_remedy(make_request):
  rows = make_request(length=3)
  open_store(rows)
  file = rows.path / "x" / "000000000000"
  file.write_bytes(bytes(file.stat().st_size))
  with refuses("x/000000000000: found SHA-256", "delete", "is made again", error=DamageError):
    open_store(rows)


def test_store_of_another_version_is_refused_with_a_remedy(make_request):
  """The version is also in the name of a store, so each version prepares stores of its own."""
  rows = make_request()
  assert json.loads(json.dumps(rows.content))["format"] == FORMAT
  open_store(rows)
  stores.edit(rows.path, lambda manifest: manifest.update(format="t5x_like.store.v2"))
  with refuses("format: found 't5x_like.store.v2'", "delete", "is made again"):
    open_store(rows)


def test_failed_preparation_leaves_no_store_and_resumes(make_request, tmp_path, monkeypatch):
  write = writer.write_shard
  written = []

  def write_one(*arguments):
    if written:
      raise OSError(28, "No space left on device")
    written.append(write(*arguments))
    return written[0]

  with monkeypatch.context() as patched:
    patched.setattr(writer, "write_shard", write_one)
    with refuses("cannot be written", "No space left"):
      open_store(make_request())
  assert not make_request().path.exists()
  assert len(NumberStore.prepared_paths) == 3
  # The first shard of two is reused.
  assert open_store(make_request()).num_items == 5
  assert len(NumberStore.prepared_paths) == 4


def test_a_cache_below_a_file_is_refused(make_request, tmp_path):
  (tmp_path / "file").write_text("")
  with refuses("config.task.cache: ", "file cannot be written"):
    open_store(make_request(cache="file"))


def test_remote_cache_is_refused():
  with refuses("config.task.cache: found gs://b/c"):
    tagging.Arguments(tags=("O",), source="builtin", split="train", cache="gs://b/c")
