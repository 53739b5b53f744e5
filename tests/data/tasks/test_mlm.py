"""The rows of masked language modelling: formats, next sentences, static masks, and indices."""

import sys

import numpy as np
import pytest

from chances import assert_fits, assert_share
from stores import TokenStoreWriter
from t5x_like import trust
from t5x_like.data import task
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.errors import UserError
from t5x_like.vocabularies import special_id
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary

VOCABULARY = ByteVocabulary()
CLS, SEP, MASK = (special_id(VOCABULARY, name) for name in ("cls", "sep", "mask"))
STOP = ord(".") + 3
SPACE = ord(" ") + 3
FIRST = 70
DOCUMENTS = 60


def document(number, size):
  """Sentences of one letter that is the document's own: ` xxxxx.`, seven tokens each."""
  letter = FIRST + number
  return np.array(([SPACE] + [letter] * 5 + [STOP]) * (size // 7 + 1), np.int32)[:size]


@pytest.fixture(scope="module", params=[False, True], ids=["joined", "append_eos"])
def store(request, tmp_path_factory):
  return written(
    tmp_path_factory.mktemp("store"),
    np.random.default_rng(0).integers(40, 400, DOCUMENTS),
    request.param,
  )


def written(path, sizes, append_eos=False):
  """A store of `document`s of these sizes."""
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


def batch(store, rows, start=0, **arguments):
  """(task, features) of examples 0..rows-1, as they are in further epochs where an epoch is
  shorter."""
  built_task = task.build("mlm", "train", store=store, **{"packed": False} | arguments)
  index = np.arange(start, start + rows)
  out = built_task.batch(
    tf.constant(index % built_task.num_examples), tf.constant(index // built_task.num_examples), 0
  )
  return built_task, {name: x.numpy() for name, x in out.items()}


def restored(out):
  return np.where(
    out["encoder_loss_weights"] > 0, out["encoder_target_tokens"], out["encoder_input_tokens"]
  )


def letters(tokens):
  return {int(t) for t in tokens if t >= FIRST and t < FIRST + DOCUMENTS}


@pytest.mark.parametrize("input_format", ["segment_pair", "sentence_pair"])
def test_pairs(store, input_format):
  rows = 2000
  made, out = batch(store, rows, length=64, input_format=input_format)
  tokens = restored(out)
  types = out["encoder_token_types"]
  label = out["next_sentence_label"]
  other = np.zeros((DOCUMENTS, DOCUMENTS))
  for row in range(rows):
    size = (tokens[row] != 0).sum()
    assert (
      tokens[row, 0] == CLS and tokens[row, size - 1] == SEP and (tokens[row] == SEP).sum() == 2
    )
    assert (out["encoder_segment_ids"][row] == (np.arange(64) < size)).all()
    cut = int(np.argmax(tokens[row] == SEP))
    assert (types[row] == ((np.arange(64) > cut) & (np.arange(64) < size))).all()
    a = tokens[row, 1:cut]
    b = tokens[row, cut + 1 : size - 1]
    assert len(a) and len(b) and (a != 1).all() and (b != 1).all()
    first = letters(a)
    second = letters(b)
    assert len(first) <= 1 and len(second) <= 1
    if first and second:
      assert (first != second) == bool(label[row])
      other[min(first) - FIRST, min(second) - FIRST] += label[row]
    if not label[row] and len(a) + len(b) > 14:
      assert b[0] == SPACE and a[-1] == STOP
    if input_format == "sentence_pair":
      assert (a[:-1] == STOP).sum() == 0 and (b[:-1] == STOP).sum() == 0
  assert_share(label.sum(), rows, 0.5)
  assert not np.diag(other).any()
  # Each document is drawn equally often, not in proportion to its length, among those that are not
  # A's.
  elsewhere = 1 - np.eye(DOCUMENTS)
  assert_fits(
    other.sum(axis=0), (elsewhere * (other.sum(axis=1) / (DOCUMENTS - 1))[:, None]).sum(axis=0)
  )


@pytest.mark.parametrize(
  "sizes",
  [[280, 420], [14, 2800], [2800] + [21] * 50, [14] * 60, [7] * 60],
  ids=["two", "two, one tiny", "one huge", "all tiny", "one sentence each"],
)
@pytest.mark.parametrize("input_format", ["segment_pair", "sentence_pair"])
def test_half_of_the_pairs_follow_and_how_b_begins_does_not_tell_which(
  tmp_path, sizes, input_format
):
  rows = 6000
  _, out = batch(written(tmp_path, sizes), rows, length=67, input_format=input_format)
  tokens = restored(out)
  label = out["next_sentence_label"]
  assert_share(label.sum(), rows, 0.5)
  cut = np.argmax(tokens == SEP, axis=1)
  letter = np.where((tokens >= FIRST) & (tokens < FIRST + DOCUMENTS), tokens, 0)
  places = np.arange(67)
  a, b = (
    np.where(mine, letter, 0).max(axis=1) for mine in (places < cut[:, None], places > cut[:, None])
  )
  known = (a > 0) & (b > 0)  # not only a full stop
  assert known.mean() > 0.6 and ((a != b) == label)[known].all()
  begins = tokens[np.arange(rows), cut + 1] == SPACE
  for which in (0, 1):
    assert begins[label == which].mean() == pytest.approx(float(max(sizes) > 7), abs=0.015)


def test_a_tenth_of_the_segment_pairs_are_short_and_of_any_size(tmp_path):
  # chunks are whole
  store = written(tmp_path, [64 * 40] * 3)
  T = 64

  def sizes(rows, **arguments):
    _, out = batch(
      store, rows, length=T + 3, input_format="segment_pair", random_next=0.0, **arguments
    )
    assert not out["next_sentence_label"].any()
    return (out["encoder_input_tokens"] != 0).sum(axis=1) - 3

  assert_share((sizes(30_000) < T).sum(), 30_000, 0.1 * 62 / 63)
  counts = np.bincount(sizes(10_000, short_pairs=1.0), minlength=T + 1)
  assert not counts[:2].any()
  assert_fits(counts[2:])


@pytest.mark.parametrize("input_format", ["segment_pair", "sentence_pair"])
def test_half_of_the_pairs_change_places(store, input_format):
  """Sentence order prediction: the same pairs, and the label tells those whose second segment was
  the first."""
  asked = dict(length=64, input_format=input_format, random_next=0.0)
  rows = 2000
  plain, swapped = (batch(store, rows, **asked, swapped=share)[1] for share in (0.0, 0.5))
  label = swapped["next_sentence_label"]
  moved = 0
  assert_share(label.sum(), rows, 0.5)
  for before, after, types, turned in zip(
    restored(plain), restored(swapped), swapped["encoder_token_types"], label, strict=True
  ):
    (a, b), (first, second) = (
      [list(x) for x in np.split(row, np.flatnonzero(row == SEP))[:2]] for row in (before, after)
    )
    # without [CLS] and [SEP]
    a = a[1:]
    b = b[1:]
    first = first[1:]
    second = second[1:]
    assert [first, second] == ([b, a] if turned else [a, b]) and types.sum() == len(second) + 1
    moved += a != b and bool(turned)
  assert moved > 0.1 * rows  # many sentences are equal


def test_packed_pairs_change_places_too(store):
  asked = dict(length=64, input_format="segment_pair", random_next=0.0, packed=True)
  plain, swapped = (batch(store, 200, **asked, swapped=share)[1] for share in (0.0, 0.5))
  used = (swapped["encoder_cls_positions"] > 0) | (
    np.arange(swapped["encoder_cls_positions"].shape[1]) == 0
  )
  assert 0.35 < swapped["next_sentence_label"][used].mean() < 0.65
  same = (restored(plain) == restored(swapped)).all(axis=1)
  # rows of equal segments aside
  assert (same == (swapped["next_sentence_label"].sum(axis=1) == 0)).mean() > 0.95


def test_full_sentences_have_every_token_once(store):
  built_task = task.build("mlm", "train", store=store, length=64)
  rows = built_task.num_examples
  out = batch(store, rows, length=64)[1]
  tokens = restored(out)
  assert (tokens[:, 0] == CLS).all()
  text = []
  for row in tokens:
    row = row[row != 0]
    assert row[-1] == SEP
    text += [t for t in row[1:-1] if t != SEP]
    assert row[1] in (SPACE, *range(FIRST, FIRST + DOCUMENTS), STOP)
  whole = np.concatenate(
    [document(n, s) for n, s in enumerate(np.random.default_rng(0).integers(40, 400, DOCUMENTS))]
  )
  assert len(text) > len(whole) - 70 - 64 and text == whole[: len(text)].tolist()
  begins = np.mean([row[1] == SPACE for row in tokens])
  assert begins > 0.5  # seven tokens a sentence, four searched


def test_doc_sentences_are_of_one_document(store):
  tokens = restored(batch(store, 600, length=64, input_format="doc_sentences")[1])
  actual = [letters(row) for row in tokens]
  assert all(len(f) == 1 for f in actual) and len(set.union(*actual)) >= DOCUMENTS - 3
  assert ((tokens == SEP).sum(axis=1) == 1).all() and not (tokens == 1).any()


def test_static_masks_repeat_and_dynamic_ones_do_not(store):
  def epoch(number, **arguments):
    made = task.build("mlm", "train", store=store, length=64, **arguments)
    out = made.batch(tf.range(20, dtype=tf.int64), tf.fill([20], tf.constant(number, tf.int64)), 0)
    return {name: x.numpy() for name, x in out.items()}

  same = lambda a, b: all(np.array_equal(a[n], b[n]) for n in a)  # noqa: E731
  static = [epoch(n, static_copies=10) for n in range(12)]
  assert same(static[0], static[10]) and same(static[1], static[11])
  assert not any(same(static[i], static[j]) for i in range(10) for j in range(i))
  assert not same(epoch(0), epoch(10)) and same(epoch(3), epoch(3))


def marked(vocabulary):
  """A sentence rule: the ids that end sentences are those in `ENDS`."""
  return np.isin(np.arange(vocabulary.size), ENDS)


ENDS = [STOP]


def test_the_fingerprint_has_the_ids_that_a_rule_marks(store, monkeypatch):
  """So a run does not resume on other sentences after its rule was edited."""
  rule = f"{__name__}:marked"
  trust.admit(rule)

  def of(name):
    made = task.build(name, "train", store=store, length=64, sentence_rule=rule)
    return made.fingerprint, made.numbering

  once, again = ([of(name) for name in ("mlm", "bart")] for _ in range(2))
  monkeypatch.setattr(sys.modules[__name__], "ENDS", [STOP, SPACE])
  (mlm, rows), (bart, _) = [of(name) for name in ("mlm", "bart")]
  assert once == again and mlm != once[0][0] and rows != once[0][1] and bart != once[1][0]


def test_refusals(store, tmp_path):
  for arguments, words in (
    ({"length": 8}, "length"),
    ({"static_copies": 0}, "static_copies"),
    ({"rate": 2.0}, "rate"),
    ({"sentence_rule": "nowhere:at_all"}, "sentence_rule"),
    ({"input_format": "x"}, "format"),
    ({"input_format": "segment_pair", "swapped": 0.5}, "swapped, random_next"),
  ):
    with pytest.raises(UserError, match=words):
      task.build("mlm", "train", store=store, **arguments)
  with TokenStoreWriter(
    tmp_path / "train", name="one", split="train", vocabulary=VOCABULARY
  ) as writer:
    writer.add(document(0, 400), np.array([400]))
  with pytest.raises(UserError, match="found 1 document, expected at least 2"):
    task.build("mlm", "train", store=str(tmp_path), length=64, input_format="segment_pair")
  for packed in (False, True):  # sentence order needs no other document
    asked = dict(
      length=64, input_format="segment_pair", random_next=0.0, swapped=0.5, packed=packed
    )
    _, out = batch(str(tmp_path), 8, **asked)
    assert letters(restored(out).reshape(-1)) == {FIRST}
