"""Features of decoder-only tasks equal plain loops over the documents."""

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
DOCUMENT_LENGTHS = [1, 9, 40, 3]  # repeated to the end of the corpus


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp("corpus")


@pytest.fixture(scope="module")
def root(folder):
  corpora.write(folder / "train", LENGTH * EXAMPLES + 5, DOCUMENT_LENGTHS)
  return str(folder)


def build_task(root, name, **arguments):
  defaults = {"length": LENGTH, "documents_end": "nothing", "dynamic_offsets": False}
  return task.build(name, "train", store=root, **defaults | arguments)


def read_batch(lm_task, num_rows=None):
  """Return the first rows of a task, by default one epoch; more rows continue in later epochs."""
  row = tf.range(num_rows or lm_task.num_examples, dtype=tf.int64)
  features = lm_task.batch(row % lm_task.num_examples, row // lm_task.num_examples, 0)
  return {name: value.numpy() for name, value in features.items()}


def test_every_token_is_a_target_once(root):
  batch = read_batch(build_task(root, "causal_lm"))
  assert set(batch) == {"decoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights"}
  stream = np.arange(LENGTH * EXAMPLES) + corpora.FIRST
  assert batch["decoder_target_tokens"].ravel().tolist() == stream.tolist()
  assert (batch["decoder_input_tokens"][:, 0] == 1).all()
  assert (batch["decoder_loss_weights"] == 1).all()
  np.testing.assert_array_equal(
    batch["decoder_input_tokens"][:, 1:], batch["decoder_target_tokens"][:, :-1]
  )


@pytest.mark.parametrize("document_mask", [False, True])
def test_eos_of_a_document_is_a_target(tmp_path, document_mask):
  lengths = corpora.write(tmp_path / "train", LENGTH * EXAMPLES, [30, 9, 40, 3], append_eos=True)
  stream = []
  end = 0
  for length in lengths:
    stream += [*range(end + corpora.FIRST, end + corpora.FIRST + length), 1]
    end += length
  lm_task = task.build(
    "causal_lm", "train", store=str(tmp_path), length=LENGTH, document_mask=document_mask
  )
  batch = read_batch(lm_task)
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


# Tasks on documents that end with EOS, and tasks on documents that end with nothing.
EOS_TASKS = [("causal_lm", {"length": 32}), ("prefix_lm", {"length": 32})]
PLAIN_TASKS = [
  ("prefix_lm", {"length": 32, "architecture": "encoder_decoder"}),
  ("span_corruption", {"inputs_length": 32}),
  ("denoising", {"inputs_length": 32, "style": "drop_tokens"}),
  ("ul2", {"length": 32}),
]


@pytest.mark.parametrize(
  "store_end, task_end, refused_tasks, accepted_tasks",
  [("nothing", "eos", EOS_TASKS, PLAIN_TASKS), ("eos", "nothing", PLAIN_TASKS, EOS_TASKS)],
)
def test_a_store_whose_documents_end_otherwise_than_the_task_expects_is_refused(
  tmp_path, store_end, task_end, refused_tasks, accepted_tasks
):
  """The argument `documents_end` overrides the task, and does not change its fingerprint."""
  corpora.write(tmp_path / "train", 960, [30], append_eos=store_end == "eos")
  for name, arguments in refused_tasks:
    with refuses(
      f"{tmp_path}/train: found {store_end} at the end of documents, expected {task_end}",
      "--append_eos",
      f"task.documents_end={store_end}",
    ):
      task.build(name, "train", store=str(tmp_path), **arguments)
    fingerprints = set()
    for documents_end in (store_end, "any"):
      lm_task = task.build(
        name, "train", store=str(tmp_path), documents_end=documents_end, **arguments
      )
      fingerprints.add(lm_task.fingerprint)
    assert len(fingerprints) == 1
  for name, arguments in accepted_tasks:
    task.build(name, "train", store=str(tmp_path), **arguments)


def test_the_builtin_store_has_eos_if_the_task_expects_it():
  def build_builtin(documents_end):
    return task.build(
      "causal_lm", "train", store="builtin", length=512, documents_end=documents_end
    )

  with_eos = build_builtin("eos")
  without_eos = build_builtin("nothing")
  assert with_eos.fingerprint != without_eos.fingerprint
  assert (read_batch(with_eos, 8)["decoder_target_tokens"] == 1).any()
  assert not (read_batch(without_eos, 8)["decoder_target_tokens"] == 1).any()


def test_document_mask_separates_documents(root):
  batch = read_batch(build_task(root, "causal_lm", document_mask=True))
  documents = np.resize(np.repeat(np.arange(4), DOCUMENT_LENGTHS), LENGTH * EXAMPLES)
  for row, row_documents in enumerate(documents.reshape(EXAMPLES, LENGTH)):
    inputs = []
    segments = []
    positions = []
    for i, document in enumerate(row_documents):
      if i == 0 or document != row_documents[i - 1]:
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


def test_both_parts_of_a_cut_window_end_with_eos():
  inputs, targets = cut_windows(tf.constant([[5, 6, 7, 8]] * 3), tf.constant([2, 0, 4]), 1)
  assert inputs.numpy().tolist() == [[5, 6, 1, 0, 0], [1, 0, 0, 0, 0], [5, 6, 7, 8, 1]]
  assert targets.numpy().tolist() == [[7, 8, 1, 0, 0], [5, 6, 7, 8, 1], [1, 0, 0, 0, 0]]


def test_start_id_is_bos_or_if_missing_eos():
  vocabulary = ByteVocabulary()
  assert start_id(vocabulary) == vocabulary.eos_id
  vocabulary.bos_id = 17
  assert start_id(vocabulary) == 17


def test_cut_of_a_prefix_lm_is_uniform_in_both_architectures(root):
  num_rows = 4_000
  decoder = read_batch(build_task(root, "prefix_lm"), num_rows)
  prefix = (decoder["decoder_loss_weights"] == 0).sum(axis=1)
  position = np.arange(LENGTH)
  np.testing.assert_array_equal(decoder["decoder_loss_weights"], position >= prefix[:, None])
  np.testing.assert_array_equal(decoder["decoder_causal_attention"], position <= prefix[:, None])
  np.testing.assert_array_equal(
    decoder["decoder_input_tokens"][:, 1:], decoder["decoder_target_tokens"][:, :-1]
  )
  pairs = read_batch(
    build_task(root, "prefix_lm", architecture="encoder_decoder", length=LENGTH + 1), num_rows
  )
  input_lengths = (pairs["encoder_input_tokens"] > 1).sum(axis=1)
  # Both architectures have the same windows and the same random cuts.
  np.testing.assert_array_equal(input_lengths, prefix)
  for row in range(0, num_rows, 50):
    window = decoder["decoder_target_tokens"][row].tolist()
    cut = prefix[row]
    assert pairs["encoder_input_tokens"][row].tolist() == window[:cut] + [1] + [0] * (LENGTH - cut)
    assert pairs["decoder_target_tokens"][row].tolist() == window[cut:] + [1] + [0] * cut
  np.testing.assert_array_equal(pairs["decoder_loss_weights"], pairs["decoder_target_tokens"] != 0)
  assert prefix.min() == 1
  assert prefix.max() == LENGTH - 1
  assert_fits(np.bincount(prefix, minlength=LENGTH)[1:])


@pytest.mark.parametrize(
  "arguments, words",
  [
    ({"length": 1}, ("length: found 1", "at least 2")),
    ({"length": 2, "architecture": "encoder_decoder"}, ("found 2", "at least 3")),
    ({"architecture": "encoder"}, ("task.architecture: found 'encoder'",)),
    ({"documents_end": "EOS"}, ("documents_end: found 'EOS'",)),
  ],
)
def test_impossible_arguments_are_refused(root, arguments, words):
  with refuses(*words):
    build_task(root, "prefix_lm", **arguments)
