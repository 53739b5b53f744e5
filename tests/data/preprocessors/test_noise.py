"""T5's other objectives: given noise, against a plain loop; drawn noise, by its counts and
distribution."""

import numpy as np
import pytest

import corpora
from chances import assert_fits, assert_share
from t5x_like.data import random, task
from t5x_like.data.preprocessors import noise
from t5x_like.data.preprocessors.span_corruption import SpanCorruption
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.tasks import denoising
from t5x_like.errors import UserError
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
  corpora.write(folder / "train", LENGTH * EXAMPLES, [33])
  return str(folder)


def keys(n, seed=0):
  return random.row_keys(seed, tf.range(n, dtype=tf.int64))


def plain(window, mask, size):
  """(inputs of replaced spans, their targets, the kept tokens, the noise), by a loop."""
  inputs = []
  targets = []
  runs = 0
  for i, (token, noisy) in enumerate(zip(window, mask)):
    if noisy and (i == 0 or not mask[i - 1]):
      runs += 1
      inputs.append(size - runs)
      targets.append(size - runs)
    (targets if noisy else inputs).append(token)
  return (
    inputs,
    targets,
    [t for t, n in zip(window, mask) if not n],
    [t for t, n in zip(window, mask) if n],
  )


def test_the_cross_check_of_the_t5_library():
  out = noise.replace_spans(
    TOKENS, NOISE, sentinels=range(999, 899, -1), inputs_length=5, targets_length=5, eos_id=None
  )
  assert out["inputs"].numpy().tolist() == [[999, 12, 13, 998, 15]]
  assert out["targets"].numpy().tolist() == [[999, 10, 11, 998, 14]]
  out = noise.drop_tokens(TOKENS, NOISE, inputs_length=3, targets_length=3, eos_id=None)
  assert out["inputs"].numpy().tolist() == [[12, 13, 15]] and out["targets"].numpy().tolist() == [
    [10, 11, 14]
  ]
  assert noise.replace_with_masks(TOKENS, NOISE, mask_id=50).numpy().tolist() == [
    [50, 50, 12, 13, 50, 15]
  ]


@pytest.mark.parametrize("density", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_any_noise_against_a_plain_loop(density):
  generator = np.random.default_rng(0)
  windows = generator.integers(3, 900, (60, 31))
  masks = generator.random((60, 31)) < density
  raw = tf.constant(windows, tf.int32)
  given = tf.constant(masks)
  spans = noise.replace_spans(
    raw, given, sentinels=range(999, 899, -1), inputs_length=40, targets_length=64
  )
  drops = noise.drop_tokens(raw, given, inputs_length=40, targets_length=64)
  for row in range(60):
    expected = plain(windows[row].tolist(), masks[row].tolist(), 1000)
    actual = [part[name][row].numpy() for part in (spans, drops) for name in ("inputs", "targets")]
    for ids, wanted in zip(actual, expected, strict=True):
      assert ids.tolist() == wanted + [1] + [0] * (len(ids) - len(wanted) - 1)
  empty = noise.replace_spans(
    raw[:0], given[:0], sentinels=range(999, 899, -1), inputs_length=40, targets_length=64
  )
  assert empty["inputs"].shape == (0, 40) and empty["targets"].shape == (0, 64)


def test_chosen_tokens_are_uniform_and_exact():
  n = 20_000
  length = 20
  k = 6
  mask = noise.noise_mask(random.bits(keys(n), length), k).numpy()
  assert (mask.sum(axis=1) == k).all()
  assert_fits(mask.sum(axis=0), drawn=k / length)
  # Pairs of tokens, near or far, are both noise equally often.
  first, second = np.triu_indices(length, 1)
  both = mask.astype(np.int64).T @ mask
  together = both[first, second]
  assert together.sum() == n * k * (k - 1) // 2
  for distance in (1, 2, 3, length // 2):
    near = together[second - first == distance]
    assert_share(near.sum(), n * len(near), k * (k - 1) / (length * (length - 1)))


def test_bert_style_noise_is_nine_masks_in_ten():
  n = 4_000
  length = 100
  bits = random.bits(keys(n), 2 * length)
  raw = tf.fill([n, length], 7)
  ordinary = tf.range(10, 60)
  mask = noise.noise_mask(bits[:, :length], 15)
  out = noise.replace_with_masks(
    raw, mask, mask_id=99, random_fraction=0.1, ordinary_ids=ordinary, bits_BW=bits[:, length:]
  ).numpy()
  mask = mask.numpy()
  assert (out[~mask] == 7).all() and (out != 7).sum() == 15 * n
  assert_share((out == 99).sum(), mask.sum(), 0.9)
  ids, counts = np.unique(out[mask & (out != 99)], return_counts=True)
  assert ids.tolist() == [*range(10, 60)]
  assert_fits(counts)


def test_shuffled_rows_are_permutations_and_uniform():
  n = 6_000
  out = noise.shuffle_tokens(tf.tile(tf.range(4)[None], [n, 1]), random.bits(keys(n), 4)).numpy()
  assert (np.sort(out, axis=1) == np.arange(4)).all()
  _, counts = np.unique(out, axis=0, return_counts=True)
  assert len(counts) == 24
  assert_fits(counts)


@pytest.mark.parametrize("style", STYLES)
def test_a_style_against_a_plain_loop(root, style):
  built = task.build("denoising", "train", store=root, style=style, inputs_length=LENGTH)
  window, tokens_of_noise, targets_length = denoising.denoising_lengths(style, LENGTH, 0.15)
  index = tf.range(built.num_examples, dtype=tf.int64)
  out = {name: value.numpy() for name, value in built.batch(index, tf.zeros_like(index), 0).items()}
  assert {name: (value.shape[1:], value.dtype.name) for name, value in out.items()} == {
    name: (feature.shape, feature.dtype) for name, feature in built.features.items()
  }
  assert out["decoder_target_tokens"].shape[1] == targets_length
  bits = random.bits(random.row_keys(0, tf.zeros_like(index), index), window)
  masks = noise.noise_mask(bits, tokens_of_noise).numpy()
  for row in range(built.num_examples):
    raw = (np.arange(window) + row * window + corpora.FIRST).tolist()
    inputs, targets = (
      [t for t in out[name][row].tolist() if t]
      for name in ("encoder_input_tokens", "decoder_target_tokens")
    )
    spans = plain(raw, masks[row].tolist(), SIZE)
    assert inputs.pop() == targets.pop() == 1
    if style == "replace_spans":
      assert (inputs, targets) == spans[:2]
    elif style == "drop_tokens":
      assert (inputs, targets) == spans[2:]
    else:
      assert targets == raw
      if style == "deshuffling":
        assert inputs != raw and sorted(inputs) == raw
      else:
        assert [t for t, noisy in zip(inputs, masks[row]) if not noisy] == spans[2]
        replaced = {t for t, noisy in zip(inputs, masks[row]) if noisy}
        assert all(
          t == SIZE - 1 or (style == "bert_style" and 3 <= t < SIZE - corpora.SENTINELS)
          for t in replaced
        )


def test_lengths_hold_the_worst_case_and_waste_nothing():
  assert [denoising.denoising_lengths(style, 512, 0.15) for style in STYLES] == [
    (511, 77, 512),
    (511, 77, 512),
    (511, 77, 155),
    (601, 90, 91),
    (511, 77, 512),
  ]
  for inputs_length in range(3, 200):
    for density in (0.01, 0.15, 0.5, 0.99):
      window, k, targets = denoising.denoising_lengths("replace_spans", inputs_length, density)
      runs = min(k, window - k + 1)
      assert 0 < k < window and window - k + runs + 1 <= inputs_length and targets == k + runs + 1
      window, k, targets = denoising.denoising_lengths("drop_tokens", inputs_length, density)
      assert 0 < k < window and window - k + 1 == inputs_length and targets == k + 1


def test_noise_may_lie_anywhere_when_rolled():
  n = 6_000
  rolled = SpanCorruption(top_ids(SIZE, corpora.SENTINELS), inputs_length=30, random_roll=True)
  fixed = SpanCorruption(top_ids(SIZE, corpora.SENTINELS), inputs_length=29)
  assert (
    (rolled.window, rolled.targets_length) == (fixed.window, fixed.targets_length + 1) == (31, 9)
  )
  mask = rolled.noise_mask(keys(n)).numpy()
  assert (mask.sum(axis=1) == rolled.noise_tokens).all()
  # Spans are chosen as one, so places are not independent; how far each is turned is: by where the
  # last gap ends.
  gap = np.array(
    [np.flatnonzero(np.diff(np.concatenate([row[-1:], row]).astype(int)) == 1) for row in mask]
  )
  assert gap.shape[1] == rolled.noise_spans
  assert_fits(np.bincount(gap[np.arange(n), np.arange(n) % rolled.noise_spans], minlength=31))
  for place in mask.sum(axis=0):
    assert_share(place, n, rolled.noise_tokens / 31)
  assert fixed.noise_mask(keys(n)).numpy()[:, -1].all()
  # Turned back, the noise is that of the fixed form.
  patterns = [
    {np.roll(row, shift).tobytes() for row in fixed.noise_mask(keys(n)).numpy()}
    for shift in range(31)
  ]
  assert all(row.tobytes() in set().union(*patterns) for row in mask[:200])
  raw = np.random.default_rng(0).integers(3, 900, (n, 31), dtype=np.int32)
  out = rolled(tf.constant(raw), keys(n))
  both_ends = mask[:, 0] & mask[:, -1]
  assert both_ends.any() and (out["targets"].numpy()[both_ends][:, -1] == 1).all()
  for row in [*range(100), *np.flatnonzero(both_ends)[:20]]:
    inputs, targets, _, _ = plain(raw[row].tolist(), mask[row].tolist(), SIZE)
    for name, wanted in (("inputs", inputs), ("targets", targets)):
      ids = out[name][row].numpy().tolist()
      assert ids == wanted + [1] + [0] * (len(ids) - len(wanted) - 1)


def test_a_prefix_and_the_fingerprint_of_options(root):
  def build(**arguments):
    return task.build("span_corruption", "train", store=root, inputs_length=LENGTH, **arguments)

  vocabulary = ByteVocabulary()
  with_prefix = build(prefix="[NLU]")
  index = tf.range(3, dtype=tf.int64)
  actual = with_prefix.batch(index, index, 0)["encoder_input_tokens"].numpy()
  assert actual.shape == (3, LENGTH) and (actual[:, :5] == vocabulary.encode("[NLU]")).all()
  plain_inputs = task.build("span_corruption", "train", store=root, inputs_length=LENGTH - 5).batch(
    index, index, 0
  )
  np.testing.assert_array_equal(actual[:, 5:], plain_inputs["encoder_input_tokens"])
  assert (
    len({build().fingerprint, with_prefix.fingerprint, build(random_roll=True).fingerprint}) == 3
  )
  assert build(random_roll=False, prefix="").fingerprint == build().fingerprint


@pytest.mark.parametrize(
  "arguments, message",
  [
    (dict(style="bert"), "task.style: found 'bert'"),
    (dict(style="bert_style", noise_density=1.0), "noise_density: found 1.0"),
    (dict(style="drop_tokens", inputs_length=2), "inputs_length: found 2, expected at least 3"),
    (dict(style="drop_tokens", inputs_length=9_000), "found 2000 tokens"),
  ],
)
def test_refusals(root, arguments, message):
  with pytest.raises(UserError, match=message):
    task.build("denoising", "train", store=root, **arguments)


def test_more_runs_than_sentinels_are_refused():
  with pytest.raises(
    UserError, match="999 tokens can have 150 runs of noise but the vocabulary has 125 sentinels"
  ):
    task.build("denoising", "train", store="builtin", style="replace_spans", inputs_length=1_000)
