"""Decoder-only tasks make the inputs, targets, weights and segments of a plain loop."""

import numpy as np
import pytest

import corpora
from chances import assert_fits
from refusals import refuses
from t5x_like.data import task
from t5x_like.data.tasks.prefix_lm import cut_windows
from t5x_like.quiet_tensorflow import tf
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
  defaults = {"length": LENGTH, "documents_end": "nothing", "dynamic_offsets": False}
  return task.build(name, "train", store=root, **defaults | arguments)


def read_batch(built, rows=None):
  """Return the first rows of a task by their numbers, over as many epochs as needed."""
  row = tf.range(rows or built.num_examples, dtype=tf.int64)
  features = built.batch(row % built.num_examples, row // built.num_examples, 0)
  return {name: value.numpy() for name, value in features.items()}


def test_every_token_is_a_target_once(root):
  batch = read_batch(build(root, "causal_lm"))
  assert set(batch) == {"decoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights"}
  stream = np.arange(LENGTH * EXAMPLES) + corpora.FIRST
  assert batch["decoder_target_tokens"].ravel().tolist() == stream.tolist()
  assert (batch["decoder_input_tokens"][:, 0] == 1).all()
  assert (batch["decoder_loss_weights"] == 1).all()
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
  batch = read_batch(built)
  targets = batch["decoder_target_tokens"].ravel()
  inputs = batch["decoder_input_tokens"]
  assert targets.tolist() == stream[: len(targets)]
  assert (targets == 1).sum() > EXAMPLES
  assert (batch["decoder_loss_weights"] == 1).all()
  document_begins = np.flatnonzero((targets == 1)[:-1]) + 1
  assert (inputs.ravel()[document_begins] == 1).all()
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
  "append_eos, refused, accepted", [(False, DECODERS, JOINED), (True, JOINED, DECODERS)]
)
def test_a_store_whose_documents_end_unlike_the_tasks_is_refused(
  tmp_path, append_eos, refused, accepted
):
  corpora.write(tmp_path / "train", 960, [30], append_eos=append_eos)
  ends = ("eos", "nothing") if append_eos else ("nothing", "eos")
  for name, arguments in refused:
    with refuses(
      f"{tmp_path}/train: found {ends[0]} at the end of documents, expected {ends[1]}",
      "--append_eos",
      f"task.documents_end={ends[0]}",
    ):
      task.build(name, "train", store=str(tmp_path), **arguments)
    fingerprints = set()
    for end in (ends[0], "any"):
      built = task.build(name, "train", store=str(tmp_path), documents_end=end, **arguments)
      fingerprints.add(built.fingerprint)
    assert len(fingerprints) == 1
  for name, arguments in accepted:
    task.build(name, "train", store=str(tmp_path), **arguments)


def test_the_builtin_store_exists_with_and_without_ends_of_documents():
  def build_builtin(documents_end):
    return task.build(
      "causal_lm", "train", store="builtin", length=512, documents_end=documents_end
    )

  with_eos = build_builtin("eos")
  without_eos = build_builtin("nothing")
  assert with_eos.fingerprint != without_eos.fingerprint
  assert (read_batch(with_eos, 8)["decoder_target_tokens"] == 1).any()
  assert not (read_batch(without_eos, 8)["decoder_target_tokens"] == 1).any()


def test_a_document_mask_separates_documents(root):
  batch = read_batch(build(root, "causal_lm", document_mask=True))
  documents = np.resize(np.repeat(np.arange(4), [1, 9, 40, 3]), LENGTH * EXAMPLES)
  for row, numbers in enumerate(documents.reshape(EXAMPLES, LENGTH)):
    inputs = []
    segments = []
    positions = []
    for i, document in enumerate(numbers):
      if i == 0 or document != numbers[i - 1]:
        segment = segments[-1] + 1 if segments else 1
        position = 0
        token = 1
      else:
        position += 1
        token = batch["decoder_target_tokens"][row, i - 1]
      inputs.append(token)
      segments.append(segment)
      positions.append(position)
    assert batch["decoder_input_tokens"][row].tolist() == inputs
    assert batch["decoder_segment_ids"][row].tolist() == segments
    assert batch["decoder_positions"][row].tolist() == positions


def test_cut_windows_end_both_parts_with_eos():
  inputs, targets = cut_windows(tf.constant([[5, 6, 7, 8]] * 3), tf.constant([2, 0, 4]), 1)
  assert inputs.numpy().tolist() == [[5, 6, 1, 0, 0], [1, 0, 0, 0, 0], [5, 6, 7, 8, 1]]
  assert targets.numpy().tolist() == [[7, 8, 1, 0, 0], [5, 6, 7, 8, 1], [1, 0, 0, 0, 0]]


def test_the_start_id_is_bos_or_else_eos():
  vocabulary = ByteVocabulary()
  assert start_id(vocabulary) == vocabulary.eos_id
  vocabulary.bos_id = 17
  assert start_id(vocabulary) == 17


def test_the_cut_is_uniform_in_both_forms(root):
  n = 4_000
  decoder = read_batch(build(root, "prefix_lm"), n)
  prefix = (decoder["decoder_loss_weights"] == 0).sum(axis=1)
  position = np.arange(LENGTH)
  np.testing.assert_array_equal(decoder["decoder_loss_weights"], position >= prefix[:, None])
  np.testing.assert_array_equal(decoder["decoder_causal_attention"], position <= prefix[:, None])
  np.testing.assert_array_equal(
    decoder["decoder_input_tokens"][:, 1:], decoder["decoder_target_tokens"][:, :-1]
  )
  pairs = read_batch(build(root, "prefix_lm", architecture="encoder_decoder", length=LENGTH + 1), n)
  input_lengths = (pairs["encoder_input_tokens"] > 1).sum(axis=1)
  np.testing.assert_array_equal(input_lengths, prefix)  # windows and draws are the same
  for row in range(0, n, 50):
    window = decoder["decoder_target_tokens"][row].tolist()
    cut = prefix[row]
    assert pairs["encoder_input_tokens"][row].tolist() == window[:cut] + [1] + [0] * (LENGTH - cut)
    assert pairs["decoder_target_tokens"][row].tolist() == window[cut:] + [1] + [0] * cut
  np.testing.assert_array_equal(pairs["decoder_loss_weights"], pairs["decoder_target_tokens"] != 0)
  assert prefix.min() == 1
  assert prefix.max() == LENGTH - 1
  assert_fits(np.bincount(prefix, minlength=LENGTH)[1:])


@pytest.mark.parametrize(
  "arguments, names",
  [
    ({"length": 1}, ("length: found 1", "at least 2")),
    ({"length": 2, "architecture": "encoder_decoder"}, ("found 2", "at least 3")),
    ({"architecture": "encoder"}, ("task.architecture: found 'encoder'",)),
    ({"documents_end": "EOS"}, ("documents_end: found 'EOS'",)),
  ],
)
def test_impossible_arguments_are_refused(root, arguments, names):
  with refuses(*names):
    build(root, "prefix_lm", **arguments)
