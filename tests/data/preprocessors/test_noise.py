"""T5's other denoising objectives apply noise correctly and draw an exact, uniform amount of it."""

import numpy as np
import pytest

import corpora
from chances import assert_fits, assert_share
from refusals import refuses
from t5x_like.data import random, task
from t5x_like.data.preprocessors import noise
from t5x_like.data.preprocessors.span_corruption import SpanCorruption
from t5x_like.data.tasks import denoising
from t5x_like.quiet_tensorflow import tf
from t5x_like.vocabularies.kinds._shared import top_ids
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary

SIZE = corpora.SIZE
LENGTH = 40
EXAMPLES = 50
STYLES = ("bert_style", "mass_style", "replace_spans", "drop_tokens", "deshuffling")
TOKENS = tf.constant([[10, 11, 12, 13, 14, 15]])
NOISE = tf.constant([[True, True, False, False, True, False]])


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  folder = tmp_path_factory.mktemp("corpus")
  corpora.write(folder / "train", LENGTH * EXAMPLES, documents=[33])
  return str(folder)


def row_keys(n, seed=0):
  return random.row_keys(seed, tf.range(n, dtype=tf.int64))


def replace_and_drop(window, mask, size):
  """Return a window without its noise and the noise, by a plain loop.

  Returns: (inputs with sentinels, targets with sentinels, the tokens that are not noise, the noise
    tokens).
  """
  inputs = []
  targets = []
  runs = 0
  for i, (token, is_noise) in enumerate(zip(window, mask)):
    if is_noise and (i == 0 or not mask[i - 1]):
      runs += 1
      inputs.append(size - runs)
      targets.append(size - runs)
    if is_noise:
      targets.append(token)
    else:
      inputs.append(token)
  kept_tokens = [token for token, is_noise in zip(window, mask) if not is_noise]
  noise_tokens = [token for token, is_noise in zip(window, mask) if is_noise]
  return inputs, targets, kept_tokens, noise_tokens


def test_noise_is_applied_as_in_the_t5_librarys_examples():
  out = noise.replace_spans(
    TOKENS, NOISE, sentinels=range(999, 899, -1), inputs_length=5, targets_length=5, eos_id=None
  )
  assert out["inputs"].numpy().tolist() == [[999, 12, 13, 998, 15]]
  assert out["targets"].numpy().tolist() == [[999, 10, 11, 998, 14]]
  out = noise.drop_tokens(TOKENS, NOISE, inputs_length=3, targets_length=3, eos_id=None)
  assert out["inputs"].numpy().tolist() == [[12, 13, 15]]
  assert out["targets"].numpy().tolist() == [[10, 11, 14]]
  masked = noise.replace_with_masks(TOKENS, NOISE, mask_id=50)
  assert masked.numpy().tolist() == [[50, 50, 12, 13, 50, 15]]


@pytest.mark.parametrize("density", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_noise_of_any_density_is_applied_as_by_a_plain_loop(density):
  generator = np.random.default_rng(0)
  windows = generator.integers(3, 900, (60, 31))
  masks = generator.random((60, 31)) < density
  raw = tf.constant(windows, tf.int32)
  noise_mask = tf.constant(masks)
  spans = noise.replace_spans(
    raw, noise_mask, sentinels=range(999, 899, -1), inputs_length=40, targets_length=64
  )
  drops = noise.drop_tokens(raw, noise_mask, inputs_length=40, targets_length=64)
  for row in range(60):
    inputs, targets, kept, dropped = replace_and_drop(
      windows[row].tolist(), masks[row].tolist(), 1000
    )
    assert_padded(spans["inputs"][row], inputs)
    assert_padded(spans["targets"][row], targets)
    assert_padded(drops["inputs"][row], kept)
    assert_padded(drops["targets"][row], dropped)


def assert_padded(ids, expected_ids: list[int]) -> None:
  """Assert that ids are the expected ids, then EOS and padding."""
  padding = len(ids) - len(expected_ids) - 1
  assert ids.numpy().tolist() == expected_ids + [1] + [0] * padding


def test_noise_functions_accept_batches_without_rows():
  raw = tf.zeros([0, 31], tf.int32)
  noise_mask = tf.zeros([0, 31], tf.bool)
  empty = noise.replace_spans(
    raw, noise_mask, sentinels=range(999, 899, -1), inputs_length=40, targets_length=64
  )
  assert empty["inputs"].shape == (0, 40)
  assert empty["targets"].shape == (0, 64)


def test_noise_has_an_exact_count_and_uniform_positions():
  n = 20_000
  length = 20
  k = 6
  mask = noise.noise_mask(random.bits(row_keys(n), length), k).numpy()
  assert (mask.sum(axis=1) == k).all()
  assert_fits(mask.sum(axis=0), drawn=k / length)
  # Pairs of tokens, near or far, are both noise equally often.
  first, second = np.triu_indices(length, 1)
  pair_counts = mask.astype(np.int64).T @ mask
  counts = pair_counts[first, second]
  assert counts.sum() == n * k * (k - 1) // 2
  for distance in (1, 2, 3, length // 2):
    near = counts[second - first == distance]
    assert_share(near.sum(), n * len(near), k * (k - 1) / (length * (length - 1)))


def test_nine_tenths_of_bert_style_noise_are_masks():
  n = 4_000
  length = 100
  bits = random.bits(row_keys(n), 2 * length)
  raw = tf.fill([n, length], 7)
  ordinary = tf.range(10, 60)
  mask = noise.noise_mask(bits[:, :length], 15)
  out = noise.replace_with_masks(
    raw, mask, mask_id=99, random_fraction=0.1, ordinary_ids=ordinary, bits_BW=bits[:, length:]
  ).numpy()
  mask = mask.numpy()
  assert (out[~mask] == 7).all()
  assert (out != 7).sum() == 15 * n
  assert_share((out == 99).sum(), mask.sum(), 0.9)
  ids, counts = np.unique(out[mask & (out != 99)], return_counts=True)
  assert ids.tolist() == [*range(10, 60)]
  assert_fits(counts)


def test_shuffled_rows_are_permutations_and_uniform():
  n = 6_000
  out = noise.shuffle_tokens(
    tf.tile(tf.range(4)[None], [n, 1]), random.bits(row_keys(n), 4)
  ).numpy()
  assert (np.sort(out, axis=1) == np.arange(4)).all()
  _, counts = np.unique(out, axis=0, return_counts=True)
  assert len(counts) == 24
  assert_fits(counts)


@pytest.mark.parametrize("style", STYLES)
def test_inputs_and_targets_of_each_style_equal_a_plain_loop(root, style):
  denoising_task = task.build("denoising", "train", store=root, style=style, inputs_length=LENGTH)
  window, tokens_of_noise, targets_length = denoising.denoising_lengths(style, LENGTH, 0.15)
  index = tf.range(denoising_task.num_examples, dtype=tf.int64)
  features = denoising_task.batch(index, tf.zeros_like(index), 0)
  out = {name: value.numpy() for name, value in features.items()}
  assert out["decoder_target_tokens"].shape[1] == targets_length
  bits = random.bits(random.row_keys(0, tf.zeros_like(index), index), window)
  masks = noise.noise_mask(bits, tokens_of_noise).numpy()
  for row in range(denoising_task.num_examples):
    raw = (np.arange(window) + row * window + corpora.FIRST).tolist()
    inputs = [t for t in out["encoder_input_tokens"][row].tolist() if t]
    targets = [t for t in out["decoder_target_tokens"][row].tolist() if t]
    assert inputs.pop() == targets.pop() == 1
    assert_style(style, raw, masks[row].tolist(), inputs, targets)


def assert_style(style, raw, mask, inputs, targets) -> None:
  """Assert that inputs and targets follow from a window and its noise."""
  span_inputs, span_targets, kept_tokens, noise_tokens = replace_and_drop(raw, mask, SIZE)
  if style == "replace_spans":
    assert inputs == span_inputs
    assert targets == span_targets
    return
  if style == "drop_tokens":
    assert inputs == kept_tokens
    assert targets == noise_tokens
    return
  assert targets == raw
  if style == "deshuffling":
    assert inputs != raw
    assert sorted(inputs) == raw
    return
  assert [token for token, is_noise in zip(inputs, mask) if not is_noise] == kept_tokens
  for token, is_noise in zip(inputs, mask):
    is_random = style == "bert_style" and 3 <= token < SIZE - corpora.SENTINELS
    assert not is_noise or token == SIZE - 1 or is_random


@pytest.mark.parametrize(
  "style, window_noise_and_targets",
  [
    ("bert_style", (511, 77, 512)),
    ("mass_style", (511, 77, 512)),
    ("replace_spans", (511, 77, 155)),
    ("drop_tokens", (601, 90, 91)),
    ("deshuffling", (511, 77, 512)),
  ],
)
def test_lengths_of_512_inputs_and_15_percent_noise(style, window_noise_and_targets):
  assert denoising.denoising_lengths(style, 512, 0.15) == window_noise_and_targets


@pytest.mark.parametrize("density", [0.01, 0.15, 0.5, 0.99])
def test_windows_are_as_long_as_inputs_and_targets_allow(density):
  for inputs_length in range(3, 200):
    window, noise_tokens, targets = denoising.denoising_lengths(
      "replace_spans", inputs_length, density
    )
    runs = min(noise_tokens, window - noise_tokens + 1)
    assert 0 < noise_tokens < window
    assert window - noise_tokens + runs + 1 <= inputs_length
    assert targets == noise_tokens + runs + 1
    window, noise_tokens, targets = denoising.denoising_lengths(
      "drop_tokens", inputs_length, density
    )
    assert 0 < noise_tokens < window
    assert window - noise_tokens + 1 == inputs_length
    assert targets == noise_tokens + 1


ROLLED = SpanCorruption(top_ids(SIZE, corpora.SENTINELS), inputs_length=30, random_roll=True)
FIXED = SpanCorruption(top_ids(SIZE, corpora.SENTINELS), inputs_length=29)


def test_rolled_window_needs_one_more_sentinel():
  """A span that wraps around the end of the window has a sentinel in each part."""
  assert ROLLED.window == FIXED.window == 31
  assert ROLLED.targets_length == FIXED.targets_length + 1 == 9


def test_rolled_noise_has_uniform_positions():
  n = 6_000
  mask = ROLLED.noise_mask(row_keys(n)).numpy()
  assert (mask.sum(axis=1) == ROLLED.noise_tokens).all()
  # Positions in a row depend on each other, so one span of each row is counted.
  is_begin = mask & ~np.roll(mask, 1, axis=1)
  begins = np.nonzero(is_begin)[1].reshape(n, ROLLED.noise_spans)
  counted_begins = begins[np.arange(n), np.arange(n) % ROLLED.noise_spans]
  assert_fits(np.bincount(counted_begins, minlength=31))
  for count in mask.sum(axis=0):
    assert_share(count, n, ROLLED.noise_tokens / 31)
  assert FIXED.noise_mask(row_keys(n)).numpy()[:, -1].all()


def test_rolled_noise_is_a_rotation_of_fixed_noise():
  patterns = set()
  for row_mask in np.unique(FIXED.noise_mask(row_keys(6_000)).numpy(), axis=0):
    patterns.update(np.roll(row_mask, shift).tobytes() for shift in range(31))
  for row_mask in ROLLED.noise_mask(row_keys(200)).numpy():
    assert row_mask.tobytes() in patterns


def test_rolled_noise_is_applied_as_by_a_plain_loop():
  n = 6_000
  mask = ROLLED.noise_mask(row_keys(n)).numpy()
  raw = np.random.default_rng(0).integers(3, 900, (n, 31), dtype=np.int32)
  out = ROLLED(tf.constant(raw), row_keys(n))
  both_ends = mask[:, 0] & mask[:, -1]
  assert both_ends.any()
  assert (out["targets"].numpy()[both_ends][:, -1] == 1).all()
  for row in [*range(100), *np.flatnonzero(both_ends)[:20]]:
    inputs, targets, _, _ = replace_and_drop(raw[row].tolist(), mask[row].tolist(), SIZE)
    assert_padded(out["inputs"][row], inputs)
    assert_padded(out["targets"][row], targets)


def build_span_corruption(root, **arguments):
  arguments = {"inputs_length": LENGTH} | arguments
  return task.build("span_corruption", "train", store=root, **arguments)


def test_prefix_precedes_the_inputs_of_a_shorter_window(root):
  index = tf.range(3, dtype=tf.int64)
  with_prefix = build_span_corruption(root, prefix="[NLU]").batch(index, index, 0)
  shorter = build_span_corruption(root, inputs_length=LENGTH - 5).batch(index, index, 0)
  inputs = with_prefix["encoder_input_tokens"].numpy()
  assert inputs.shape == (3, LENGTH)
  assert (inputs[:, :5] == ByteVocabulary().encode("[NLU]")).all()
  np.testing.assert_array_equal(inputs[:, 5:], shorter["encoder_input_tokens"])


@pytest.mark.parametrize(
  "arguments, words",
  [
    ({"style": "bert"}, ("task.style: found 'bert'",)),
    ({"noise_density": 1.0}, ("noise_density: found 1.0",)),
    ({"inputs_length": 2}, ("inputs_length: found 2", "at least 3")),
    ({"inputs_length": 9_000}, ("found 2000 tokens",)),
    (
      {"store": "builtin", "style": "replace_spans", "inputs_length": 1_000},
      ("999 tokens can have 150 runs of noise", "125 sentinels"),
    ),
  ],
)
def test_impossible_arguments_are_refused(root, arguments, words):
  defaults = {"store": root, "style": "drop_tokens"}
  with refuses(*words):
    task.build("denoising", "train", **defaults | arguments)
