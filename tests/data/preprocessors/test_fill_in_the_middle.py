"""Fill-in-the-middle: what was rearranged is put back and is the window again; shares, orders, cuts
and sentinels."""

import numpy as np
import pytest

import corpora
from t5x_like.data import task
from t5x_like.data.preprocessors.fill_in_the_middle import ROOM, FillInTheMiddle, sentinels
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.errors import UserError
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary

KEYS = np.arange(1_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


class Words(ByteVocabulary):
  """Pieces of one to five letters, and EOS 1: every substring of five words, so that any cut can be
  spelled."""

  def __init__(self):
    super().__init__(extra_ids=3)
    words = (" alpha", " beta", " gamma", " delta", " omega")
    self.pieces = sorted(
      {word[i:j] for word in words for i in range(len(word)) for j in range(i + 1, len(word) + 1)}
    )
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
  """(order or None, prefix, middle, suffix) of one document."""
  if ids[0] != pre:
    return None, ids, [], []
  order = "SPM" if ids[1] == suf else "PSM"
  cut = ids.index(suf)
  at = ids.index(mid)
  assert ids[-1] == eos and ids.count(pre) == ids.count(suf) == ids.count(mid) == 1
  if order == "PSM":
    return order, ids[1:cut], ids[at + 1 : -1], ids[cut + 1 : at]
  return order, [], ids[at + 1 : -1], ids[cut + 1 : at]  # the prefix is not told from the middle


def test_tokens():
  vocabulary = ByteVocabulary()
  n = 20
  fim = FillInTheMiddle(vocabulary, n + ROOM, 0.5, 0.25, characters=False)
  pre, suf, mid = fim.sentinels
  assert (pre, suf, mid) == (383, 382, 381)
  window = np.arange(n, dtype=np.int32) + 10
  tokens, documents = fim(np.tile(window, (1_000, 1)), np.zeros((1_000, n), bool), KEYS)
  orders = []
  cuts = []
  for row, numbers in zip(tokens.tolist(), documents.tolist()):
    size = numbers.count(1)
    assert numbers == [1] * size + [0] * (n + ROOM - size) and row[size:] == [0] * (n + ROOM - size)
    order, prefix, middle, suffix = put_back(row[:size], pre, suf, mid)
    assert prefix + middle + suffix == window.tolist()
    orders.append(order)
    cuts += [len(prefix), len(prefix + middle)] if order == "PSM" else []
  assert 430 < sum(order is not None for order in orders) < 570
  assert 85 < orders.count("SPM") < 170
  counts = np.bincount(cuts, minlength=n + 1)
  assert counts.size == n + 1 and counts[1:].min() > 0  # without a prefix, PSM is SPM
  again, _ = fim(np.tile(window, (10, 1)), np.zeros((10, n), bool), KEYS[:10])
  np.testing.assert_array_equal(again, tokens[:10])  # by the key alone


def test_characters():
  vocabulary = Words()
  fim = FillInTheMiddle(vocabulary, 40, 1.0, 0.5, characters=True)
  word = [vocabulary.encode(text)[0] for text in (" alpha", " beta", " gamma", " omega")]
  window = np.array([*word, *word, 1], np.int32)
  whole = vocabulary.decode(window)
  tokens, documents = fim(np.tile(window, (1_000, 1)), np.zeros((1_000, 9), bool), KEYS)
  inside = 0
  cuts = []
  for row, numbers in zip(tokens.tolist(), documents.tolist()):
    order, *parts = put_back(row[: numbers.count(1)], *fim.sentinels)
    prefix, middle, suffix = map(vocabulary.decode, parts)
    assert prefix + middle + suffix == whole
    cuts.append(len(whole) - len(suffix))
    inside += cuts[-1] not in np.cumsum([6, 5, 6, 6] * 2)
  assert inside > 600  # 39 of 47 places are inside of a word
  assert set(range(5, len(whole) + 1)) <= set(cuts)


def test_every_document_of_a_window_and_its_features(tmp_path):
  corpora.write(tmp_path / "train", 2_000, [11, 30, 7], append_eos=False)
  arguments = {
    "store": str(tmp_path),
    "documents_end": "any",
    "length": 64,
    "level": "tokens",
    "document_mask": True,
  }
  built = task.build("fill_in_the_middle", "train", rate=1.0, **arguments)
  assert built.num_examples == 2_000 // (64 - ROOM)
  made = {
    name: value.numpy()
    for name, value in built.batch(
      tf.range(10, dtype=tf.int64), tf.zeros([10], tf.int64), 3
    ).items()
  }
  documents = corpora.document_of(corpora.lengths_of(2_000, [11, 30, 7]))
  for row in range(10):
    place = row * (64 - ROOM)
    ids = made["decoder_target_tokens"][row]
    numbers = made["decoder_segment_ids"][row]
    np.testing.assert_array_equal(made["decoder_loss_weights"][row], numbers > 0)
    for number in range(1, numbers.max()):  # the last may be cut off
      mine = ids[numbers == number].tolist()
      _, prefix, middle, suffix = put_back(mine, 39_999, 39_998, 39_997)
      size = np.count_nonzero(documents[place : row * 58 + 58] == documents[place])
      assert [i - corpora.FIRST for i in prefix + middle + suffix] == list(
        range(place, place + size)
      )
      inputs = made["decoder_input_tokens"][row][numbers == number].tolist()
      assert inputs == [1, *mine[:-1]] and made["decoder_positions"][row][
        numbers == number
      ].tolist() == list(range(len(mine)))
      place += size
  plain = task.build("fill_in_the_middle", "train", rate=0.0, **arguments)
  causal = task.build(
    "causal_lm", "train", **{k: v for k, v in arguments.items() if k != "level"} | {"length": 58}
  )
  for name, value in plain.batch(tf.range(10, dtype=tf.int64), tf.zeros([10], tf.int64), 3).items():
    expected = causal.batch(tf.range(10, dtype=tf.int64), tf.zeros([10], tf.int64), 3)[name]
    np.testing.assert_array_equal(value[:, :58], expected)
  assert plain.fingerprint != built.fingerprint


def test_sentinels_and_refusals():
  class Named(Words):
    def pieces_of(self, ids):
      names = {5: "<fim_prefix>", 7: "<fim_suffix>", 6: "<fim_middle>", 8: "<A>"}
      return [names.get(i, piece) for i, piece in zip(ids, super().pieces_of(ids))]

  assert sentinels(Named()) == (5, 7, 6)
  assert sentinels(Named(), ("<A>", "<fim_middle>", "<fim_suffix>")) == (8, 6, 7)
  with pytest.raises(UserError, match="found no piece '<B>'"):
    sentinels(Named(), ("<A>", "<B>", "<fim_suffix>"))
  with pytest.raises(UserError, match="found 1 pieces, expected three"):
    sentinels(Named(), ("<A>",))
  with pytest.raises(
    UserError, match="neither <fim_prefix>, <fim_suffix>, <fim_middle> nor three sentinels"
  ):
    sentinels(ByteVocabulary(extra_ids=2))
  for arguments, message in (({"length": 8}, "at least 9"), ({"rate": 1.5}, "shares of 0 to 1")):
    with pytest.raises(UserError, match=message):
      task.build("fill_in_the_middle", "train", store="builtin", **arguments)
