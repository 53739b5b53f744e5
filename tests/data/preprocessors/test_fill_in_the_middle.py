"""Fill-in-the-middle only rearranges a document, at the cuts and in the orders of its arguments."""

import itertools

import numpy as np
import pytest

import corpora
from refusals import refuses
from t5x_like.data import task
from t5x_like.data.preprocessors.fill_in_the_middle import ROOM, FillInTheMiddle, sentinels
from t5x_like.quiet_tensorflow import tf
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary

KEYS = np.arange(1_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


class Words(ByteVocabulary):
  """A vocabulary of every substring of four words, so that the parts of any cut can be spelled."""

  def __init__(self):
    super().__init__(extra_ids=3)
    pieces = set()
    for word in (" alpha", " beta", " gamma", " omega"):
      for start, end in itertools.combinations(range(len(word) + 1), 2):
        pieces.add(word[start:end])
    self.pieces = sorted(pieces)
    self.size = 3 + len(self.pieces) + 3
    self.sentinels = tuple(self.size - 1 - i for i in range(3))

  def pieces_of(self, ids):
    return [self.pieces[i - 3] if 3 <= i < 3 + len(self.pieces) else f"<{i}>" for i in ids]

  def decode(self, ids):
    return "".join(self.pieces[i - 3] for i in ids if 3 <= i < 3 + len(self.pieces))

  def encode(self, text):
    return [3 + self.pieces.index(text)]

  special_ids = frozenset([0, 1, 2])


def put_back(ids, pre, suf, mid, eos=1):
  """Return (order or None, prefix, middle, suffix) of one document.

  In the order SPM the prefix and the middle are joined, and returned as the middle.
  """
  if ids[0] != pre:
    return None, ids, [], []
  order = "SPM" if ids[1] == suf else "PSM"
  suffix_start = ids.index(suf)
  middle_start = ids.index(mid)
  assert ids[-1] == eos
  assert ids.count(pre) == ids.count(suf) == ids.count(mid) == 1
  if order == "PSM":
    return (
      order,
      ids[1:suffix_start],
      ids[middle_start + 1 : -1],
      ids[suffix_start + 1 : middle_start],
    )
  return order, [], ids[middle_start + 1 : -1], ids[suffix_start + 1 : middle_start]


def test_a_window_is_cut_between_any_tokens_by_its_key():
  vocabulary = ByteVocabulary()
  n = 20
  fim = FillInTheMiddle(vocabulary, n + ROOM, 0.5, 0.25, characters=False)
  pre, suf, mid = fim.sentinels
  assert pre == 383
  assert suf == 382
  assert mid == 381
  window = np.arange(n, dtype=np.int32) + 10
  tokens, documents = fim(np.tile(window, (1_000, 1)), np.zeros((1_000, n), bool), KEYS)
  orders = []
  cuts = []
  for row, numbers in zip(tokens.tolist(), documents.tolist()):
    size = numbers.count(1)
    padding = n + ROOM - size
    assert numbers == [1] * size + [0] * padding
    assert row[size:] == [0] * padding
    order, prefix, middle, suffix = put_back(row[:size], pre, suf, mid)
    assert prefix + middle + suffix == window.tolist()
    orders.append(order)
    if order == "PSM":
      cuts += [len(prefix), len(prefix + middle)]
  # Half of 1,000 are rearranged, a quarter of these as SPM.
  assert 430 < sum(order is not None for order in orders) < 570
  assert 85 < orders.count("SPM") < 170
  counts = np.bincount(cuts, minlength=n + 1)
  assert counts.size == n + 1
  assert counts[1:].min() > 0  # without a prefix, PSM is SPM
  same_keys, _ = fim(np.tile(window, (10, 1)), np.zeros((10, n), bool), KEYS[:10])
  np.testing.assert_array_equal(same_keys, tokens[:10])


def test_a_window_is_cut_between_any_characters():
  vocabulary = Words()
  fim = FillInTheMiddle(vocabulary, 40, 1.0, 0.5, characters=True)
  words = [vocabulary.encode(piece)[0] for piece in (" alpha", " beta", " gamma", " omega")]
  window = np.array([*words, *words, 1], np.int32)
  text = vocabulary.decode(window)
  tokens, documents = fim(np.tile(window, (1_000, 1)), np.zeros((1_000, 9), bool), KEYS)
  cuts_inside_words = 0
  cuts = []
  for row, numbers in zip(tokens.tolist(), documents.tolist()):
    order, *parts = put_back(row[: numbers.count(1)], *fim.sentinels)
    prefix, middle, suffix = map(vocabulary.decode, parts)
    assert prefix + middle + suffix == text
    cut = len(text) - len(suffix)
    cuts.append(cut)
    cuts_inside_words += cut not in np.cumsum([6, 5, 6, 6] * 2)
  assert cuts_inside_words > 600  # 39 of 47 cuts are inside of a word
  assert set(range(5, len(text) + 1)) <= set(cuts)


@pytest.fixture
def arguments(tmp_path):
  """Return the arguments of a task on a corpus of three lengths of documents."""
  corpora.write(tmp_path / "train", 2_000, [11, 30, 7], append_eos=False)
  return {
    "store": str(tmp_path),
    "documents_end": "any",
    "length": 64,
    "document_mask": True,
  }


def read_batch(built) -> dict[str, np.ndarray]:
  """Return the first ten examples of a task."""
  batch = built.batch(tf.range(10, dtype=tf.int64), tf.zeros([10], tf.int64), 3)
  return {name: value.numpy() for name, value in batch.items()}


def test_every_document_of_a_window_is_rearranged_with_its_features(arguments):
  built = task.build("fill_in_the_middle", "train", rate=1.0, level="tokens", **arguments)
  assert built.num_examples == 2_000 // (64 - ROOM)
  batch = read_batch(built)
  documents = corpora.document_of(corpora.lengths_of(2_000, [11, 30, 7]))
  for row in range(10):
    start = row * (64 - ROOM)
    ids = batch["decoder_target_tokens"][row]
    numbers = batch["decoder_segment_ids"][row]
    np.testing.assert_array_equal(batch["decoder_loss_weights"][row], numbers > 0)
    for number in range(1, numbers.max()):  # the last may be cut off
      in_document = numbers == number
      document = ids[in_document].tolist()
      _, prefix, middle, suffix = put_back(document, 39_999, 39_998, 39_997)
      size = np.count_nonzero(documents[start : row * 58 + 58] == documents[start])
      positions = [i - corpora.FIRST for i in prefix + middle + suffix]
      assert positions == list(range(start, start + size))
      inputs = batch["decoder_input_tokens"][row][in_document].tolist()
      assert inputs == [1, *document[:-1]]
      input_positions = batch["decoder_positions"][row][in_document].tolist()
      assert input_positions == list(range(len(document)))
      start += size


def test_without_middles_the_rows_are_those_of_causal_language_modelling(arguments):
  built = task.build("fill_in_the_middle", "train", rate=0.0, level="tokens", **arguments)
  causal = task.build("causal_lm", "train", **arguments | {"length": 64 - ROOM})
  causal_batch = read_batch(causal)
  for name, value in read_batch(built).items():
    np.testing.assert_array_equal(value[:, : 64 - ROOM], causal_batch[name])


class NamedSentinels(Words):
  """A vocabulary that has pieces with the names of sentinels."""

  def pieces_of(self, ids):
    names = {5: "<fim_prefix>", 7: "<fim_suffix>", 6: "<fim_middle>", 8: "<A>"}
    return [names.get(i, piece) for i, piece in zip(ids, super().pieces_of(ids))]


def test_sentinels_are_the_usual_pieces_or_the_named_ones():
  assert sentinels(NamedSentinels()) == (5, 7, 6)
  assert sentinels(NamedSentinels(), ("<A>", "<fim_middle>", "<fim_suffix>")) == (8, 6, 7)


@pytest.mark.parametrize(
  "vocabulary, names, words",
  [
    (NamedSentinels(), ("<A>", "<B>", "<fim_suffix>"), "found no piece '<B>'"),
    (NamedSentinels(), ("<A>",), "found 1 pieces, expected three"),
    (
      ByteVocabulary(extra_ids=2),
      (),
      "neither <fim_prefix>, <fim_suffix>, <fim_middle> nor three sentinels",
    ),
  ],
)
def test_a_vocabulary_without_the_sentinels_is_refused(vocabulary, names, words):
  with refuses(words):
    sentinels(vocabulary, *([names] if names else []))


@pytest.mark.parametrize(
  "argument, words", [({"length": 8}, "at least 9"), ({"rate": 1.5}, "shares of 0 to 1")]
)
def test_impossible_arguments_are_refused(argument, words):
  with refuses(words):
    task.build("fill_in_the_middle", "train", store="builtin", **argument)
