"""Chunks of documents: each once an epoch, however long documents are; stretches of others, of any
number."""

import itertools

import numpy as np
import pytest

import more
import stores
from chances import assert_share
from t5x_like.data import chunk_rows, loader, random, task
from t5x_like.data.document_chunks import Chunks, OtherDocuments
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.errors import UserError
from t5x_like.vocabularies import special_id
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary

SIZE = 64  # tokens of every document


class Uniform:
  """A store of equal documents, in which the token at place i is i // SIZE modulo 2^31."""

  def __init__(self, num_documents: int):
    self.num_documents = num_documents
    self.num_tokens = num_documents * SIZE
    self.append_eos = False

  def read_padded(self, array, starts_B, sizes_B, length):
    tokens_BL = (starts_B[:, None] + np.arange(length)) // SIZE % 2**31
    return np.where(np.arange(length) < sizes_B[:, None], tokens_BL, 0).astype(np.int32)

  def document_spans(self, documents_N):
    assert (0 <= documents_N).all() and (documents_N < self.num_documents).all()
    return documents_N * SIZE, documents_N * SIZE + SIZE


@pytest.mark.parametrize("num_documents", [3, 2**31 + 5, 3 * 2**31, 2**32, 2**35 + 7])
def test_other_documents_are_drawn_from_all(num_documents):
  """Also from more than 2^31, and from more than there are 32-bit words."""
  drawn = []
  store = Uniform(num_documents)
  document_spans = store.document_spans
  store.document_spans = lambda documents: drawn.append(documents) or document_spans(documents)
  index = np.random.default_rng(0).integers(0, num_documents, 4_000)
  key_B = random.row_keys(0, tf.range(4_000))
  bits_B2 = random.bits(random.row_keys(5, key_B), 2).numpy().astype(np.uint64)
  other, other_size, place, _ = OtherDocuments(store, SIZE).read(index, bits_B2)
  (documents,) = drawn
  assert (documents != index).all() and (other[:, 0] == documents % 2**31).all()
  assert (0 <= place).all() and (place < other_size).all()
  thirds = np.bincount((documents * 3 // num_documents).astype(int), minlength=3)
  assert thirds.min() > 4_000 / 3 * 0.9


def cut(size, length, least):
  """Sizes of a document's chunks, cut one after the other."""
  if size < least:
    return []
  chunks = []
  while size > length:
    take = min(length, max(size - least, 1)) if size - length < least else length
    chunks.append(take)
    size -= take
  return [*chunks, size]


@pytest.mark.parametrize("append_eos", [False, True])
@pytest.mark.parametrize("least", [1, 2, 5])
@pytest.mark.parametrize("length", [7, 64])
def test_chunks_are_those_of_cutting_every_document(tmp_path, append_eos, least, length):
  generator = np.random.default_rng(length)
  sizes = [
    *generator.integers(1, 40, 1_500),
    5 * length,
    5 * length + 1,
    *generator.integers(1, 300, 90),
  ]
  documents = [np.full(size, 5) for size in sizes]
  # 2 blocks in one
  store = stores.write(tmp_path / "train", documents, append_eos=append_eos, shard_tokens=13_000)
  chunks = Chunks(store, length, least)
  expected = []
  start = 0
  for number, size in enumerate(sizes):
    place = start
    for taken in cut(int(size), length, least):
      expected.append((number, place, taken))
      place += taken
    start += size + append_eos
  assert chunks.num_examples == len(expected)
  order = generator.permutation(len(expected))
  assert list(zip(*(x.tolist() for x in chunks.locate(order)))) == [expected[i] for i in order]
  assert chunks.locate(order[:0])[0].shape == (0,)


def test_a_store_without_a_document_long_enough_is_refused(tmp_path):
  store = stores.write(tmp_path / "train", [np.full(1, 5)] * 100)
  with pytest.raises(UserError, match="found no document of 2 tokens or more"):
    Chunks(store, 16, min_tokens=2)
  with pytest.raises(UserError, match="100 tokens are no example"):
    Chunks(store, 101)


LENGTH = 64
LENGTHS = {  # tokens of documents: log-normal as those of Wikipedia, median twice a row
  "long": lambda generator: generator.integers(20 * LENGTH, 40 * LENGTH, 12),
  "wiki": lambda generator: np.exp(generator.normal(np.log(2 * LENGTH), 1.0, 150)).astype(int) + 2,
  "short": lambda generator: generator.integers(LENGTH // 8, LENGTH // 3, 1_500),
}


@pytest.fixture(scope="module", params=LENGTHS)
def corpus(request, tmp_path_factory):
  """(a store in which token i of the stream is 300 + i, the lengths of its documents)."""
  sizes = LENGTHS[request.param](np.random.default_rng(1))
  folder = tmp_path_factory.mktemp("chunks")
  ids = np.split(np.arange(sizes.sum()) + 300, np.cumsum(sizes)[:-1])
  stores.write(folder / "train", ids, ByteVocabulary(extra_ids=100_000), shard_tokens=9_000)
  return str(folder), sizes


def build(corpus, input_format, **arguments):
  return task.build(
    "mlm", "train", store=corpus[0], length=LENGTH, input_format=input_format, **arguments
  )


def rows(batch):
  """Tokens of a batch of rows before they were masked."""
  masked = batch["encoder_loss_weights"] > 0
  return np.where(masked, batch["encoder_target_tokens"], batch["encoder_input_tokens"])


def visits(made, epochs):
  """How often every token of the stream is seen in each epoch of training, in all rows: [epochs,
  tokens]."""
  N = made.num_examples
  batches = loader.train_batches(made, batch_size=32, seed=3)
  tokens = np.concatenate([rows(next(batches)) for _ in range(-(-epochs * N // 32))])[: epochs * N]
  text = tokens.reshape(epochs, -1)
  return [np.bincount(row[(row >= 300) & (row < 60_000)] - 300, minlength=1) for row in text]


@pytest.mark.parametrize("packed", [True, more.later(False)])
def test_every_chunk_is_seen_once_an_epoch_and_evaluated_once(corpus, packed):
  built_task = build(corpus, "doc_sentences", packed=packed)
  total = corpus[1].sum()
  for seen in visits(built_task, 2):
    assert seen.tolist() == [1] * total
  evaluated = np.concatenate(
    [rows(batch) for batch in loader.eval_batches(built_task, batch_size=50)]
  )
  assert np.sort(evaluated[(evaluated >= 300) & (evaluated < 60_000)]).tolist() == list(
    range(300, 300 + total)
  )
  pairs = build(
    corpus, "segment_pair", random_next=0.0, short_pairs=0.3 if packed else 0.0, packed=packed
  )
  for seen in visits(pairs, 2):
    assert seen.tolist() == [1] * total


@pytest.mark.parametrize("packed", [True, more.later(False)])
def test_half_of_the_chunks_are_followed_and_the_others_from_other_documents(corpus, packed):
  built_task = build(corpus, "segment_pair", packed=packed)
  document = np.repeat(np.arange(len(corpus[1])), corpus[1])
  labels = []
  batches = loader.train_batches(built_task, batch_size=built_task.num_examples, seed=0)
  for _ in range(2):
    batch = next(batches)
    for row, tokens in enumerate(rows(batch)):
      segments = batch["encoder_segment_ids"][row]
      types = batch["encoder_token_types"][row]
      row_labels = np.atleast_1d(batch["next_sentence_label"][row])
      for number in range(1, segments.max() + 1):
        text = (segments == number) & (tokens >= 300) & (tokens < 60_000)
        a, b = (set(document[tokens[text & (types == kind)] - 300].tolist()) for kind in (0, 1))
        assert len(a) == len(b) == 1 and (a != b) == row_labels[number - 1]
        labels.append(int(row_labels[number - 1]))
  assert_share(sum(labels), len(labels), 0.5)


def test_pairs_of_a_row_are_sequences_of_their_own(corpus):
  built_task = build(corpus, "segment_pair", short_pairs=0.3)
  batch = next(loader.train_batches(built_task, batch_size=100, seed=1))
  cls_id, sep_id = (special_id(built_task.vocabulary, name) for name in ("cls", "sep"))
  pairs = 0
  for row, tokens in enumerate(rows(batch)):
    segments = batch["encoder_segment_ids"][row]
    positions = batch["encoder_positions"][row]
    count = int(segments.max())
    used = int((segments > 0).sum())
    assert (
      (np.diff(segments[:used]) >= 0).all()
      and not segments[used:].any()
      and not tokens[used:].any()
    )
    begins = batch["encoder_cls_positions"][row]
    assert not begins[count:].any() and not batch["next_sentence_label"][row][count:].any()
    for number, begin in enumerate(begins[:count].tolist(), start=1):
      places = np.flatnonzero(segments == number)
      size = places.size
      types = batch["encoder_token_types"][row][places]
      assert (
        begin == places[0]
        and (np.diff(places) == 1).all()
        and positions[places].tolist() == list(range(size))
      )
      cut = int(np.argmax(tokens[places] == sep_id))
      assert tokens[begin] == cls_id and np.flatnonzero(tokens[places] == sep_id).tolist() == [
        cut,
        size - 1,
      ]
      assert types.tolist() == [0] * (cut + 1) + [1] * (size - cut - 1) and 0 < cut < size - 2
    pairs += count
  assert pairs > 100


def fill(made):
  used = [
    batch["encoder_segment_ids"][batch["example_index"] >= 0] > 0
    for batch in loader.eval_batches(made, batch_size=9)
  ]
  return float(np.concatenate(used).mean())


def test_how_full_rows_are(corpus):
  """Rows that may hold several chunks are full; those of one have the lengths that the documents
  have."""
  for input_format, length in (
    ("full_sentences", 256),
    ("doc_sentences", 128),
    ("segment_pair", 256),
  ):
    built_task = task.build(
      "mlm", "train", store=corpus[0], length=length, input_format=input_format
    )
    assert fill(built_task) > 0.95, input_format
  built_task = build(corpus, "doc_sentences", packed=False)
  assert built_task.num_examples == sum(len(cut(int(size), LENGTH - 2, 1)) for size in corpus[1])
  assert fill(built_task) == pytest.approx(
    (corpus[1].sum() / built_task.num_examples + 2) / LENGTH, abs=1e-6
  )


@pytest.mark.parametrize(
  "append_eos, room, beside, spare, most, least", [(0, 64, 3, 3, 7, 2), (1, 40, 2, 0, 99, 1)]
)
def test_rows_are_those_of_best_fit_decreasing(
  tmp_path, append_eos, room, beside, spare, most, least
):
  """Against packing every block of documents with lists."""
  generator = np.random.default_rng(room)
  sizes = [*generator.integers(1, 30, 700), 3 * room, 3 * room + 1, *generator.integers(1, 200, 90)]
  store = stores.write(
    tmp_path / "train",
    [np.full(n, 5) for n in sizes],
    append_eos=bool(append_eos),
    shard_tokens=9_000,
  )
  made = chunk_rows.ChunkRows(store, room, beside, spare=spare, max_chunks=most, min_tokens=least)
  length = room - beside - spare
  expected = []
  starts = np.cumsum([0, *(size + append_eos for size in sizes)])
  for first, end in itertools.pairwise(store.first_items.tolist()):
    for block in range(first, end, 256):
      last = []
      alone = []
      for number in range(block, min(block + 256, end)):
        chunks = cut(int(sizes[number]), length, least)
        places = starts[number] + np.cumsum([0, *chunks])[:-1]
        chunks = [(number, int(place), size) for place, size in zip(places, chunks, strict=True)]
        last = last + chunks[-1:]
        alone = alone + [[chunk] for chunk in chunks[:-1]]
      need = {chunk: chunk[2] + beside + spare * (chunk[2] >= length // 2) for chunk in last}
      packed = []
      for chunk in sorted(last, key=lambda chunk: -need[chunk]):
        left = [room - sum(need[c] for c in row) if len(row) < most else -1 for row in packed]
        fits = [(rest, i) for i, rest in enumerate(left) if rest >= need[chunk]]
        packed[min(fits)[1]].append(chunk) if fits else packed.append([chunk])
      expected += [sorted(row) for row in packed] + alone
  order = generator.permutation(made.num_examples)
  actual = [[] for _ in order]
  for row, *chunk in zip(*(x.tolist() for x in made.members(order)), strict=True):
    actual[row].append(tuple(chunk))
  assert made.num_examples == len(expected) and actual == [expected[i] for i in order]


def test_counts_are_kept_and_only_used_for_what_they_count(tmp_path, monkeypatch):
  store = stores.write(tmp_path / "train", stores.many_documents(), shard_tokens=8_000)
  other = stores.write(tmp_path / "other", stores.many_documents()[1:], shard_tokens=8_000)
  expected = Chunks(store, 50)
  calls = []
  count_all = Chunks._count_all
  monkeypatch.setenv("T5X_LIKE_CACHE", str(tmp_path / "cache"))
  monkeypatch.setattr("t5x_like.data.document_chunks._MIN_CACHED_DOCUMENTS", 1)
  monkeypatch.setattr(Chunks, "_count_all", lambda chunks: calls.append(1) or count_all(chunks))
  index = np.arange(expected.num_examples)
  for _ in range(2):
    np.testing.assert_array_equal(Chunks(store, 50).locate(index), expected.locate(index))
  assert len(calls) == 1
  for chunks in ((store, 51), (store, 50, 2), (other, 50)):
    Chunks(*chunks)
  assert len(calls) == 4
  rows = [chunk_rows.ChunkRows(store, 52, 2) for _ in range(2)]
  assert len(calls) == 5
  np.testing.assert_array_equal(*(made.members(np.arange(made.num_examples)) for made in rows))
  for file in (tmp_path / "cache" / "chunks").iterdir():
    file.write_bytes(file.read_bytes()[:-1])
  np.testing.assert_array_equal(Chunks(store, 50).locate(index), expected.locate(index))
  assert len(calls) == 6
  (tmp_path / "file").write_text("")
  monkeypatch.setenv("T5X_LIKE_CACHE", str(tmp_path / "file"))  # where nothing can be written
  np.testing.assert_array_equal(Chunks(store, 50).locate(index), expected.locate(index))
