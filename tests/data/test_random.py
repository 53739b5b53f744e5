"""The order of an epoch is the permutation that docs/explanation/permutation.md defines."""

import functools
import math

import numpy as np
import pytest

import more
from t5x_like.data import random
from t5x_like.quiet_tensorflow import tf
from tools.benchmark import randomness

# With probability 1e-6, one of some 6,000 scores of a random order is larger. Seeds are fixed.
MAX_SCORE = 6.4
WORD = 2**64
LARGE = [10**6, 2**33 + 1, 976_562_500, 10**12, 2**62 - 1, 2**62]


def draw_order(size, count=None, *, epoch=0, seed=0):
  """Return the first `count` examples in the order of an epoch."""
  index = tf.range(size if count is None else count, dtype=tf.int64)
  return random.shuffle(index, tf.fill(tf.shape(index), np.int64(epoch)), seed, size).numpy()


# The definition in Python's integers, up to `example_at` and its inverse `index_of`.


def mix(word):
  word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % WORD
  word = (word ^ word >> 27) * 0x94D049BB133111EB % WORD
  return word ^ word >> 31


def random_word(key, number):
  return mix((key + number * random.GOLDEN_GAMMA) % WORD)


def permutation_key(seed, epoch, size):
  key = mix((seed + random.GOLDEN_GAMMA) % WORD)
  for word in (epoch % WORD, size):
    key = mix(((key ^ word) + random.GOLDEN_GAMMA) % WORD)
  return key


@functools.cache
def radices(size):
  """Return the two radices, of the smallest product that is at least `size`."""
  root = math.isqrt(size)
  root += root * root < size
  best = None
  for high in range(root, min(2 * root, root + 1024)):
    low = (size + high - 1) // high
    if best is None or high * low < best[0] * best[1]:
      best = high, low
  return best


def round_function(key, number, half, radix):
  return (random_word((key + random_word(0, number + 1)) % WORD, half) >> 32) * radix >> 32


def encrypt(value, key, high, low):
  high_half, low_half = divmod(value, low)
  for number in range(0, 8, 2):
    high_half = (high_half + round_function(key, number, low_half, high)) % high
    low_half = (low_half + round_function(key, number + 1, high_half, low)) % low
  return high_half * low + low_half


def decrypt(value, key, high, low):
  high_half, low_half = divmod(value, low)
  for number in range(6, -1, -2):
    low_half = (low_half - round_function(key, number + 1, high_half, low)) % low
    high_half = (high_half - round_function(key, number, low_half, high)) % high
  return high_half * low + low_half


def as_signed(word):
  return word - WORD if word >= WORD // 2 else word


def example_at(index, epoch, seed, size):
  key = permutation_key(seed, epoch, size)
  if size <= 256:
    return sorted(range(size), key=lambda place: (-as_signed(random_word(key, place + 1)), place))[
      index
    ]
  sides = radices(size)
  index = encrypt(index, key, *sides)
  while index >= size:
    index = encrypt(index, key, *sides)
  return index


def index_of(place, epoch, seed, size):
  """Return the index of an example in the order of an epoch, for sizes above 256."""
  key = permutation_key(seed, epoch, size)
  sides = radices(size)
  place = decrypt(place, key, *sides)
  while place >= size:
    place = decrypt(place, key, *sides)
  return place


@pytest.mark.parametrize("first", more.beyond(1, range(1, 2**12 + 1, 2**9)))
def test_small_sizes_are_permuted_as_defined(first):
  for size in range(first, first + 2**9):
    epoch = size % 5
    seed = size % 7
    actual = draw_order(size, epoch=epoch, seed=seed)
    assert (np.bincount(actual, minlength=size) == 1).all(), size
    if size % 64 == 0:
      places = tf.constant(actual)
      keys = random.row_keys(seed, tf.fill(size, np.int64(epoch)))
      assert random.permute(places, keys, size, inverse=True).numpy().tolist() == list(range(size))
    for index in {0, size // 3, size - 1}:
      assert actual[index] == example_at(index, epoch, seed, size), (size, index)


@pytest.mark.parametrize("size", more.beyond(1, LARGE[1:]))
def test_the_first_million_examples_are_distinct(size):
  actual = draw_order(size, 10**6, epoch=3)
  assert len(np.unique(actual)) == 10**6
  assert actual.min() >= 0
  assert actual.max() < size


@pytest.mark.parametrize("size", [257, 4097, 65537, *LARGE])
def test_shuffle_equals_the_definition_and_can_be_inverted(size):
  generator = np.random.default_rng(size % 2**32)
  index = generator.integers(0, size, 50)
  epoch = generator.integers(-(2**63), 2**63 - 1, 50)
  index[:2] = 0, size - 1
  for seed in (0, 2**64 - 1, -3):
    actual = random.shuffle(tf.constant(index), tf.constant(epoch), seed, size).numpy().tolist()
    expected = [example_at(*pair, seed, size) for pair in zip(index.tolist(), epoch.tolist())]
    assert actual == expected
    assert [index_of(*pair, seed, size) for pair in zip(actual, epoch.tolist())] == index.tolist()
    inverted = random.permute(
      tf.constant(actual), random.row_keys(seed, tf.constant(epoch)), size, inverse=True
    )
    assert inverted.numpy().tolist() == index.tolist()


def test_domain_of_the_network_is_little_larger_than_the_size():
  """A number beyond the size costs another pass: at most 2 % do, and far fewer in large corpora."""
  for size in randomness.sizes():
    if size > 256:
      high, low = random._radices(size)
      assert 0 <= high * low - size <= min(0.02 * size, high)
      assert size < 10**4 or (high * low - size) * 2_000 <= size
      assert low <= high < 3 * low


@pytest.mark.parametrize("size", [3, 87, 300, 1031, 10**9])
def test_an_example_depends_only_on_its_index_and_epoch(size):
  """Single rows, eager batches, functions of unknown length and tf.data give the same examples."""
  generator = np.random.default_rng(0)
  index = generator.integers(0, size, 40)
  epoch = generator.integers(0, 9, 40)
  expected = []
  for row in zip(index[:, None], epoch[:, None]):
    expected.append(random.shuffle(*map(tf.constant, row), 5, size).numpy()[0])
  places = random.shuffle(tf.constant(index), tf.constant(epoch), 5, size)
  assert places.numpy().tolist() == expected
  vector = tf.TensorSpec([None], tf.int64)
  function = tf.function(
    lambda index, epoch: random.shuffle(index, epoch, 5, size), input_signature=[vector, vector]
  )
  assert function(tf.constant(index), tf.constant(epoch)).numpy().tolist() == expected
  dataset = tf.data.Dataset.from_tensor_slices((index, epoch)).batch(16).map(function)
  assert np.concatenate(list(dataset.as_numpy_iterator())).tolist() == expected
  assert function(tf.zeros([0], tf.int64), tf.zeros([0], tf.int64)).shape == (0,)


@pytest.mark.parametrize("size", [10, 1000])
@pytest.mark.parametrize("outside", [-1, 0, 2**62])
def test_index_out_of_range_is_refused(size, outside):
  index = tf.constant([0, outside or size], tf.int64)

  def shuffle(index_B):
    return random.shuffle(index_B, tf.zeros([2], tf.int64), 1, size)

  for run in (
    shuffle,
    tf.function(shuffle),
    lambda index_B: list(tf.data.Dataset.from_tensors(index_B).map(shuffle)),
  ):
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"expected each in \[0, {size}\)"):
      run(index)


@pytest.mark.parametrize("size", [0, -1, 2**62 + 1])
def test_size_out_of_range_is_refused(size):
  with pytest.raises(ValueError, match=f"size: found {size}, expected 1 to 2"):
    random.shuffle(tf.constant([0], tf.int64), tf.constant([0], tf.int64), 1, size)


def test_orders_do_not_change_between_releases():
  """A resumed run reads the same examples only while these orders stay the same."""
  actual = {size: draw_order(size, min(size, 6), epoch=2, seed=42).tolist() for size in GOLDEN}
  assert actual == GOLDEN


GOLDEN = {
  1: [0],
  2: [1, 0],
  3: [0, 1, 2],
  7: [2, 5, 0, 1, 3, 6],
  10: [8, 1, 3, 4, 5, 2],
  255: [221, 111, 35, 189, 180, 243],
  256: [61, 177, 190, 85, 234, 185],
  257: [0, 100, 16, 48, 206, 239],
  1000: [321, 541, 735, 193, 743, 255],
  4096: [257, 1351, 1249, 1296, 556, 3132],
  65537: [21830, 31588, 55503, 39550, 47783, 28013],
  1000003: [331093, 928259, 435213, 2870, 315248, 265751],
  2147483648: [774894481, 1532659475, 1016310922, 362933378, 702785573, 1371902434],
  976562500: [235225471, 318633064, 399333149, 630932948, 711438052, 677558614],
  17000000000: [15306151800, 5260575295, 3818589803, 14844044751, 965740771, 4002196785],
  1000000000000: [
    989395401790,
    741245336509,
    714259408036,
    495611492599,
    404944634989,
    388911408785,
  ],
  1099511627777: [
    998129801517,
    421138517881,
    300420814672,
    924641882073,
    999847488985,
    504325148008,
  ],
  1125899906842624: [
    303193477964470,
    282493821190150,
    558529755166930,
    536371941000477,
    719257800172185,
    1032313433284628,
  ],
  4611686018427387903: [
    193770490056768332,
    4158212906256758225,
    3631879205482049341,
    604748018208692823,
    1167810231519010958,
    2389382612861011885,
  ],
  4611686018427387904: [
    524483972884781684,
    2880162984087803781,
    2109009983346828522,
    1502544753129928412,
    1367329846049918813,
    3676815281054950522,
  ],
}


@pytest.mark.parametrize(
  "size", [n if i % 2 else more.later(n) for i, n in enumerate(randomness.sizes())]
)
def test_orders_are_random(size):
  scores = randomness.study(random.permute, size, seed=0)
  large_scores = {}
  for name, score in scores.items():
    if np.abs(score).max() > MAX_SCORE:
      large_scores[name] = score.round(1).tolist()
  assert not large_scores


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_every_order_of_a_tiny_corpus_is_equally_likely(size):
  score = randomness.permutation_score(random.permute, size, seed=7, epochs=40_000)
  assert abs(score) < MAX_SCORE
  orders = random.permute(
    tf.tile(tf.range(size, dtype=tf.int64), [4096]),
    tf.repeat(randomness.keys_of_seeds(0, 4096), size),
    size,
  )
  if size < 6:
    _, counts = np.unique(orders.numpy().reshape(4096, size), axis=0, return_counts=True)
    cells = math.factorial(size)
    assert len(counts) == cells
    chi_square = ((counts - 4096 / cells) ** 2).sum() * cells / 4096
    assert abs(randomness._chi_square_score(chi_square, cells - 1)[0]) < MAX_SCORE


def find_failed_tests(permute, size) -> set[str]:
  """Return the names of the tests of randomness that an order fails."""
  scores = randomness.study(permute, size, 0)
  return {name for name, score in scores.items() if np.abs(score).max() > MAX_SCORE}


@pytest.mark.parametrize("size", [257, 1000])
def test_tests_of_randomness_detect_a_network_of_four_rounds(monkeypatch, size):
  monkeypatch.setattr(random, "_ROUND_CONSTANTS", random._ROUND_CONSTANTS[:4])
  assert "lags 1 to 64" in find_failed_tests(random.permute, size)


def random_start(key_B, size):
  return tf.cast(key_B % np.uint64(size), tf.int64)


# Orders that are not random, each with tests of randomness that it must fail.
BAD_ORDERS = {
  "one key for all": (
    lambda index_B, key_B, size: random.permute(index_B, tf.zeros_like(key_B), size),
    {"epochs", "neighbouring seeds", "first position over seeds", "last position over seeds"},
  ),
  "a random start": (
    lambda index_B, key_B, size: (index_B + random_start(key_B, size)) % size,
    {"lags 1 to 64", "runs", "batches over regions", "first two over seeds"},
  ),
  "a stride": (
    lambda index_B, key_B, size: (index_B * 3_847 + random_start(key_B, size)) % size,
    {"lags 1 to 64", "runs", "batches over regions", "first two over seeds"},
  ),
}


@pytest.mark.parametrize("name", BAD_ORDERS)
def test_tests_of_randomness_detect_bad_orders(name):
  permute, expected = BAD_ORDERS[name]
  assert find_failed_tests(permute, 10_007) >= expected


def test_unshuffled_order_fails_every_test_of_randomness():
  all_tests = set(randomness.study(random.permute, 10_007, 0))
  assert find_failed_tests(lambda index_B, key_B, size: index_B, 10_007) == all_tests
