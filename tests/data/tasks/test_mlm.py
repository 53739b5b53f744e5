"""Rows of masked language modelling follow their format and have exact rates of next sentences."""

import sys

import numpy as np
import pytest

from chances import assert_fits, assert_share
from refusals import refuses
from stores import TokenStoreWriter
from t5x_like import trust
from t5x_like.data import task
from t5x_like.quiet_tensorflow import tf
from t5x_like.vocabularies import special_id
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary

VOCABULARY = ByteVocabulary()
CLS = special_id(VOCABULARY, "cls")
SEP = special_id(VOCABULARY, "sep")
STOP = ord(".") + 3
SPACE = ord(" ") + 3
FIRST = 70  # the id of the first document's letter
DOCUMENTS = 60


def document(number, size):
  """Return sentences ` xxxxx.` of seven tokens, whose letter identifies the document."""
  letter = FIRST + number
  return np.array(([SPACE] + [letter] * 5 + [STOP]) * (size // 7 + 1), np.int32)[:size]


@pytest.fixture(scope="module", params=[False, True], ids=["joined", "append_eos"])
def store(request, tmp_path_factory):
  sizes = np.random.default_rng(0).integers(40, 400, DOCUMENTS)
  return write_store(tmp_path_factory.mktemp("store"), sizes, request.param)


def write_store(path, sizes, append_eos=False):
  """Write a store of `document`s of these sizes and return its path."""
  with TokenStoreWriter(
    path / "train",
    name="letters",
    split="train",
    vocabulary=VOCABULARY,
    shard_tokens=3000,
    append_eos=append_eos,
  ) as writer:
    for number, size in enumerate(sizes):
      writer.add(document(number % DOCUMENTS, size), np.array([size]))
  return str(path)


def read_rows(store, rows, start=0, **arguments):
  """Return (task, features) of consecutive examples from `start`, also of later epochs."""
  mlm_task = task.build("mlm", "train", store=store, **{"packed": False} | arguments)
  index = np.arange(start, start + rows)
  index_in_epoch = tf.constant(index % mlm_task.num_examples)
  epoch = tf.constant(index // mlm_task.num_examples)
  features = mlm_task.batch(index_in_epoch, epoch, 0)
  return mlm_task, {name: x.numpy() for name, x in features.items()}


def unmask(out):
  """Return the tokens of rows before masking."""
  return np.where(
    out["encoder_loss_weights"] > 0, out["encoder_target_tokens"], out["encoder_input_tokens"]
  )


def letters(tokens):
  """Return the set of letters among some tokens."""
  return {int(t) for t in tokens if t >= FIRST and t < FIRST + DOCUMENTS}


@pytest.mark.parametrize("input_format", ["segment_pair", "sentence_pair"])
def test_label_states_whether_the_second_segment_follows_the_first(store, input_format):
  """A second segment that does not follow is drawn from all other documents equally often."""
  rows = 2000
  mlm_task, out = read_rows(store, rows, length=64, input_format=input_format)
  tokens = unmask(out)
  types = out["encoder_token_types"]
  label = out["next_sentence_label"]
  counts_AB = np.zeros((DOCUMENTS, DOCUMENTS))
  for row in range(rows):
    size = (tokens[row] != 0).sum()
    assert tokens[row, 0] == CLS
    assert tokens[row, size - 1] == SEP
    assert (tokens[row] == SEP).sum() == 2
    assert (out["encoder_segment_ids"][row] == (np.arange(64) < size)).all()
    cut = int(np.argmax(tokens[row] == SEP))
    assert (types[row] == ((np.arange(64) > cut) & (np.arange(64) < size))).all()
    a = tokens[row, 1:cut]
    b = tokens[row, cut + 1 : size - 1]
    assert len(a)
    assert len(b)
    assert (a != 1).all()
    assert (b != 1).all()
    first = letters(a)
    second = letters(b)
    assert len(first) <= 1
    assert len(second) <= 1
    if first and second:
      assert (first != second) == bool(label[row])
      counts_AB[min(first) - FIRST, min(second) - FIRST] += label[row]
    if not label[row] and len(a) + len(b) > 14:
      assert b[0] == SPACE
      assert a[-1] == STOP
    if input_format == "sentence_pair":
      assert (a[:-1] == STOP).sum() == 0
      assert (b[:-1] == STOP).sum() == 0
  assert_share(label.sum(), rows, 0.5)
  assert not np.diag(counts_AB).any()
  # The probability of a document does not depend on its length.
  expected_per_document = counts_AB.sum(axis=1, keepdims=True) / (DOCUMENTS - 1)
  expected_AB = expected_per_document * (1 - np.eye(DOCUMENTS))
  assert_fits(counts_AB.sum(axis=0), expected_AB.sum(axis=0))


@pytest.mark.parametrize(
  "sizes, input_format",
  [
    ([280, 420], "segment_pair"),
    ([14, 2800], "sentence_pair"),
    ([2800] + [21] * 50, "segment_pair"),
    ([14] * 60, "segment_pair"),
    ([7] * 60, "sentence_pair"),
  ],
  ids=["two", "two, one tiny", "one huge", "all tiny", "one sentence each"],
)
def test_half_of_the_second_segments_follow_and_begin_like_the_others(
  tmp_path, sizes, input_format
):
  rows = 6000
  _, out = read_rows(write_store(tmp_path, sizes), rows, length=67, input_format=input_format)
  tokens = unmask(out)
  label = out["next_sentence_label"]
  assert_share(label.sum(), rows, 0.5)
  cut = np.argmax(tokens == SEP, axis=1)
  letter = np.where((tokens >= FIRST) & (tokens < FIRST + DOCUMENTS), tokens, 0)
  positions = np.arange(67)
  a = np.where(positions < cut[:, None], letter, 0).max(axis=1)
  b = np.where(positions > cut[:, None], letter, 0).max(axis=1)
  has_letters = (a > 0) & (b > 0)  # not only a full stop
  assert has_letters.mean() > 0.6
  assert ((a != b) == label)[has_letters].all()
  begins = tokens[np.arange(rows), cut + 1] == SPACE
  for next_label in (0, 1):
    assert begins[label == next_label].mean() == pytest.approx(float(max(sizes) > 7), abs=0.015)


def test_a_tenth_of_segment_pairs_are_short_with_uniform_sizes(tmp_path):
  T = 64
  store = write_store(tmp_path, [T * 40] * 3)  # no chunk ends with its document

  def sizes(rows, **arguments):
    _, out = read_rows(
      store, rows, length=T + 3, input_format="segment_pair", random_next=0.0, **arguments
    )
    assert not out["next_sentence_label"].any()
    return (out["encoder_input_tokens"] != 0).sum(axis=1) - 3

  assert_share((sizes(30_000) < T).sum(), 30_000, 0.1 * 62 / 63)
  counts = np.bincount(sizes(10_000, short_pairs=1.0), minlength=T + 1)
  assert not counts[:2].any()
  assert_fits(counts[2:])


@pytest.mark.parametrize("input_format", ["segment_pair", "sentence_pair"])
def test_sentence_order_prediction_swaps_half_of_the_pairs(store, input_format):
  arguments = dict(length=64, input_format=input_format, random_next=0.0)
  rows = 2000
  _, plain = read_rows(store, rows, **arguments, swapped=0.0)
  _, swapped = read_rows(store, rows, **arguments, swapped=0.5)
  label = swapped["next_sentence_label"]
  changed_rows = 0
  assert_share(label.sum(), rows, 0.5)
  for before, after, types, is_swapped in zip(
    unmask(plain), unmask(swapped), swapped["encoder_token_types"], label, strict=True
  ):
    a, b = split_segments(before)
    first, second = split_segments(after)
    assert [first, second] == ([b, a] if is_swapped else [a, b])
    assert types.sum() == len(second) + 1
    changed_rows += a != b and bool(is_swapped)
  assert changed_rows > 0.1 * rows  # many sentences are equal


def split_segments(row) -> tuple[list[int], list[int]]:
  """Return the two segments of a row without special tokens."""
  first_end, second_end = np.flatnonzero(row == SEP)
  return row[1:first_end].tolist(), row[first_end + 1 : second_end].tolist()


def test_sentence_order_prediction_swaps_half_of_packed_pairs(store):
  arguments = dict(length=64, input_format="segment_pair", random_next=0.0, packed=True)
  _, plain = read_rows(store, 200, **arguments, swapped=0.0)
  _, swapped = read_rows(store, 200, **arguments, swapped=0.5)
  cls_positions = swapped["encoder_cls_positions"]
  is_pair = (cls_positions > 0) | (np.arange(cls_positions.shape[1]) == 0)
  assert 0.35 < swapped["next_sentence_label"][is_pair].mean() < 0.65
  is_same = (unmask(plain) == unmask(swapped)).all(axis=1)
  has_no_swap = swapped["next_sentence_label"].sum(axis=1) == 0
  assert (is_same == has_no_swap).mean() > 0.95  # a few rows have equal segments


def test_full_sentences_have_every_token_once(store):
  mlm_task = task.build("mlm", "train", store=store, length=64)
  rows = mlm_task.num_examples
  out = read_rows(store, rows, length=64)[1]
  tokens = unmask(out)
  assert (tokens[:, 0] == CLS).all()
  text = []
  for row in tokens:
    row = row[row != 0]
    assert row[-1] == SEP
    text += [t for t in row[1:-1] if t != SEP]
    assert row[1] in (SPACE, *range(FIRST, FIRST + DOCUMENTS), STOP)
  sizes = np.random.default_rng(0).integers(40, 400, DOCUMENTS)
  all_tokens = np.concatenate([document(number, size) for number, size in enumerate(sizes)])
  assert len(text) > len(all_tokens) - 70 - 64
  assert text == all_tokens[: len(text)].tolist()
  sentence_begins = np.mean([row[1] == SPACE for row in tokens])
  assert sentence_begins > 0.5  # sentences have seven tokens, of which four are searched


def test_full_sentences_have_every_token_of_quoted_speech_once(tmp_path):
  """Quotes and brackets after a mark belong to one sentence or the next, by the text around."""
  rng = np.random.default_rng(0)
  text = "".join(rng.choice([*"ab .!?()'", '"', "“", "”", "«", "»", "。", "？", "」"], 20_000))
  ids = np.array(VOCABULARY.encode(text), np.int32)
  with TokenStoreWriter(
    tmp_path / "train", name="quotes", split="train", vocabulary=VOCABULARY, shard_tokens=3000
  ) as writer:
    writer.add(ids, np.array([len(ids)]))
  mlm_task, out = read_rows(str(tmp_path), 500, length=64)
  assert mlm_task.num_examples > 500
  tokens = []
  for row in unmask(out):
    tokens += row[(row != 0) & (row != CLS) & (row != SEP)].tolist()
  text_ids = ids.tolist()
  begins = [begin for begin in range(64) if text_ids[begin : begin + 20] == tokens[:20]]
  assert tokens == text_ids[begins[0] : begins[0] + len(tokens)]


def test_rows_of_doc_sentences_have_one_document_each(store):
  tokens = unmask(read_rows(store, 600, length=64, input_format="doc_sentences")[1])
  letters_of_rows = [letters(row) for row in tokens]
  assert all(len(row_letters) == 1 for row_letters in letters_of_rows)
  assert len(set.union(*letters_of_rows)) >= DOCUMENTS - 3
  assert ((tokens == SEP).sum(axis=1) == 1).all()
  assert not (tokens == 1).any()


def test_static_masks_repeat_and_dynamic_ones_do_not(store):
  def masked_rows(number, **arguments):
    """Return the inputs of 20 rows in an epoch."""
    mlm_task = task.build("mlm", "train", store=store, length=64, **arguments)
    epoch_B = tf.fill([20], tf.constant(number, tf.int64))
    out = mlm_task.batch(tf.range(20, dtype=tf.int64), epoch_B, 0)
    return out["encoder_input_tokens"].numpy().tobytes()

  static = [masked_rows(epoch, static_copies=10) for epoch in range(12)]
  assert static[10:] == static[:2]
  assert len(set(static)) == 10
  assert masked_rows(0) != masked_rows(10)
  assert masked_rows(3) == masked_rows(3)


def mark_ends(vocabulary):
  """Return a mask of the ids that end sentences, as a user's sentence rule does."""
  return np.isin(np.arange(vocabulary.size), ENDS)


ENDS = [STOP]


def test_fingerprint_changes_with_the_ids_that_a_sentence_rule_marks(store, monkeypatch):
  """A run whose rule was edited must not resume on other sentences."""
  rule = f"{__name__}:mark_ends"
  trust.admit(rule)

  def fingerprints(name):
    mlm_task = task.build(name, "train", store=store, length=64, sentence_rule=rule)
    return mlm_task.fingerprint, mlm_task.numbering

  mlm = fingerprints("mlm")
  bart = fingerprints("bart")
  assert fingerprints("mlm") == mlm
  assert fingerprints("bart") == bart
  monkeypatch.setattr(sys.modules[__name__], "ENDS", [STOP, SPACE])
  changed_mlm = fingerprints("mlm")
  changed_bart = fingerprints("bart")
  assert changed_mlm[0] != mlm[0]
  assert changed_mlm[1] != mlm[1]
  assert changed_bart[0] != bart[0]


@pytest.mark.parametrize(
  "arguments, name",
  [
    ({"length": 8}, "length"),
    ({"static_copies": 0}, "static_copies"),
    ({"rate": 2.0}, "rate"),
    ({"sentence_rule": "nowhere:at_all"}, "sentence_rule"),
    ({"input_format": "x"}, "format"),
    ({"input_format": "segment_pair", "swapped": 0.5}, "swapped, random_next"),
  ],
)
def test_impossible_arguments_are_refused(store, arguments, name):
  with refuses(name):
    task.build("mlm", "train", store=store, **arguments)


def test_next_sentences_need_a_second_document(tmp_path):
  store = write_store(tmp_path, [400])
  with refuses("found 1 document, expected at least 2"):
    task.build("mlm", "train", store=store, length=64, input_format="segment_pair")


@pytest.mark.parametrize("packed", [False, True])
def test_sentence_order_needs_no_second_document(packed, tmp_path):
  arguments = dict(length=64, input_format="segment_pair", random_next=0.0, swapped=0.5)
  _, out = read_rows(write_store(tmp_path, [400]), 8, packed=packed, **arguments)
  assert letters(unmask(out).reshape(-1)) == {FIRST}
