"""A batch is a pure function of its step, on any host; evaluation reads every example once."""

import itertools
import shutil
import subprocess
import sys
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
  for split, tokens in (
    ("train", EXAMPLES * WINDOW + 11),
    ("validation", 10 * WINDOW),
    ("tiny", WINDOW - 1),
  ):
    with TokenStoreWriter(
      root / split, name="corpus", split=split, vocabulary=vocabulary, shard_tokens=97
    ) as writer:
      ids = np.arange(tokens) % 30_000 + 2
      writer.add(ids, [13] * (tokens // 13) + [tokens % 13])
  return str(root)


@pytest.fixture(scope="module")
def train(root):
  return task.build("span_corruption", "train", store=root, inputs_length=64, dynamic_offsets=False)


@pytest.fixture(scope="module")
def validation(root):
  return task.build(
    "span_corruption", "validation", store=root, inputs_length=64, dynamic_offsets=False
  )


def take(batches, n):
  return list(itertools.islice(batches, n))


def read_indices(batch):
  """Return the index of each row's example, from its first token."""
  return (batch["encoder_input_tokens"][:, 0] - 2) // WINDOW


def test_features_are_as_declared(train):
  batch = next(loader.train_batches(train, batch_size=8, seed=0))
  assert batch.keys() == train.features.keys()
  for name, feature in train.features.items():
    assert batch[name].shape == (8, *feature.shape)
    assert batch[name].dtype == feature.dtype
  assert train.features["encoder_input_tokens"].shape == (64,)
  assert train.features["decoder_target_tokens"].shape == (14,)
  assert train.num_examples == EXAMPLES
  assert train.name == "corpus_span_corruption"
  targets = batch["decoder_target_tokens"]
  assert (targets[:, 0] == train.vocabulary.size - 1).all()
  assert (targets[:, -1] == 1).all()
  np.testing.assert_array_equal(batch["decoder_input_tokens"][:, 1:], targets[:, :-1])
  assert not batch["decoder_input_tokens"][:, 0].any()
  assert (batch["decoder_loss_weights"] == 1).all()


def test_inputs_and_targets_hold_the_window(train):
  for batch in take(loader.train_batches(train, batch_size=16, seed=3), 3):
    for inputs, targets, example in zip(
      batch["encoder_input_tokens"], batch["decoder_target_tokens"], read_indices(batch)
    ):
      tokens = np.concatenate([inputs, targets])
      tokens = np.sort(tokens[(tokens > 1) & (tokens < 30_002)])
      np.testing.assert_array_equal(tokens, np.arange(WINDOW) + example * WINDOW + 2)


def test_a_step_has_the_same_batch_reached_by_iterating_or_opened(train):
  batches = take(loader.train_batches(train, batch_size=7, seed=5), 20)
  for step in (0, 1, 13):
    for offset, batch in enumerate(
      take(loader.train_batches(train, batch_size=7, seed=5, start_step=step), 3)
    ):
      assert_same(batch, batches[step + offset])


@pytest.mark.parametrize("hosts", more.beyond(1, [4, 2, 8]))
def test_hosts_concatenate_to_the_one_host_batch(train, validation, hosts):
  slices = [range(8 * host // hosts, 8 * (host + 1) // hosts) for host in range(hosts)]
  for read_batches, steps in (
    (lambda **kw: loader.train_batches(train, batch_size=8, seed=1, start_step=4, **kw), 12),
    (lambda **kw: loader.eval_batches(validation, batch_size=8, **kw), 2),
  ):
    expected_batches = take(read_batches(), steps)
    parts = [take(read_batches(rows=rows), steps) for rows in slices]
    assert len(expected_batches) == steps
    for step, batch in enumerate(expected_batches):
      assert_same(
        {name: np.concatenate([part[step][name] for part in parts]) for name in batch}, batch
      )


def test_a_host_makes_any_set_of_rows(train):
  rows = [0, 3, 4, 9]
  for step in (0, 7):
    full_batch = next(loader.train_batches(train, batch_size=10, seed=1, start_step=step))
    part = next(loader.train_batches(train, batch_size=10, seed=1, start_step=step, rows=rows))
    assert_same(part, {name: x[rows] for name, x in full_batch.items()})


def test_rows_do_not_depend_on_the_batch_size(train):
  def read_60_rows(batch_size):
    batches = loader.train_batches(train, batch_size=batch_size, seed=9)
    return np.concatenate(
      [batch["encoder_input_tokens"] for batch in take(batches, 60 // batch_size)]
    )

  rows = read_60_rows(1)
  np.testing.assert_array_equal(rows, read_60_rows(4))
  np.testing.assert_array_equal(rows, read_60_rows(60))


def test_each_epoch_is_another_permutation_with_other_noise(train):
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


def test_far_steps_open_as_fast_and_stay_exact(train):
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
def test_eval_covers_every_example_exactly_once(validation, batch_size):
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


def test_eval_of_the_first_examples(validation):
  batches = list(loader.eval_batches(validation, batch_size=4, max_examples=6))
  assert [batch["example_index"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, -1, -1]]
  assert len(list(loader.eval_batches(validation, batch_size=4, max_examples=99))) == 3


@pytest.mark.more
def test_dropped_and_unfinished_iterators_end(root):
  """The program drops iterators with batches under way and ends with two alive.

  tests/data/test_iterator.py goes through the ways to drop an iterator and to end a program.
  """
  program = f"""
import random, sys, time
from t5x_like.data import loader, task
assert not {{"keras", "tensorflow_datasets"}} & set(sys.modules), "they make every start longer"
train = task.build("span_corruption", "train", store={root!r}, inputs_length=64)
beside = loader.train_batches(train, batch_size=64, seed=0)
for i in range(12):
  batches = loader.train_batches(train, batch_size=64, seed=0)
  for _ in range(i % 4):
    next(batches)
  next(beside)
  time.sleep(random.random() * 0.004)
"""
  process = subprocess.run(
    [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=True
  )
  assert process.stderr == ""


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
def test_impossible_batches_are_refused(train, function, arguments, name):
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


@pytest.mark.parametrize("address", ["{}", "file://{}"])
def test_shard_lost_after_opening_is_named(root, tmp_path, address):
  shutil.copytree(root, tmp_path / "corpus")
  lost = task.build(
    "span_corruption", "train", store=address.format(tmp_path / "corpus"), inputs_length=64
  )
  (tmp_path / "corpus" / "train" / "tokens" / "00000003").unlink()
  with refuses("tokens/00000003: cannot be read", "No such file"):
    take(loader.train_batches(lost, batch_size=EXAMPLES, seed=0), 1)


def test_missing_argument_is_named():
  with refuses("task.store: missing"):
    task.build("span_corruption", "train")


def test_fingerprint_follows_everything_but_the_label(root, train):
  fixed = {"inputs_length": 64, "dynamic_offsets": False}

  def fingerprint(split="train", **kwargs):
    return task.build("span_corruption", split, store=root, **fixed | kwargs).fingerprint

  same = fingerprint(label="x", verify="size", noise_density=0.15, targets_length=14)
  assert same == train.fingerprint
  other_fingerprints = [
    fingerprint("validation"),
    fingerprint(inputs_length=65),
    fingerprint(targets_length=15),
    fingerprint(noise_density=0.2),
    fingerprint(dynamic_offsets=True),
    fingerprint(mean_noise_span_length=4),
  ]
  assert len({train.fingerprint, *other_fingerprints}) == 7


def test_the_label_is_the_name_of_a_task(root):
  labelled = task.build("span_corruption", "train", store=root, inputs_length=64, label="mine")
  assert labelled.name == "mine"
