"""Decoder-only tasks against a plain loop."""

import numpy as np
import pytest

import corpora
from t5x_like.data import loader, task
from t5x_like.data.preprocessors.decoder_only import decoder_only
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.tasks.prefix_lm import cut_windows
from t5x_like.errors import UserError
from t5x_like.vocabularies import start_id
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary

LENGTH = 24
EXAMPLES = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp("corpus")


@pytest.fixture(scope="module")
def root(folder):
  corpora.write(folder / "train", LENGTH * EXAMPLES + 5, [1, 9, 40, 3])
  return str(folder)


def build(root, name, **arguments):
  return task.build(
    name,
    "train",
    store=root,
    **({"length": LENGTH, "documents_end": "nothing", "dynamic_offsets": False} | arguments),
  )


def batch_of(built, rows=None, seed=0, epoch=0):
  index = tf.range(rows or built.num_examples, dtype=tf.int64) % built.num_examples
  out = built.batch(index, tf.range(len(index), dtype=tf.int64) // built.num_examples + epoch, seed)
  assert {name: (value.shape[1:], value.dtype.name) for name, value in out.items()} == {
    name: (feature.shape, feature.dtype) for name, feature in built.features.items()
  }
  return {name: value.numpy() for name, value in out.items()}


def test_every_token_is_a_target_once(root):
  batch = batch_of(build(root, "causal_lm"))
  assert set(batch) == {"decoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights"}
  stream = np.arange(LENGTH * EXAMPLES) + corpora.FIRST
  assert batch["decoder_target_tokens"].ravel().tolist() == stream.tolist()
  assert (batch["decoder_input_tokens"][:, 0] == 1).all() and (
    batch["decoder_loss_weights"] == 1
  ).all()
  np.testing.assert_array_equal(
    batch["decoder_input_tokens"][:, 1:], batch["decoder_target_tokens"][:, :-1]
  )


@pytest.mark.parametrize("document_mask", [False, True])
def test_the_end_of_a_document_is_a_target(tmp_path, document_mask):
  lengths = corpora.write(tmp_path / "train", LENGTH * EXAMPLES, [30, 9, 40, 3], append_eos=True)
  stream = []
  end = 0
  for size in lengths:
    stream += [*range(end + corpora.FIRST, end + corpora.FIRST + size), 1]
    end += size
  built = task.build(
    "causal_lm", "train", store=str(tmp_path), length=LENGTH, document_mask=document_mask
  )
  batch = batch_of(built)
  targets = batch["decoder_target_tokens"].ravel()
  inputs = batch["decoder_input_tokens"]
  assert targets.tolist() == stream[: len(targets)] and (targets == 1).sum() > EXAMPLES
  assert (batch["decoder_loss_weights"] == 1).all()
  # the beginnings of documents: EOS is what they follow
  follows = np.flatnonzero((targets == 1)[:-1]) + 1
  assert (inputs.ravel()[follows] == 1).all()
  if document_mask:  # EOS belongs to the document that it ends
    segments = batch["decoder_segment_ids"]
    np.testing.assert_array_equal(
      np.diff(segments, axis=1), batch["decoder_target_tokens"][:, :-1] == 1
    )


DECODERS = [("causal_lm", {"length": 32}), ("prefix_lm", {"length": 32})]
JOINED = [
  ("prefix_lm", {"length": 32, "architecture": "encoder_decoder"}),
  ("span_corruption", {"inputs_length": 32}),
  ("denoising", {"inputs_length": 32, "style": "drop_tokens"}),
  ("ul2", {"length": 32}),
]


@pytest.mark.parametrize(
  ("append_eos", "refused", "taken"), [(False, DECODERS, JOINED), (True, JOINED, DECODERS)]
)
def test_a_store_whose_documents_end_otherwise_is_refused(tmp_path, append_eos, refused, taken):
  corpora.write(tmp_path / "train", 960, [30], append_eos=append_eos)
  found, expected, how = ("eos", "nothing", "without ") if append_eos else ("nothing", "eos", "")
  for name, arguments in refused:
    message = (
      f"{tmp_path}/train: found {found} at the end of documents, expected {expected}: prepare "
      f"another store with python -m tools.prepare_data {how}--append_eos, or set "
      f"task.documents_end={found} to train on this one"
    )
    with pytest.raises(UserError) as error:
      task.build(name, "train", store=str(tmp_path), **arguments)
    assert str(error.value) == message
    allowed = [
      task.build(name, "train", store=str(tmp_path), documents_end=end, **arguments)
      for end in (found, "any")
    ]
    assert allowed[0].fingerprint == allowed[1].fingerprint
  for name, arguments in taken:
    task.build(name, "train", store=str(tmp_path), **arguments)
  with pytest.raises(UserError, match="documents_end: found 'EOS'"):
    task.build("causal_lm", "train", store=str(tmp_path), documents_end="EOS")


def test_the_builtin_store_has_both_forms():
  decoder, joined = (
    task.build("causal_lm", "train", store="builtin", length=512, documents_end=end)
    for end in ("eos", "nothing")
  )
  assert decoder.fingerprint != joined.fingerprint
  ends = [(batch_of(built, 8)["decoder_target_tokens"] == 1).sum() for built in (decoder, joined)]
  assert ends[0] > 0 and ends[1] == 0


def test_documents_are_apart(root):
  batch = batch_of(build(root, "causal_lm", document_mask=True))
  documents = np.resize(np.repeat(np.arange(4), [1, 9, 40, 3]), LENGTH * EXAMPLES)
  for row in range(EXAMPLES):
    mine = documents[row * LENGTH : (row + 1) * LENGTH]
    inputs = []
    segments = []
    positions = []
    number = 0
    place = 0
    for i, document in enumerate(mine):
      first = i == 0 or document != mine[i - 1]
      number, place = (number + 1, 0) if first else (number, place + 1)
      segments.append(number)
      positions.append(place)
      inputs.append(1 if first else batch["decoder_target_tokens"][row, i - 1])
    for name, expected in (
      ("input_tokens", inputs),
      ("segment_ids", segments),
      ("positions", positions),
    ):
      assert batch[f"decoder_{name}"][row].tolist() == expected


def test_the_worked_examples():
  out = decoder_only(tf.constant([[5, 6, 7, 8]]), 1, tf.constant([[1, 1, 2, 2]]))
  assert [
    out[f"decoder_{n}"].numpy().tolist() for n in ("input_tokens", "segment_ids", "positions")
  ] == [
    [[1, 5, 1, 7]],
    [[1, 1, 2, 2]],
    [[0, 1, 0, 1]],
  ]
  out = decoder_only(tf.constant([[5, 6, 7, 8]]), 1, prefix_B=tf.constant([2]))
  assert [
    out[f"decoder_{n}"].numpy().tolist()
    for n in ("input_tokens", "loss_weights", "causal_attention")
  ] == [
    [[1, 5, 6, 7]],
    [[0, 0, 1, 1]],
    [[1, 1, 1, 0]],
  ]
  inputs, targets = cut_windows(tf.constant([[5, 6, 7, 8]] * 3), tf.constant([2, 0, 4]), 1)
  assert inputs.numpy().tolist() == [[5, 6, 1, 0, 0], [1, 0, 0, 0, 0], [5, 6, 7, 8, 1]]
  assert targets.numpy().tolist() == [[7, 8, 1, 0, 0], [5, 6, 7, 8, 1], [1, 0, 0, 0, 0]]
  vocabulary = ByteVocabulary()
  assert start_id(vocabulary) == vocabulary.eos_id
  vocabulary.bos_id = 17
  assert start_id(vocabulary) == 17


def test_the_cut_is_uniform_in_both_forms(root):
  n = 4_000
  decoder = batch_of(build(root, "prefix_lm"), n)
  prefix = (decoder["decoder_loss_weights"] == 0).sum(axis=1)
  place = np.arange(LENGTH)
  np.testing.assert_array_equal(decoder["decoder_loss_weights"], place >= prefix[:, None])
  np.testing.assert_array_equal(decoder["decoder_causal_attention"], place <= prefix[:, None])
  np.testing.assert_array_equal(
    decoder["decoder_input_tokens"][:, 1:], decoder["decoder_target_tokens"][:, :-1]
  )
  both = batch_of(build(root, "prefix_lm", architecture="encoder_decoder", length=LENGTH + 1), n)
  given = (both["encoder_input_tokens"] > 1).sum(axis=1)
  np.testing.assert_array_equal(given, prefix)  # the same windows, the same draw
  for row in range(0, n, 50):
    window = decoder["decoder_target_tokens"][row].tolist()
    cut = prefix[row]
    assert both["encoder_input_tokens"][row].tolist() == window[:cut] + [1] + [0] * (LENGTH - cut)
    assert both["decoder_target_tokens"][row].tolist() == window[cut:] + [1] + [0] * cut
  np.testing.assert_array_equal(both["decoder_loss_weights"], both["decoder_target_tokens"] != 0)
  counts = np.bincount(prefix, minlength=LENGTH)[1:]
  assert prefix.min() == 1 and prefix.max() == LENGTH - 1
  expected = n / (LENGTH - 1)
  assert ((counts - expected) ** 2 / expected).sum() < 56  # 22 degrees of freedom: P < 1e-4


def test_each_epoch_has_every_window_in_a_new_order(root):
  built = build(root, "causal_lm")
  batches = loader.train_batches(built, batch_size=EXAMPLES, seed=4)
  orders = [next(batches)["decoder_target_tokens"][:, 0] for _ in range(3)]
  assert all(sorted(order) == sorted(orders[0]) and len(set(order)) == EXAMPLES for order in orders)
  assert len({tuple(order) for order in orders}) == 3


def test_refusals_and_fingerprints(root):
  for arguments, message in (
    ({"length": 1}, "length: found 1, expected at least 2"),
    ({"length": 2, "architecture": "encoder_decoder"}, "found 2, expected at least 3"),
    ({"architecture": "encoder"}, "task.architecture: found 'encoder'"),
  ):
    with pytest.raises(UserError, match=message):
      build(root, "prefix_lm", **arguments)
  tasks = [
    build(root, "causal_lm"),
    build(root, "causal_lm", document_mask=True),
    build(root, "causal_lm", length=25),
    build(root, "prefix_lm"),
    build(root, "prefix_lm", architecture="encoder_decoder"),
  ]
  assert len({built.fingerprint for built in tasks}) == 5
  assert build(root, "causal_lm", label="x").fingerprint == tasks[0].fingerprint
  assert [built.name for built in tasks[2:4]] == ["corpus_causal_lm", "corpus_prefix_lm"]
