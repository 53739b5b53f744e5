"""Span corruption: the T5 library's figures, the distribution of spans, and nothing lost between
inputs and targets."""

import hashlib
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import special

from chances import assert_fits
from t5x_like.data import random
from t5x_like.data.preprocessors.encoder_decoder import encoder_decoder
from t5x_like.data.preprocessors.span_corruption import (
  SpanCorruption,
  noise_counts,
  random_spans_lengths,
)
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.errors import UserError
from t5x_like.vocabularies.kinds._shared import top_ids

SIZE = 32_100
SENTINELS = 100


def keys(n, seed=0, epoch=0):
  index = tf.range(n, dtype=tf.int64)
  return random.row_keys(seed, tf.fill([n], tf.constant(epoch, tf.int64)), index)


def windows(corruption, rows, seed=0):
  high = min(corruption.sentinels)
  return np.random.default_rng(seed).integers(2, high, (rows, corruption.window), dtype=np.int32)


def reassembled(inputs, targets, size, sentinels):
  """The raw window: every sentinel of the inputs replaced by what follows it in the targets."""
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
def test_lengths_are_the_t5_librarys(inputs_length, window, targets_length):
  assert random_spans_lengths(inputs_length, 0.15, 3.0) == (window, targets_length)


def test_noise_of_568_tokens():
  assert noise_counts(568, 0.15, 3.0) == (85, 28)
  mask = SpanCorruption(top_ids(SIZE, SENTINELS)).noise_mask(keys(500)).numpy()
  assert mask.shape == (500, 568)
  assert not mask[:, 0].any() and mask[:, -1].all()
  assert (mask.sum(axis=1) == 85).all()
  assert ((mask[:, 1:] & ~mask[:, :-1]).sum(axis=1) == 28).all()
  assert len({row.tobytes() for row in mask}) == 500


def test_inputs_and_targets_follow_the_mask():
  corruption = SpanCorruption(top_ids(SIZE, SENTINELS))
  window = windows(corruption, 50)
  key = keys(50)
  out = corruption(tf.constant(window), key)
  inputs = out["inputs"].numpy()
  targets = out["targets"].numpy()
  mask = corruption.noise_mask(key).numpy()
  assert inputs.shape == (50, 512) and targets.shape == (50, 114)
  assert inputs.dtype == targets.dtype == np.int32
  for row in range(50):
    expected = {True: [], False: []}
    sentinel = SIZE
    for place, (token, noise) in enumerate(zip(window[row], mask[row])):
      if noise and not mask[row, place - 1]:
        sentinel -= 1
        expected[False].append(sentinel)
        expected[True].append(sentinel)
      expected[bool(noise)].append(token)
    assert sentinel == 32_072
    assert inputs[row].tolist() == expected[False] + [1]
    assert targets[row].tolist() == expected[True] + [1]


@settings(max_examples=40)
@given(
  st.integers(3, 120),
  st.floats(0.02, 0.95),
  st.floats(1, 12),
  st.integers(0, 20),
  st.integers(0, 2**63),
)
def test_any_arithmetic_reassembles(inputs_length, density, mean_length, extra, seed):
  window, targets_length = random_spans_lengths(inputs_length, density, mean_length)
  assume(window < 2_000)
  corruption = SpanCorruption(
    top_ids(3_000, 1_500), inputs_length, targets_length + extra, density, mean_length
  )
  assert corruption.window == window
  raw = windows(corruption, 3)
  out = corruption(tf.constant(raw), keys(3, seed))
  for row in range(3):
    inputs = out["inputs"][row].numpy()
    targets = out["targets"][row].numpy()
    assert len(inputs) == inputs_length and len(targets) == targets_length + extra
    assert targets[targets_length - 1] == 1 and not targets[targets_length:].any()
    assert reassembled(inputs, targets, 3_000, 1_500) == raw[row].tolist()


def test_window_is_the_longest_that_fits():
  for inputs_length in range(3, 300):
    window, _ = random_spans_lengths(inputs_length, 0.15, 3.0)
    for length, fits in ((window, True), (window + 1, False)):
      tokens, spans = noise_counts(length, 0.15, 3.0)
      assert (length - tokens + spans + 1 <= inputs_length) == fits
  assert random_spans_lengths(512, 0.5, 3.0)[1] <= 512


def test_segment_lengths_are_uniform_compositions():
  """3 of 7 tokens are noise in 2 spans: all C(3,1) * C(2,1) = 6 masks, equally often
  (chi-square)."""
  corruption = SpanCorruption(
    top_ids(400, 10), inputs_length=7, noise_density=0.45, mean_noise_span_length=1.5
  )
  assert (corruption.window, corruption.noise_tokens, corruption.noise_spans) == (7, 3, 2)
  n = 12_000
  cells = math.comb(3, 1) * math.comb(2, 1)
  _, counts = np.unique(corruption.noise_mask(keys(n)).numpy(), axis=0, return_counts=True)
  assert len(counts) == cells
  assert_fits(counts)


def noise_chance(place, kept, noise, spans):
  """That a token is noise, where kept and noise tokens are cut uniformly: over the tokens of each
  kind before it."""
  chance = 0.0
  span = np.arange(1, spans)
  for before in range(max(0, place - kept), min(place, noise - 1) + 1):
    a = place - before  # kept tokens before it, the last of which ends its span
    ways = (
      special.comb(a - 1, span - 1)
      * special.comb(kept - 1 - a, spans - 1 - span)
      * special.comb(before, span - 1)
      * special.comb(noise - 1 - before, spans - span)
    ).sum()
    if a == kept:  # the last span
      ways = special.comb(kept - 1, spans - 1) * special.comb(before, spans - 1)
    chance += ways
  return chance / (special.comb(kept - 1, spans - 1) * special.comb(noise - 1, spans - 1))


def test_noise_lies_everywhere_but_at_the_ends_and_its_spans_have_the_lengths_of_a_uniform_cut():
  n = 4_000
  mask = SpanCorruption(top_ids(SIZE, SENTINELS)).noise_mask(keys(n)).numpy()
  law = np.array([noise_chance(place, 483, 85, 28) for place in range(568)])
  assert law.sum() == pytest.approx(85) and law[0] == 0 and law[-1] == pytest.approx(1)
  assert abs(law[60:-60] - 85 / 568).max() < 0.005  # uniform but near the ends
  inner = law[1:-1]
  assert (abs(mask[:, 1:-1].sum(axis=0) - n * inner) < 5 * np.sqrt(n * inner * (1 - inner))).all()
  # Lengths of a span drawn from each row: l of 85 tokens leave 84 - l places for the cuts of the 27
  # others.
  edges = np.diff(np.pad(mask, [[0, 0], [1, 1]]).astype(int), axis=1)
  lengths = (np.nonzero(edges == -1)[1] - np.nonzero(edges == 1)[1]).reshape(n, 28)
  assert (lengths.sum(axis=1) == 85).all()
  for kind, total in (
    (lengths, 85),
    (np.diff(np.nonzero(edges == 1)[1].reshape(n, 28)) - lengths[:, :-1], 483),
  ):
    law = np.array(
      [
        math.comb(total - length - 1, 26) / math.comb(total - 1, 27)
        for length in range(1, total - 26)
      ]
    )
    actual = np.bincount(kind[np.arange(n), np.arange(n) % kind.shape[1]], minlength=len(law) + 1)[
      1:
    ]
    often = law * n >= 10
    assert_fits([*actual[often], actual[~often].sum()], [*law[often], law[~often].sum()])
  noise_ends = np.cumsum(lengths, axis=1)  # counted in noise tokens
  kept_ends = np.nonzero(edges == 1)[1].reshape(n, 28) - noise_ends + lengths
  for ends, total in ((noise_ends, 85), (kept_ends, 483)):
    assert (ends[:, -1] == total).all()
    assert_fits(np.bincount(ends[:, :-1].ravel(), minlength=total)[1:], drawn=27 / (total - 1))


def test_rows_depend_on_nothing_but_their_key():
  corruption = SpanCorruption(top_ids(SIZE, SENTINELS))
  raw = tf.constant(windows(corruption, 32))
  key = keys(32)
  whole = corruption(raw, key)
  dataset = tf.data.Dataset.from_tensor_slices((raw, key)).batch(5).map(corruption)
  for name, value in whole.items():
    np.testing.assert_array_equal(
      value, np.concatenate([part[name] for part in dataset.as_numpy_iterator()])
    )
    np.testing.assert_array_equal(value[7:8], corruption(raw[7:8], key[7:8])[name])


@pytest.mark.parametrize(
  "kwargs, message",
  [
    (
      dict(sentinels=top_ids(SIZE, 27)),
      "568 tokens has 28 noise spans but the vocabulary has 27 sentinels",
    ),
    (dict(targets_length=113), "targets_length: found 113.*at least 114"),
    (dict(inputs_length=2), "inputs_length: found 2, expected at least 3"),
    (dict(noise_density=0.0), "noise_density: found 0.0"),
    (dict(noise_density=1.0), "noise_density: found 1.0"),
    (dict(noise_density=float("nan")), "noise_density: found nan"),
    (dict(mean_noise_span_length=0.5), "mean_noise_span_length: found 0.5"),
  ],
)
def test_impossible_arguments_are_refused(kwargs, message):
  with pytest.raises(UserError, match=message) as error:
    SpanCorruption(**{"sentinels": top_ids(SIZE, SENTINELS), **kwargs})
  assert "\n" not in str(error.value)


def test_encoder_decoder_features():
  features = encoder_decoder(tf.constant([[5, 6, 1]]), tf.constant([[9, 8, 1, 0]]))
  expected = {
    "encoder_input_tokens": [[5, 6, 1]],
    "decoder_input_tokens": [[0, 9, 8, 1]],
    "decoder_target_tokens": [[9, 8, 1, 0]],
    "decoder_loss_weights": [[1, 1, 1, 0]],
  }
  assert {name: value.numpy().tolist() for name, value in features.items()} == expected
  assert features["decoder_loss_weights"].dtype == tf.float32


def test_stream_is_splitmix64():
  """The published generator: state += gamma, then mix; its first outputs from seed 1234567."""
  published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
  words = random.bits(tf.constant([1234567], tf.uint64), 8).numpy().astype(np.uint64)[0]
  assert [int(low) | int(high) << 32 for low, high in words.reshape(4, 2)] == published


def test_keys_and_orders_are_frozen():
  """Checkpoints resume into the same data only while these stay as they are."""
  index = tf.constant([0, 1, 2, 10**12], tf.int64)
  epoch = tf.constant([0, 0, 3, 10**9], tf.int64)
  assert random.row_keys(42, epoch, index).numpy().tolist() == KEYS
  small = tf.range(10, dtype=tf.int64)
  epochs = tf.constant([0] * 5 + [1] * 5, tf.int64)
  assert random.shuffle(small, epochs, 42, 10).numpy().tolist() == ORDER
  assert random.shuffle(index, epoch, 42, 10**13).numpy().tolist() == FAR_ORDER


KEYS = [7138415436909018950, 13151335708014940318, 16908140964753355758, 5808286621832270839]
ORDER = [6, 8, 4, 2, 3, 5, 8, 6, 2, 9]
FAR_ORDER = [493752823463, 2083411931267, 9797058603791, 3672683873835]


def test_keys_differ_by_seed_epoch_and_index():
  all_keys = np.concatenate(
    [keys(200, seed, epoch).numpy() for seed in range(-2, 5) for epoch in range(5)]
  )
  assert len(np.unique(all_keys)) == all_keys.size
  ones = np.unpackbits(all_keys.view(np.uint8)).mean()
  assert abs(ones - 0.5) < 0.01


@pytest.mark.parametrize(
  "random_roll, expected", [(False, "cd30a74e2dfe07c4"), (True, "24c0e0312c4c9f09")]
)
def test_examples_are_frozen(random_roll, expected):
  """As `test_keys_and_orders_are_frozen`, for what is made of a window."""
  corruption = SpanCorruption(top_ids(SIZE, SENTINELS), random_roll=random_roll)
  raw = np.arange(4 * corruption.window, dtype=np.int32).reshape(4, -1) + 3
  out = corruption(tf.constant(raw), keys(4, seed=7))
  digest = hashlib.sha256(out["inputs"].numpy().tobytes() + out["targets"].numpy().tobytes())
  assert digest.hexdigest()[:16] == expected
