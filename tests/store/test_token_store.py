"""A token store returns the tokens written to it, for any window and any number of shards."""

import gc
import os
import pathlib
import shutil
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refusals import refuses
from stores import TokenStoreWriter, random_documents, write
from t5x_like.files import local_ranges
from t5x_like.store.tokens import TokenStore
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary


@pytest.mark.parametrize("url", ["{}", "file://{}"])
def test_windows_anywhere_are_read_locally_and_through_tensorstore(intact_tokens, url):
  path, documents = intact_tokens
  store = TokenStore.open(url.format(path))
  stream = np.concatenate(documents)
  for length in (1, 568, 20_000):  # the last spans several shards
    starts = np.random.default_rng(length).integers(0, stream.size - length + 1, 40)
    starts[:2] = 0, stream.size - length
    windows = store.windows(starts, length)
    assert windows.dtype == np.int32
    np.testing.assert_array_equal(windows, stream[starts[:, None] + np.arange(length)])
  assert store.num_tokens == stream.size
  assert store.num_documents == len(documents)
  ends = np.cumsum([len(document) for document in documents])
  np.testing.assert_array_equal(store.document_ends(), ends)
  assert store.vocabulary.fingerprint == ByteVocabulary().fingerprint


def test_windows_outside_of_the_stream_are_refused(intact_tokens):
  store = TokenStore.open(intact_tokens[0])
  with refuses("outside", error=ValueError):
    store.windows([store.num_tokens - 5], 6)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
  st.lists(
    st.lists(st.integers(1, 70_000), min_size=0, max_size=40), min_size=1, max_size=12
  ).filter(lambda documents: any(documents)),
  st.integers(1, 100),
  st.booleans(),
  st.sampled_from([70_100, 65_536]),
)
def test_any_documents_are_read_as_written_from_any_shards(
  tmp_path, documents, shard_tokens, append_eos, vocab_size
):
  shutil.rmtree(tmp_path / "any", ignore_errors=True)
  documents = [[min(token, vocab_size - 1) for token in document] for document in documents]
  store = write(
    tmp_path / "any",
    documents,
    ByteVocabulary(extra_ids=vocab_size - 259),
    shard_tokens=shard_tokens,
    append_eos=append_eos,
  )
  assert store.manifest.arrays[0].dtype == ("uint16" if vocab_size <= 65_536 else "int32")
  stream = [token for document in documents if document for token in [*document, *[1] * append_eos]]
  assert store.windows([0], store.num_tokens)[0].tolist() == stream
  assert len(store.document_ends()) == sum(map(bool, documents))


def test_fingerprint_depends_on_content_vocabulary_and_eos(tmp_path):
  documents = random_documents(5, 50)
  stores = [
    write(tmp_path / "a", documents),
    write(tmp_path / "b", documents[::-1]),
    write(tmp_path / "c", documents, ByteVocabulary(extra_ids=130)),
    write(tmp_path / "d", documents, append_eos=True),
  ]
  assert len({store.fingerprint for store in stores}) == 4


def count_open_files():
  """Return the number of open files of the store `corpus_of_many`."""
  links = pathlib.Path("/proc/self/fd").iterdir()
  return sum("corpus_of_many" in os.path.realpath(link) for link in links)


def test_opening_a_store_opens_no_shard_and_the_pool_is_bounded(tmp_path, monkeypatch):
  monkeypatch.setattr(local_ranges, "max_open_files", lambda: 50)
  # An earlier test may have exceeded a larger limit.
  monkeypatch.setattr(local_ranges._pool, "_exceeded_limit", 0)
  documents = random_documents(120, 20)
  store = write(tmp_path / "corpus_of_many", documents, shard_tokens=1)
  assert store.manifest.num_shards == 120
  assert count_open_files() == 0
  stream = np.concatenate(documents)
  store.windows([0], 1)
  assert count_open_files() == 1
  for _ in range(2):
    np.testing.assert_array_equal(store.windows(np.arange(stream.size), 1)[:, 0], stream)
    np.testing.assert_array_equal(store.documents_at([stream.size - 1])[2], [stream.size])
    assert 0 < count_open_files() <= 50
  del store
  assert count_open_files() == 0


def test_garbage_collection_of_a_store_while_files_are_closed_does_not_deadlock(tmp_path):
  """The garbage collector may find a store in a reference cycle at any moment."""
  store = write(tmp_path / "train", random_documents(2, 20))
  cycle = [store]
  cycle.append(cycle)

  def collect_garbage():
    with local_ranges._pool._lock:
      gc.collect()

  del store, cycle
  collector = threading.Thread(target=collect_garbage, daemon=True)
  collector.start()
  collector.join(timeout=60)
  assert not collector.is_alive()


def test_open_files_are_closed_when_descriptors_run_out(tmp_path, monkeypatch):
  store = write(tmp_path / "train", random_documents(8, 20), shard_tokens=1)
  stream = store.windows([0], store.num_tokens)
  original_open = os.open
  failed = []

  def fail_once(path, *args):
    if not failed:
      failed.append(path)
      raise OSError(24, "Too many open files")
    return original_open(path, *args)

  local_ranges._pool._shrink(0)
  monkeypatch.setattr(os, "open", fail_once)
  np.testing.assert_array_equal(store.windows([0], store.num_tokens), stream)
  assert failed


def write_documents(path, lengths, shard_tokens) -> TokenStore:
  """Write a store of documents with these lengths, in which all tokens are equal; open it."""
  attributes = dict(name="n", split="train", vocabulary=ByteVocabulary())
  with TokenStoreWriter(path, **attributes, shard_tokens=shard_tokens) as writer:
    writer.add(np.full(lengths.sum(), 7), lengths)
  return TokenStore.open(path)


@pytest.mark.parametrize("nowait", [True, False])
@pytest.mark.parametrize("longest", [3, 3_000])
def test_documents_at_positions_are_found_among_many(tmp_path, monkeypatch, nowait, longest):
  """The search needs several steps. Lengths are alike, or one document is as long as the rest."""
  monkeypatch.setattr(local_ranges, "_NOWAIT", local_ranges._NOWAIT if nowait else None)
  generator = np.random.default_rng(longest)
  lengths = np.concatenate(
    [generator.integers(1, 4, 5_000), [longest * 10], generator.integers(1, longest, 3_000)]
  )
  store = write_documents(tmp_path / "train", lengths, 10**9 if nowait else 9_000)
  ends = np.cumsum(lengths)
  np.testing.assert_array_equal(store.document_ends(), ends)
  positions = np.concatenate(
    [[0, ends[-1] - 1], generator.integers(0, ends[-1], 2_000), ends[:300] - 1, ends[:300]]
  )
  documents = np.searchsorted(ends, positions, side="right")
  starts = ends[documents] - lengths[documents]
  np.testing.assert_array_equal(store.documents_at(positions), (documents, starts, ends[documents]))
  np.testing.assert_array_equal(store.document_spans(documents), (starts, ends[documents]))


@pytest.mark.parametrize("shard_tokens", [1, 40, 10**6])
def test_document_begins_in_windows(tmp_path, shard_tokens):
  """Windows may hold more documents than are read at once; shards hold one or many documents."""
  lengths = np.random.default_rng(0).integers(1, 9, 60)
  store = write_documents(tmp_path / "train", lengths, shard_tokens)
  is_begin = np.zeros(lengths.sum(), bool)
  is_begin[np.cumsum(lengths) - lengths] = True
  for length in (1, 7, 100, lengths.sum()):
    starts = np.arange(lengths.sum() - length + 1)
    expected = np.stack([is_begin[start : start + length] for start in starts])
    np.testing.assert_array_equal(store.document_begins(starts, length), expected)


@pytest.mark.parametrize(
  "url, words",
  [
    ("{tmp}/nowhere/train", ("no such directory", "tools.prepare_data --source")),
    ("{stores}/validation", ("validation", "there are train")),
    ("{tmp}/empty", ("manifest.json",)),
    ("zzz://bucket/train", ("zzz://",)),
    ("file://{tmp}/train", ("no token store",)),
    ("{tmp}/half", ("unfinished",)),
    ("{tmp}/text.txt/train", ("text.txt is a file, not a directory", "--output=DIR")),
    ("{tmp}/stoer/train", ("no such directory (did you mean '", "/store'?)")),
    ("builtn/train", ("no such directory (did you mean 'builtin'?)",)),
  ],
)
def test_missing_stores_are_refused(url, words, intact_tokens, tmp_path):
  (tmp_path / "empty").mkdir()
  (tmp_path / ".half.incomplete" / "tokens").mkdir(parents=True)
  (tmp_path / "text.txt").write_text("words")
  shutil.copytree(intact_tokens[0], tmp_path / "store" / "train")
  with refuses(*words):
    TokenStore.open(url.format(tmp=tmp_path, stores=intact_tokens[0].parent))


@pytest.mark.parametrize("document, number", [([5, 0], 0), ([384], 384)])
def test_ids_outside_the_vocabulary_are_refused(document, number, tmp_path):
  with refuses(f"found id {number}"):
    write(tmp_path / "train", [document])


def test_store_is_written_neither_over_another_nor_below_a_file(tmp_path):
  write(tmp_path / "train", [[5]])
  with refuses("train", "cannot be written"):
    write(tmp_path / "train", [[5]])
  (tmp_path / "file").write_text("")
  with refuses("file", "cannot be written"):
    write(tmp_path / "file" / "train", [[5]])
