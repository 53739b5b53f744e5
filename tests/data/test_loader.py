"""A batch is a pure function of its step on any number of hosts; evaluation reads all examples."""

import functools
import itertools
import time

import numpy as np
import pytest

import more
from corpora import assert_same
from refusals import refuses
from stores import TokenStoreWriter
from t5x_like.data import loader, task
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary

WINDOW = 70  # tokens of a window of 64 inputs
EXAMPLES = 53


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  """Write a corpus whose token at position i has the id 2 + i % 30,000, in shards of 97 tokens."""
  root = tmp_path_factory.mktemp("corpus")
  vocabulary = ByteVocabulary(extra_ids=40_000)
  lengths = {"train": EXAMPLES * WINDOW + 11, "validation": 10 * WINDOW, "tiny": WINDOW - 1}
  for split, tokens in lengths.items():
    header = {"name": "corpus", "split": split, "vocabulary": vocabulary}
    with TokenStoreWriter(root / split, shard_tokens=97, **header) as writer:
      ids = np.arange(tokens) % 30_000 + 2
      writer.add(ids, [13] * (tokens // 13) + [tokens % 13])
  return str(root)


def build(root, split):
  arguments = {"store": root, "inputs_length": 64, "dynamic_offsets": False}
  return task.build("span_corruption", split, **arguments)


@pytest.fixture(scope="module")
def train(root):
  return build(root, "train")


@pytest.fixture(scope="module")
def validation(root):
  return build(root, "validation")


def take(batches, n):
  return list(itertools.islice(batches, n))


def read_indices(batch):
  """Return the index of the example of each row, by its first token."""
  return (batch["encoder_input_tokens"][:, 0] - 2) // WINDOW


def test_decoder_inputs_are_the_targets_shifted_by_one(train):
  assert train.features["encoder_input_tokens"].shape == (64,)
  assert train.features["decoder_target_tokens"].shape == (14,)
  assert train.num_examples == EXAMPLES
  assert train.name == "corpus_span_corruption"
  batch = next(loader.train_batches(train, batch_size=8, seed=0))
  targets = batch["decoder_target_tokens"]
  assert (targets[:, 0] == train.vocabulary.size - 1).all()
  assert (targets[:, -1] == 1).all()
  np.testing.assert_array_equal(batch["decoder_input_tokens"][:, 1:], targets[:, :-1])
  assert not batch["decoder_input_tokens"][:, 0].any()
  assert (batch["decoder_loss_weights"] == 1).all()


def test_inputs_and_targets_together_hold_the_window(train):
  for batch in take(loader.train_batches(train, batch_size=16, seed=3), 3):
    for inputs, targets, example in zip(
      batch["encoder_input_tokens"], batch["decoder_target_tokens"], read_indices(batch)
    ):
      tokens = np.concatenate([inputs, targets])
      tokens = np.sort(tokens[(tokens > 1) & (tokens < 30_002)])
      np.testing.assert_array_equal(tokens, np.arange(WINDOW) + example * WINDOW + 2)


def test_batches_from_a_later_start_step_equal_those_of_iteration(train):
  batches = take(loader.train_batches(train, batch_size=7, seed=5), 20)
  for step in (0, 1, 13):
    for offset, batch in enumerate(
      take(loader.train_batches(train, batch_size=7, seed=5, start_step=step), 3)
    ):
      assert_same(batch, batches[step + offset])


@pytest.mark.parametrize("hosts", more.beyond(1, [4, 2, 8]))
def test_rows_of_all_hosts_concatenate_to_the_batch_of_one_host(train, validation, hosts):
  rows_of_hosts = np.split(np.arange(8), hosts)
  for read_batches, steps in (
    (functools.partial(loader.train_batches, train, batch_size=8, seed=1, start_step=4), 12),
    (functools.partial(loader.eval_batches, validation, batch_size=8), 2),
  ):
    expected = take(read_batches(), steps)
    parts = [take(read_batches(rows=rows), steps) for rows in rows_of_hosts]
    assert len(expected) == steps
    for batch, *parts_of_batch in zip(expected, *parts, strict=True):
      joined = {name: np.concatenate([part[name] for part in parts_of_batch]) for name in batch}
      assert_same(joined, batch)


def test_rows_do_not_depend_on_the_batch_size(train):
  def read_60_rows(batch_size):
    batches = loader.train_batches(train, batch_size=batch_size, seed=9)
    return np.concatenate(
      [batch["encoder_input_tokens"] for batch in take(batches, 60 // batch_size)]
    )

  rows = read_60_rows(1)
  np.testing.assert_array_equal(rows, read_60_rows(4))
  np.testing.assert_array_equal(rows, read_60_rows(60))


def test_each_epoch_has_a_new_order_and_new_noise(train):
  batches = take(loader.train_batches(train, batch_size=EXAMPLES, seed=2), 4)
  orders = [read_indices(batch).tolist() for batch in batches]
  for order in orders:
    assert sorted(order) == list(range(EXAMPLES))
  assert len(set(map(tuple, orders))) == 4
  assert list(range(EXAMPLES)) not in orders
  by_example = [
    batch["encoder_input_tokens"][np.argsort(order)] for batch, order in zip(batches, orders)
  ]
  assert (by_example[0] != by_example[1]).any(axis=1).mean() > 0.9
  other_seed = next(loader.train_batches(train, batch_size=EXAMPLES, seed=3))
  assert read_indices(other_seed).tolist() != orders[0]


def test_a_batch_larger_than_the_data_spans_epochs(validation):
  batch = next(loader.train_batches(validation, batch_size=25, seed=0))
  epochs = np.split(read_indices(batch), [10, 20])
  assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(10))
  assert len(set(epochs[2])) == 5


def test_late_steps_open_as_fast_and_stay_exact(train):
  far = 10**9
  next(loader.train_batches(train, batch_size=16, seed=0))
  seconds = {}
  for step in (0, far) * 3:
    begin = time.perf_counter()
    batch = next(loader.train_batches(train, batch_size=16, seed=0, start_step=step))
    seconds.setdefault(step, []).append(time.perf_counter() - begin)
  assert min(seconds[far]) < 3 * min(seconds[0]) + 0.1
  assert len(set(read_indices(batch))) > 8
  before, after = take(loader.train_batches(train, batch_size=16, seed=0, start_step=far - 1), 2)
  assert_same(after, batch)
  assert (before["encoder_input_tokens"] != after["encoder_input_tokens"]).any()


@pytest.mark.parametrize("batch_size", [1, 3, 10, 16])
def test_evaluation_reads_every_example_exactly_once(validation, batch_size):
  batches = list(loader.eval_batches(validation, batch_size=batch_size))
  index = np.concatenate([batch["example_index"] for batch in batches])
  assert index.dtype == np.int32
  assert index[index >= 0].tolist() == list(range(10))
  for batch in batches:
    padding = batch["example_index"] < 0
    for name, value in batch.items():
      assert len(value) == batch_size
      if name != "example_index":
        assert not value[padding].any()
    np.testing.assert_array_equal(read_indices(batch)[~padding], batch["example_index"][~padding])
    assert batch["decoder_loss_weights"][~padding].all()
  for second_pass, batch in zip(loader.eval_batches(validation, batch_size=batch_size), batches):
    assert_same(second_pass, batch)


def test_max_examples_limits_an_evaluation(validation):
  batches = list(loader.eval_batches(validation, batch_size=4, max_examples=6))
  assert [batch["example_index"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, -1, -1]]
  assert len(list(loader.eval_batches(validation, batch_size=4, max_examples=99))) == 3


@pytest.mark.parametrize(
  "function, arguments, name",
  [
    (loader.train_batches, dict(seed=0, rows=range(2, 5)), "rows: found [2, 3, 4]"),
    (loader.eval_batches, dict(rows=[2, 1]), "rows: found [2, 1]"),
    (loader.train_batches, dict(seed=0, batch_size=0), "batch_size: found 0"),
    (loader.train_batches, dict(seed=0, start_step=-1), "start_step: found -1"),
    (loader.eval_batches, dict(max_examples=0), "max_examples: found 0"),
  ],
)
def test_bad_arguments_of_batches_are_refused(train, function, arguments, name):
  with refuses(name):
    function(train, **{"batch_size": 4} | arguments)


@pytest.mark.parametrize(
  "arguments, key, value",
  [
    (dict(name="span_coruption"), "task.name", "did you mean 'span_corruption'"),
    (dict(input_length=64), "task.input_length", "did you mean 'inputs_length'"),
    (dict(inputs_length="64"), "task.inputs_length", "found '64' of type str"),
    (dict(inputs_length=True), "task.inputs_length", "found True of type bool"),
    (dict(targets_length=2.5), "task.targets_length", "or None"),
    (dict(noise_density="0.15"), "task.noise_density", "float"),
    (dict(verify="never"), "task.verify", "'auto' or 'full' or 'size'"),
    (dict(store=None), "task.store", "found None"),
    (dict(split="test"), "split", "tiny, train, validation"),
    (dict(split="tiny", inputs_length=64), "69 tokens", "70 tokens"),
    (dict(targets_length=7, inputs_length=64), "targets_length", "at least 14"),
  ],
)
def test_task_arguments_are_checked(root, arguments, key, value):
  defaults = {"name": "span_corruption", "split": "train", "store": root}
  with refuses(key, value):
    task.build(**defaults | arguments)


def test_label_sets_the_name_of_a_task(root):
  labelled = task.build("span_corruption", "train", store=root, inputs_length=64, label="mine")
  assert labelled.name == "mine"
