"""Each request of a task has a store of its own, prepared once; another's store is refused."""

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


class Rows(prepared.PreparedStore):
  """A number for each record."""

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
def rows_of(tmp_path):
  (tmp_path / "a.tsv").write_text("a\tb\n" + "x\ty\n" * 5)
  Rows.prepared_paths.clear()

  def of(split="train", classes=("x",), cache="cache", **arguments):
    source = open_source(f"tsv:{tmp_path}/a.tsv", fields=("a", "b"))
    return Rows(source, split, str(tmp_path / cache), {"classes": list(classes)}, arguments, None)

  return of


def open_rows(rows, verify="auto"):
  return prepared.open_store(rows, processes.Engine(1), verify)


def test_a_request_is_prepared_once_and_each_has_its_own(rows_of):
  requests = rows_of(), rows_of(), rows_of("train[:2]"), rows_of(length=3), rows_of(classes="xy")
  for rows in requests:
    store = open_rows(rows)
    assert store.num_items == (2 if "[" in rows.split else 5)
    assert store.name == rows.source.name
  assert len(Rows.prepared_paths) == 3 + 1 + 3 + 3
  assert len(set(Rows.prepared_paths)) == 4
  assert "-train2-" in requests[2].path.name


@pytest.mark.parametrize(
  "key, change", [("source", {"split": "x"}), ("facts", {"classes": ["other"]})]
)
def test_the_store_of_another_request_is_refused_with_the_remedy(rows_of, key, change):
  rows = rows_of(length=3)
  open_rows(rows)
  stores.edit(rows.path, lambda manifest: manifest[key].update(change), checked=True)
  with refuses(f"manifest.json: {key}: ", "delete", "is made again"):
    open_rows(rows, "size")


def test_a_damaged_store_is_refused_with_the_remedy(rows_of):
  rows = rows_of(length=3)
  open_rows(rows)
  file = rows.path / "x" / "000000000000"
  file.write_bytes(bytes(file.stat().st_size))
  with refuses("x/000000000000: found SHA-256", "delete", "is made again", error=DamageError):
    open_rows(rows)


def test_a_store_of_another_version_is_prepared_again(rows_of):
  """By name; if it stands under the name of this version, it is refused."""
  rows = rows_of()
  assert json.loads(json.dumps(rows.content))["format"] == FORMAT
  open_rows(rows)
  stores.edit(rows.path, lambda manifest: manifest.update(format="t5x_like.store.v2"))
  with refuses("format: found 't5x_like.store.v2'", "delete", "is made again"):
    open_rows(rows)


def test_a_failure_leaves_no_store_and_the_next_preparation_goes_on(rows_of, tmp_path, monkeypatch):
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
      open_rows(rows_of())
  assert not rows_of().path.exists()
  assert len(Rows.prepared_paths) == 3
  # the first shard of two batches was kept
  assert open_rows(rows_of()).num_items == 5
  assert len(Rows.prepared_paths) == 4


def test_a_cache_below_a_file_is_refused(rows_of, tmp_path):
  (tmp_path / "file").write_text("")
  with refuses("config.task.cache: ", "file cannot be written"):
    open_rows(rows_of(cache="file"))


def test_a_cache_at_an_address_is_refused():
  with refuses("config.task.cache: found gs://b/c"):
    tagging.Arguments(tags=("O",), source="builtin", split="train", cache="gs://b/c")
