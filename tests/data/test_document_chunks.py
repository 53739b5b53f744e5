"""Chunks cover every document once an epoch; "random next" segments come from other documents."""

import itertools
import math

import numpy as np
import pytest

import more
import stores
from chances import assert_share
from refusals import refuses
from t5x_like.data import chunk_rows, loader, random, task
from t5x_like.data.document_chunks import Chunks, OtherDocuments
from t5x_like.quiet_tensorflow import tf
from t5x_like.vocabularies import special_id
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary

SIZE = 64  # tokens of every document of `UniformStore`


class UniformStore:
  """A store of documents of SIZE tokens; each token is the number of its document modulo 2^31."""

  def __init__(self, num_documents: int):
    self.num_documents = num_documents
    self.num_tokens = num_documents * SIZE
    self.append_eos = False

  def read_padded(self, array, starts_B, sizes_B, length):
    tokens_BL = (starts_B[:, None] + np.arange(length)) // SIZE % 2**31
    return np.where(np.arange(length) < sizes_B[:, None], tokens_BL, 0).astype(np.int32)

  def document_spans(self, documents_N):
    assert (0 <= documents_N).all()
    assert (documents_N < self.num_documents).all()
    return documents_N * SIZE, documents_N * SIZE + SIZE


@pytest.mark.parametrize("num_documents", [3, 2**31 + 5, 3 * 2**31, 2**32, 2**35 + 7])
def test_other_documents_are_drawn_from_the_whole_store(num_documents):
  """Numbers of documents above 2^31 and 2^32 must not overflow."""
  drawn_documents = []
  store = UniformStore(num_documents)
  document_spans = store.document_spans

  def record_and_read(documents):
    drawn_documents.append(documents)
    return document_spans(documents)

  store.document_spans = record_and_read
  index = np.random.default_rng(0).integers(0, num_documents, 4_000)
  key_B = random.row_keys(0, tf.range(4_000))
  bits_B2 = random.bits(random.row_keys(5, key_B), 2).numpy().astype(np.uint64)
  segments, segment_sizes, starts, _ = OtherDocuments(store, SIZE).read(index, bits_B2)
  (documents,) = drawn_documents
  assert (documents != index).all()
  assert (segments[:, 0] == documents % 2**31).all()
  assert (0 <= starts).all()
  assert (starts < segment_sizes).all()
  thirds = np.bincount((documents * 3 // num_documents).astype(int), minlength=3)
  assert thirds.min() > 4_000 / 3 * 0.9


def cut_document(size, length, min_tokens):
  """Return the sizes of the chunks of one document, the reference for `Chunks`."""
  if size < min_tokens:
    return []
  chunks = []
  while size > length:
    chunk_size = length
    if size - length < min_tokens:
      chunk_size = min(length, max(size - min_tokens, 1))
    chunks.append(chunk_size)
    size -= chunk_size
  return [*chunks, size]


@pytest.mark.parametrize("append_eos", [False, True])
@pytest.mark.parametrize("min_tokens", [1, 2, 5])
@pytest.mark.parametrize("length", [7, 64])
def test_chunks_equal_a_plain_loop_over_documents(tmp_path, append_eos, min_tokens, length):
  generator = np.random.default_rng(length)
  sizes = [
    *generator.integers(1, 40, 1_500),
    5 * length,
    5 * length + 1,
    *generator.integers(1, 300, 90),
  ]
  documents = [np.full(size, 5) for size in sizes]
  # A shard of 13,000 tokens holds more than one block of documents.
  store = stores.write(tmp_path / "train", documents, append_eos=append_eos, shard_tokens=13_000)
  chunks = Chunks(store, length, min_tokens)
  expected = []
  start = 0
  for number, size in enumerate(sizes):
    chunk_start = start
    for chunk_size in cut_document(int(size), length, min_tokens):
      expected.append((number, chunk_start, chunk_size))
      chunk_start += chunk_size
    start += size + append_eos
  assert chunks.num_examples == len(expected)
  order = generator.permutation(len(expected))
  assert list(zip(*(x.tolist() for x in chunks.locate(order)))) == [expected[i] for i in order]
  assert chunks.locate(order[:0])[0].shape == (0,)


def test_store_without_a_document_of_the_minimum_length_is_refused(tmp_path):
  store = stores.write(tmp_path / "train", [np.full(1, 5)] * 100)
  with refuses("found no document of 2 tokens or more"):
    Chunks(store, 16, min_tokens=2)
  with refuses("found 100 tokens, expected at least one chunk"):
    Chunks(store, 101)


LENGTH = 64
# Draws of document lengths in tokens. "wiki" is log-normal as in Wikipedia; its median is two rows.
LENGTHS = {
  "long": lambda generator: generator.integers(20 * LENGTH, 40 * LENGTH, 12),
  "wiki": lambda generator: np.exp(generator.normal(np.log(2 * LENGTH), 1.0, 150)).astype(int) + 2,
  "short": lambda generator: generator.integers(LENGTH // 8, LENGTH // 3, 1_500),
}


# The documents of "wiki" are of one row to twenty, among them those of "long".
@pytest.fixture(scope="module", params=[more.later("long"), "wiki", "short"])
def corpus(request, tmp_path_factory):
  """Return (the folder of a store whose token i is 300 + i, the lengths of its documents)."""
  sizes = LENGTHS[request.param](np.random.default_rng(1))
  folder = tmp_path_factory.mktemp("chunks")
  ids = np.split(np.arange(sizes.sum()) + 300, np.cumsum(sizes)[:-1])
  stores.write(folder / "train", ids, ByteVocabulary(extra_ids=100_000), shard_tokens=9_000)
  return str(folder), sizes


def build(corpus, input_format, **arguments):
  return task.build(
    "mlm", "train", store=corpus[0], length=LENGTH, input_format=input_format, **arguments
  )


def unmask(batch):
  """Return the tokens of a batch before masking."""
  masked = batch["encoder_loss_weights"] > 0
  return np.where(masked, batch["encoder_target_tokens"], batch["encoder_input_tokens"])


def count_reads(mlm_task, epochs):
  """Return, for each epoch, how often every token of the stream is read."""
  num_rows = epochs * mlm_task.num_examples
  batches = loader.train_batches(mlm_task, batch_size=32, seed=3)
  tokens = np.concatenate([unmask(next(batches)) for _ in range(math.ceil(num_rows / 32))])
  text = tokens[:num_rows].reshape(epochs, -1)
  return [np.bincount(row[(row >= 300) & (row < 60_000)] - 300, minlength=1) for row in text]


@pytest.mark.parametrize("packed", [True, more.later(False)])
def test_every_token_is_read_once_an_epoch_and_evaluated_once(corpus, packed):
  mlm_task = build(corpus, "doc_sentences", packed=packed)
  total = corpus[1].sum()
  for counts in count_reads(mlm_task, 2):
    assert counts.tolist() == [1] * total
  evaluated = np.concatenate(
    [unmask(batch) for batch in loader.eval_batches(mlm_task, batch_size=50)]
  )
  evaluated_text = np.sort(evaluated[(evaluated >= 300) & (evaluated < 60_000)])
  np.testing.assert_array_equal(evaluated_text, np.arange(300, 300 + total))
  pairs = build(
    corpus, "segment_pair", random_next=0.0, short_pairs=0.3 if packed else 0.0, packed=packed
  )
  for counts in count_reads(pairs, 2):
    assert counts.tolist() == [1] * total


@pytest.mark.parametrize("packed", [True, more.later(False)])
def test_half_of_the_second_segments_are_from_other_documents(corpus, packed):
  mlm_task = build(corpus, "segment_pair", packed=packed)
  document = np.repeat(np.arange(len(corpus[1])), corpus[1])
  labels = []
  batches = loader.train_batches(mlm_task, batch_size=mlm_task.num_examples, seed=0)
  for batch in itertools.islice(batches, 2):
    tokens_BT = unmask(batch)
    is_text_BT = (tokens_BT >= 300) & (tokens_BT < 60_000)
    for tokens, is_text, segments, types, row_labels in zip(
      tokens_BT,
      is_text_BT,
      batch["encoder_segment_ids"],
      batch["encoder_token_types"],
      batch["next_sentence_label"].reshape(len(tokens_BT), -1),
    ):
      for number in range(1, segments.max() + 1):
        in_pair = is_text & (segments == number)
        (first,) = set(document[tokens[in_pair & (types == 0)] - 300])
        (second,) = set(document[tokens[in_pair & (types == 1)] - 300])
        assert (first != second) == row_labels[number - 1]
        labels.append(int(row_labels[number - 1]))
  assert_share(sum(labels), len(labels), 0.5)


def test_packed_pairs_have_separate_segments_positions_and_labels(corpus):
  mlm_task = build(corpus, "segment_pair", short_pairs=0.3)
  batch = next(loader.train_batches(mlm_task, batch_size=100, seed=1))
  cls_id = special_id(mlm_task.vocabulary, "cls")
  sep_id = special_id(mlm_task.vocabulary, "sep")
  pairs = 0
  for row, tokens in enumerate(unmask(batch)):
    segments = batch["encoder_segment_ids"][row]
    positions = batch["encoder_positions"][row]
    count = int(segments.max())
    used = int((segments > 0).sum())
    assert (np.diff(segments[:used]) >= 0).all()
    assert not segments[used:].any()
    assert not tokens[used:].any()
    cls_positions = batch["encoder_cls_positions"][row]
    assert not cls_positions[count:].any()
    assert not batch["next_sentence_label"][row][count:].any()
    for number, cls_position in enumerate(cls_positions[:count].tolist(), start=1):
      positions_of_pair = np.flatnonzero(segments == number)
      size = positions_of_pair.size
      types = batch["encoder_token_types"][row][positions_of_pair]
      assert cls_position == positions_of_pair[0]
      assert (np.diff(positions_of_pair) == 1).all()
      assert positions[positions_of_pair].tolist() == list(range(size))
      assert tokens[cls_position] == cls_id
      first_sep, last_sep = np.flatnonzero(tokens[positions_of_pair] == sep_id).tolist()
      assert 0 < first_sep < size - 2
      assert last_sep == size - 1
      assert types.tolist() == [0] * (first_sep + 1) + [1] * (size - first_sep - 1)
    pairs += count
  assert pairs > 100


def measure_fill(mlm_task):
  """Return the share of positions that hold tokens."""
  is_token = []
  for batch in loader.eval_batches(mlm_task, batch_size=9):
    is_token.append(batch["encoder_segment_ids"][batch["example_index"] >= 0] > 0)
  return float(np.concatenate(is_token).mean())


@pytest.mark.parametrize(
  "input_format, length", [("full_sentences", 256), ("doc_sentences", 128), ("segment_pair", 256)]
)
def test_rows_of_several_chunks_are_full(corpus, input_format, length):
  mlm_task = task.build("mlm", "train", store=corpus[0], length=length, input_format=input_format)
  assert measure_fill(mlm_task) > 0.95


def test_unpacked_rows_hold_one_chunk_and_its_special_tokens(corpus):
  mlm_task = build(corpus, "doc_sentences", packed=False)
  assert mlm_task.num_examples == sum(
    len(cut_document(int(size), LENGTH - 2, 1)) for size in corpus[1]
  )
  assert measure_fill(mlm_task) == pytest.approx(
    (corpus[1].sum() / mlm_task.num_examples + 2) / LENGTH, abs=1e-6
  )


@pytest.mark.parametrize(
  "append_eos, room, special_tokens, spare, max_chunks, min_tokens",
  [(0, 64, 3, 3, 7, 2), (1, 40, 2, 0, 99, 1)],
)
def test_packed_rows_equal_best_fit_decreasing(
  tmp_path, append_eos, room, special_tokens, spare, max_chunks, min_tokens
):
  """The reference packs each block of 256 documents in plain Python."""
  generator = np.random.default_rng(room)
  sizes = [*generator.integers(1, 30, 700), 3 * room, 3 * room + 1, *generator.integers(1, 200, 90)]
  store = stores.write(
    tmp_path / "train",
    [np.full(n, 5) for n in sizes],
    append_eos=bool(append_eos),
    shard_tokens=9_000,
  )
  chunk_table = chunk_rows.ChunkRows(
    store, room, special_tokens, spare=spare, max_chunks=max_chunks, min_tokens=min_tokens
  )
  length = room - special_tokens - spare

  def needed_room(chunk) -> int:
    _, _, size = chunk
    return size + special_tokens + spare * (size >= length // 2)

  expected = []
  starts = np.cumsum([0, *(size + append_eos for size in sizes)]).tolist()
  for first, end in itertools.pairwise(store.first_items.tolist()):
    for block in range(first, end, 256):
      last_chunks = []
      full_rows = []
      for number in range(block, min(block + 256, end)):
        chunks = []
        start = starts[number]
        for size in cut_document(int(sizes[number]), length, min_tokens):
          chunks.append((number, start, size))
          start += size
        last_chunks += chunks[-1:]
        full_rows += [[chunk] for chunk in chunks[:-1]]
      expected += pack_best_fit(last_chunks, needed_room, room, max_chunks) + full_rows
  order = generator.permutation(chunk_table.num_examples)
  actual = [[] for _ in order]
  for row, *chunk in zip(*(x.tolist() for x in chunk_table.members(order)), strict=True):
    actual[row].append(tuple(chunk))
  assert chunk_table.num_examples == len(expected)
  assert actual == [expected[i] for i in order]


def pack_best_fit(chunks, needed_room, room, max_chunks) -> list[list]:
  """Put each chunk, the largest first, into the fullest row that has room for it."""
  rows = []
  free = []
  for chunk in sorted(chunks, key=needed_room, reverse=True):
    needed = needed_room(chunk)
    fitting = [n for n, row in enumerate(rows) if len(row) < max_chunks and free[n] >= needed]
    if fitting:
      best = min(fitting, key=lambda n: free[n])
    else:
      best = len(rows)
      rows.append([])
      free.append(room)
    rows[best].append(chunk)
    free[best] -= needed
  return [sorted(row) for row in rows]


def test_counts_of_chunks_are_cached_by_store_and_lengths(tmp_path, monkeypatch):
  store = stores.write(tmp_path / "train", stores.many_documents(), shard_tokens=8_000)
  other_store = stores.write(tmp_path / "other", stores.many_documents()[1:], shard_tokens=8_000)
  expected = Chunks(store, 50)
  calls = []
  count_all = Chunks._count_all

  def record_and_count(chunks):
    calls.append(1)
    return count_all(chunks)

  monkeypatch.setenv("T5X_LIKE_CACHE", str(tmp_path / "cache"))
  monkeypatch.setattr("t5x_like.data.document_chunks._MIN_CACHED_DOCUMENTS", 1)
  monkeypatch.setattr(Chunks, "_count_all", record_and_count)
  index = np.arange(expected.num_examples)
  for _ in range(2):
    np.testing.assert_array_equal(Chunks(store, 50).locate(index), expected.locate(index))
  assert len(calls) == 1
  for chunks in ((store, 51), (store, 50, 2), (other_store, 50)):
    Chunks(*chunks)
  assert len(calls) == 4
  first_rows = chunk_rows.ChunkRows(store, 52, 2)
  cached_rows = chunk_rows.ChunkRows(store, 52, 2)
  assert len(calls) == 5
  all_rows = np.arange(first_rows.num_examples)
  np.testing.assert_array_equal(first_rows.members(all_rows), cached_rows.members(all_rows))
  # A truncated cache file is counted again, and a folder that cannot be written is no error.
  for file in (tmp_path / "cache" / "chunks").iterdir():
    file.write_bytes(file.read_bytes()[:-1])
  np.testing.assert_array_equal(Chunks(store, 50).locate(index), expected.locate(index))
  assert len(calls) == 6
  (tmp_path / "file").write_text("")
  monkeypatch.setenv("T5X_LIKE_CACHE", str(tmp_path / "file"))
  np.testing.assert_array_equal(Chunks(store, 50).locate(index), expected.locate(index))
