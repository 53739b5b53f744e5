"""Windows have another offset in every epoch, and read every token at most once."""

import collections
import itertools

import numpy as np
import pytest

import corpora
import more
from t5x_like.data import loader, task, windows
from t5x_like.data.windows import Windows
from t5x_like.quiet_tensorflow import tf

TOKENS = 1_003
LENGTH = 50
SEED = 3
EXAMPLES = TOKENS // LENGTH
DOCUMENTS = [1, 13, 50, 7, 0, 0, 111, 2, 30]  # lengths, repeated to the end of the corpus


TASKS = {
  "span_corruption": {"inputs_length": 45},
  "causal_lm": {"length": 50, "documents_end": "any"},
  "prefix_lm": {"length": 50, "documents_end": "any"},
  "ul2": {"length": 50},
  "denoising": {"style": "mass_style", "inputs_length": 51},
  "bart": {"length": 51},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  root = tmp_path_factory.mktemp("corpus")
  corpora.write(root / "train", TOKENS, DOCUMENTS)
  return str(root)


@pytest.fixture(scope="module")
def lm(root):
  """Return a task whose targets are its windows."""
  return task.build("causal_lm", "train", store=root, length=LENGTH, documents_end="any")


def read_positions(batches):
  """Return the positions in the corpus of all tokens of some batches: [rows, length]."""
  return np.concatenate([row["decoder_target_tokens"] for row in batches]) - corpora.FIRST


@pytest.mark.parametrize("hosts", more.beyond(2, [1, 4, 2, 8]))
def test_every_token_is_read_at_most_once_an_epoch(lm, hosts):
  def read(start, steps):
    batches_of_hosts = []
    for rows in np.split(np.arange(8), hosts):
      batches = loader.train_batches(lm, batch_size=8, seed=SEED, start_step=start, rows=rows)
      batches_of_hosts.append(itertools.islice(batches, steps))
    batches_by_step = zip(*batches_of_hosts, strict=True)
    return read_positions(list(itertools.chain.from_iterable(batches_by_step)))

  steps = 3 * EXAMPLES // 8 + 1
  resumed_step = {1: 1, 2: 3, 4: 5, 8: 6}[hosts]
  parts = [read(0, resumed_step), read(resumed_step, steps - resumed_step)]
  positions_NT = np.concatenate(parts)
  offsets = []
  for epoch in range(3):
    windows_of_epoch = positions_NT[epoch * EXAMPLES : (epoch + 1) * EXAMPLES]
    assert (np.diff(windows_of_epoch, axis=1) % TOKENS == 1).all()
    counts = np.bincount(windows_of_epoch.ravel(), minlength=TOKENS)
    assert counts.max() == 1
    assert counts.sum() == EXAMPLES * LENGTH
    # The unread tokens are contiguous and end where the epoch begins.
    unread = np.flatnonzero(counts == 0)
    assert unread.size == TOKENS % LENGTH
    begin = next(start for start in windows_of_epoch[:, 0].tolist() if counts[start - 1] == 0)
    assert sorted(windows_of_epoch[:, 0]) == sorted((begin + LENGTH * np.arange(EXAMPLES)) % TOKENS)
    offsets.append(begin)
  assert offsets[0] == 0
  assert len({offset % LENGTH for offset in offsets}) == 3
  drawn = windows.epoch_offsets(tf.constant([0, 1, 2], tf.int64), SEED, TOKENS).numpy().tolist()
  assert drawn == offsets


def test_evaluation_has_no_offset(lm):
  rows = read_positions(list(loader.eval_batches(lm, batch_size=5)))
  np.testing.assert_array_equal(rows, np.arange(EXAMPLES * LENGTH).reshape(EXAMPLES, LENGTH))


def test_offsets_are_uniform():
  drawn = windows.epoch_offsets(tf.range(1, 20_001, dtype=tf.int64), SEED, 10).numpy()
  assert np.abs(np.bincount(drawn, minlength=10) - 2_000).max() < 5 * np.sqrt(2_000)
  far = windows.epoch_offsets(tf.constant([1, 2], tf.int64), SEED, 2**61).numpy()
  assert (far > 2**40).all()
  assert (far < 2**61).all()


@pytest.mark.parametrize("name", TASKS)
def test_tasks_of_windows_have_offsets_by_default(root, name, monkeypatch):
  moving = task.build(name, "train", store=root, **TASKS[name], dynamic_offsets=True)
  fixed = task.build(name, "train", store=root, **TASKS[name], dynamic_offsets=False)
  assert moving.fingerprint != fixed.fingerprint
  assert moving.numbering != fixed.numbering
  assert task.build(name, "train", store=root, **TASKS[name]).fingerprint == moving.fingerprint
  reads = []
  read_wrapped = windows.read_wrapped

  def record_and_read(read, *window):
    reads.append(window)
    return read_wrapped(read, *window)

  monkeypatch.setattr(windows, "read_wrapped", record_and_read)
  n = moving.num_examples
  index_B = tf.range(n, dtype=tf.int64)
  epoch_B = tf.fill([n], tf.constant(2, tf.int64))
  epoch_offset = int(windows.epoch_offsets(epoch_B, SEED, TOKENS)[0])
  for window_task, offset in ((moving, epoch_offset), (fixed, 0)):
    window_task.batch(index_B, epoch_B, SEED)
    ((starts_B, length, tokens),) = reads
    assert n == TOKENS // length
    assert tokens == TOKENS
    np.testing.assert_array_equal(starts_B, (offset + length * np.arange(n)) % TOKENS)
    reads.clear()


def test_documents_are_numbered_in_windows_that_wrap_around_the_end(root):
  lengths = corpora.lengths_of(TOKENS, DOCUMENTS)
  document = np.tile(corpora.document_of(lengths), 2) + np.repeat([0, len(lengths)], TOKENS)
  moving = Windows(root, "train", LENGTH, dynamic_offsets=True)
  index_B = tf.range(EXAMPLES, dtype=tf.int64)
  for epoch in range(4):
    epoch_B = tf.fill([EXAMPLES], tf.constant(epoch, tf.int64))
    offset = int(windows.epoch_offsets(epoch_B, SEED, TOKENS)[0])
    for row, document_numbers in enumerate(moving.document_numbers(index_B, epoch_B, SEED).numpy()):
      begin = (offset + row * LENGTH) % TOKENS
      _, numbers = np.unique(document[begin : begin + LENGTH], return_inverse=True)
      np.testing.assert_array_equal(document_numbers, numbers + 1)


def test_full_sentences_have_offsets_and_read_each_token_at_most_once(root):
  """At most the tokens of two rows are left out."""
  mlm = task.build(
    "mlm", "train", store=root, length=32, rate=0.05, mask_share=0.0, random_share=0.0
  )
  first = []
  for epoch in range(3):
    n = mlm.num_examples
    features = mlm.batch(
      tf.range(n, dtype=tf.int64), tf.fill([n], tf.constant(epoch, tf.int64)), SEED
    )
    ids = features["encoder_input_tokens"].numpy()
    text = ids[(ids >= corpora.FIRST) & (ids < corpora.FIRST + TOKENS)] - corpora.FIRST
    assert max(collections.Counter(text.tolist()).values()) == 1
    assert text.size > TOKENS - 2 * 32
    first.append(int(ids[0, 1]))
  assert first[0] == corpora.FIRST
  assert len(set(first)) == 3


def test_rows_of_documents_have_no_offsets(root):
  arguments = {"store": root, "input_format": "doc_sentences", "length": 32}
  moving = task.build("mlm", "train", dynamic_offsets=True, **arguments)
  fixed = task.build("mlm", "train", dynamic_offsets=False, **arguments)
  assert moving.fingerprint == fixed.fingerprint
