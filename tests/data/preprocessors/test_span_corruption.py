"""Span corruption has the T5 library's lengths and distribution of spans, and loses no token."""

import hashlib
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chances import assert_fits
from refusals import refuses
from t5x_like.data import random
from t5x_like.data.preprocessors.span_corruption import (
  SpanCorruption,
  noise_counts,
  random_spans_lengths,
)
from t5x_like.quiet_tensorflow import tf
from t5x_like.vocabularies.kinds._shared import top_ids

SIZE = 32_100
SENTINELS = 100


def row_keys(n, seed=0, epoch=0):
  index = tf.range(n, dtype=tf.int64)
  return random.row_keys(seed, tf.fill([n], tf.constant(epoch, tf.int64)), index)


def random_windows(corruption, rows, seed=0):
  high = min(corruption.sentinels)
  return np.random.default_rng(seed).integers(2, high, (rows, corruption.window), dtype=np.int32)


def reassemble(inputs, targets, size, sentinels):
  """Return the raw window, by replacing each sentinel of the inputs by its span in the targets."""
  spans = {}
  current = None
  for token in targets[: list(targets).index(1)]:
    if token >= size - sentinels:
      current = spans.setdefault(token, [])
    else:
      current.append(token)
  raw = []
  for token in inputs[: list(inputs).index(1)]:
    raw.extend(spans.pop(token) if token >= size - sentinels else [token])
  assert not spans
  return raw


@pytest.mark.parametrize(
  "inputs_length, window, targets_length",
  [(512, 568, 114), (64, 70, 14), (128, 141, 29), (256, 284, 58), (1024, 1137, 229)],
)
def test_lengths_equal_the_t5_librarys(inputs_length, window, targets_length):
  assert random_spans_lengths(inputs_length, 0.15, 3.0) == (window, targets_length)


def test_noise_of_568_tokens_is_85_tokens_in_28_spans():
  assert noise_counts(568, 0.15, 3.0) == (85, 28)
  mask = SpanCorruption(top_ids(SIZE, SENTINELS)).noise_mask(row_keys(500)).numpy()
  assert mask.shape == (500, 568)
  assert not mask[:, 0].any()
  assert mask[:, -1].all()
  assert (mask.sum(axis=1) == 85).all()
  assert ((mask[:, 1:] & ~mask[:, :-1]).sum(axis=1) == 28).all()
  assert len({row.tobytes() for row in mask}) == 500


def test_inputs_and_targets_follow_the_mask():
  corruption = SpanCorruption(top_ids(SIZE, SENTINELS))
  window = random_windows(corruption, 50)
  key = row_keys(50)
  out = corruption(tf.constant(window), key)
  inputs = out["inputs"].numpy()
  targets = out["targets"].numpy()
  mask = corruption.noise_mask(key).numpy()
  assert inputs.shape == (50, 512)
  assert targets.shape == (50, 114)
  assert inputs.dtype == targets.dtype == np.int32
  for row in range(50):
    expected_inputs = []
    expected_targets = []
    sentinel = SIZE
    was_noise = False
    for token, is_noise in zip(window[row].tolist(), mask[row]):
      if is_noise and not was_noise:
        sentinel -= 1
        expected_inputs.append(sentinel)
        expected_targets.append(sentinel)
      (expected_targets if is_noise else expected_inputs).append(token)
      was_noise = is_noise
    assert sentinel == SIZE - 28
    assert inputs[row].tolist() == [*expected_inputs, 1]
    assert targets[row].tolist() == [*expected_targets, 1]


@settings(max_examples=40)
@given(
  st.integers(3, 120),
  st.floats(0.02, 0.95),
  st.floats(1, 12),
  st.integers(0, 20),
  st.integers(0, 2**63),
)
def test_windows_of_any_lengths_and_densities_can_be_reassembled(
  inputs_length, density, mean_length, extra, seed
):
  window, targets_length = random_spans_lengths(inputs_length, density, mean_length)
  assume(window < 2_000)
  corruption = SpanCorruption(
    top_ids(3_000, 1_500), inputs_length, targets_length + extra, density, mean_length
  )
  assert corruption.window == window
  raw = random_windows(corruption, 3)
  out = corruption(tf.constant(raw), row_keys(3, seed))
  for row in range(3):
    inputs = out["inputs"][row].numpy()
    targets = out["targets"][row].numpy()
    assert len(inputs) == inputs_length
    assert len(targets) == targets_length + extra
    assert targets[targets_length - 1] == 1
    assert not targets[targets_length:].any()
    assert reassemble(inputs, targets, 3_000, 1_500) == raw[row].tolist()


def test_window_is_the_longest_that_fits():
  for inputs_length in range(3, 300):
    window, _ = random_spans_lengths(inputs_length, 0.15, 3.0)
    for length, fits in ((window, True), (window + 1, False)):
      tokens, spans = noise_counts(length, 0.15, 3.0)
      assert (length - tokens + spans + 1 <= inputs_length) == fits
  assert random_spans_lengths(512, 0.5, 3.0)[1] <= 512


def test_segment_lengths_are_uniform_compositions():
  """With 3 of 7 tokens as noise in 2 spans, C(3,1) * C(2,1) = 6 masks are equally frequent."""
  corruption = SpanCorruption(
    top_ids(400, 10), inputs_length=7, noise_density=0.45, mean_noise_span_length=1.5
  )
  assert corruption.window == 7
  assert corruption.noise_tokens == 3
  assert corruption.noise_spans == 2
  n = 12_000
  cells = math.comb(3, 1) * math.comb(2, 1)
  _, counts = np.unique(corruption.noise_mask(row_keys(n)).numpy(), axis=0, return_counts=True)
  assert len(counts) == cells
  assert_fits(counts)


# T5's window of 568 tokens, by default.
T5_NOISE = 85
T5_KEPT = 568 - T5_NOISE
T5_SPANS = 28


def draw_t5_masks(n: int) -> np.ndarray:
  return SpanCorruption(top_ids(SIZE, SENTINELS)).noise_mask(row_keys(n)).numpy()


def test_lengths_of_spans_and_gaps_have_the_distribution_of_uniform_cuts():
  n = 4_000
  edges = np.diff(np.pad(draw_t5_masks(n), [[0, 0], [1, 1]]).astype(int), axis=1)
  begins = np.nonzero(edges == 1)[1].reshape(n, T5_SPANS)
  ends = np.nonzero(edges == -1)[1].reshape(n, T5_SPANS)
  noise_lengths = ends - begins
  kept_lengths = begins - np.pad(ends[:, :-1], [[0, 0], [1, 0]])
  for lengths, total in ((noise_lengths, T5_NOISE), (kept_lengths, T5_KEPT)):
    assert (lengths.sum(axis=1) == total).all()
    # After a span of l tokens, the 26 cuts between the other 27 spans have total - l - 1 positions.
    possible_lengths = range(1, total - 26)
    ways = [math.comb(total - length - 1, 26) for length in possible_lengths]
    chances = np.array(ways) / math.comb(total - 1, 27)
    one_of_each_row = lengths[np.arange(n), np.arange(n) % T5_SPANS]
    counts = np.bincount(one_of_each_row, minlength=len(chances) + 1)[1:]
    frequent = chances * n >= 10
    assert_fits(
      [*counts[frequent], counts[~frequent].sum()],
      [*chances[frequent], chances[~frequent].sum()],
    )
    cuts = np.cumsum(lengths, axis=1)[:, :-1]
    assert_fits(np.bincount(cuts.ravel(), minlength=total)[1:], drawn=27 / (total - 1))


def test_a_row_depends_only_on_its_window_and_key():
  corruption = SpanCorruption(top_ids(SIZE, SENTINELS))
  raw = tf.constant(random_windows(corruption, 32))
  key = row_keys(32)
  all_rows = corruption(raw, key)
  dataset = tf.data.Dataset.from_tensor_slices((raw, key)).batch(5).map(corruption)
  for name, value in all_rows.items():
    batches = [batch[name] for batch in dataset.as_numpy_iterator()]
    np.testing.assert_array_equal(value, np.concatenate(batches))
    np.testing.assert_array_equal(value[7:8], corruption(raw[7:8], key[7:8])[name])


@pytest.mark.parametrize(
  "arguments, words",
  [
    ({"sentinels": top_ids(SIZE, 27)}, ("568 tokens has 28 noise spans", "27 sentinels")),
    ({"targets_length": 113}, ("targets_length: found 113", "at least 114")),
    ({"inputs_length": 2}, ("inputs_length: found 2", "at least 3")),
    ({"noise_density": 0.0}, ("noise_density: found 0.0",)),
    ({"noise_density": 1.0}, ("noise_density: found 1.0",)),
    ({"noise_density": float("nan")}, ("noise_density: found nan",)),
    ({"mean_noise_span_length": 0.5}, ("mean_noise_span_length: found 0.5",)),
  ],
)
def test_impossible_arguments_are_refused(arguments, words):
  with refuses(*words):
    SpanCorruption(**{"sentinels": top_ids(SIZE, SENTINELS)} | arguments)


def test_random_bits_equal_splitmix64():
  """The constants are the first outputs of the published generator with seed 1234567."""
  published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
  words = random.bits(tf.constant([1234567], tf.uint64), 8).numpy().astype(np.uint64)[0]
  assert [int(low) | int(high) << 32 for low, high in words.reshape(4, 2)] == published


def test_keys_do_not_change_between_releases():
  """A resumed run reads the same examples only while these keys stay the same."""
  index = tf.constant([0, 1, 2, 10**12], tf.int64)
  epoch = tf.constant([0, 0, 3, 10**9], tf.int64)
  assert random.row_keys(42, epoch, index).numpy().tolist() == KEYS


KEYS = [7138415436909018950, 13151335708014940318, 16908140964753355758, 5808286621832270839]


def test_keys_differ_by_seed_epoch_and_index():
  all_keys = np.concatenate(
    [row_keys(200, seed, epoch).numpy() for seed in range(-2, 5) for epoch in range(5)]
  )
  assert len(np.unique(all_keys)) == all_keys.size
  ones = np.unpackbits(all_keys.view(np.uint8)).mean()
  assert abs(ones - 0.5) < 0.01


@pytest.mark.parametrize(
  "random_roll, expected", [(False, "cd30a74e2dfe07c4"), (True, "24c0e0312c4c9f09")]
)
def test_examples_do_not_change_between_releases(random_roll, expected):
  """A resumed run reads the same examples only while these stay the same."""
  corruption = SpanCorruption(top_ids(SIZE, SENTINELS), random_roll=random_roll)
  raw = np.arange(4 * corruption.window, dtype=np.int32).reshape(4, -1) + 3
  out = corruption(tf.constant(raw), row_keys(4, seed=7))
  digest = hashlib.sha256(out["inputs"].numpy().tobytes() + out["targets"].numpy().tobytes())
  assert digest.hexdigest()[:16] == expected
