"""Masking selects an exact budget of tokens, words or spans and replaces them at given rates."""

import numpy as np
import pytest

from chances import assert_fits, assert_share, expected_spans
from t5x_like import recipes
from t5x_like.data import random
from t5x_like.data.preprocessors.masking import LENGTH_SHARES, Masking, draw_lengths, ordinary_ids
from t5x_like.errors import UserError
from t5x_like.quiet_tensorflow import tf
from t5x_like.vocabularies import special_id
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary

VOCABULARY = ByteVocabulary(extra_ids=800)
MASK = special_id(VOCABULARY, "mask")
CLS = special_id(VOCABULARY, "cls")
SEP = special_id(VOCABULARY, "sep")
SPACE = 35  # the id of a space, which begins a word
SPECIAL = VOCABULARY.special_ids


def row_keys(n, seed=0):
  return random.row_keys(seed, tf.range(n, dtype=tf.int64))


def make_rows(count, length, seed=0, word_length=5.0):
  """Return rows of `[CLS] text [SEP] text [SEP]` and padding.

  Args:
    word_length: the mean number of bytes of a word.
  """
  generator = np.random.default_rng(seed)
  tokens = generator.integers(60, 120, (count, length), dtype=np.int32)
  tokens[generator.random((count, length)) < 1 / word_length] = SPACE
  tokens[:, 0] = CLS
  for row in range(count):
    end = generator.integers(length // 2, length + 1)
    cut = generator.integers(2, length // 2 - 1)
    tokens[row, [cut, end - 1]] = SEP
    tokens[row, end:] = 0
  return tokens


def apply_masking(masking, tokens, seed=0):
  features = masking(tf.constant(tokens), row_keys(len(tokens), seed))
  return {name: x.numpy() for name, x in features.items()}


@pytest.mark.parametrize("mode", ["tokens", "words", "spans", "ngrams", "token_spans"])
def test_only_ordinary_tokens_are_chosen_within_the_budget(mode):
  tokens = make_rows(400, 128)
  out = apply_masking(Masking(VOCABULARY, 128, mode), tokens)
  chosen = out["weights"] > 0
  ordinary = ~np.isin(tokens, list(SPECIAL))
  assert not (chosen & ~ordinary).any()
  assert (out["targets"] == np.where(chosen, tokens, 0)).all()
  assert (out["inputs"] == tokens)[~chosen].all()
  budget = np.array([max(1, round(0.15 * n)) for n in ordinary.sum(axis=1).tolist()])
  if mode == "tokens":
    assert (chosen.sum(axis=1) == budget).all()
  else:
    assert (chosen.sum(axis=1) <= budget).all()
    assert chosen.sum() > 0.9 * budget.sum()
  replaced = chosen & (out["inputs"] != MASK)
  assert not np.isin(out["inputs"][replaced], list(SPECIAL)).any()
  assert len({row.tobytes() for row in chosen}) > 390


@pytest.mark.parametrize(
  "row, shares",
  [
    ("mask_80_same_10_random_10", (80, 10, 10)),
    ("mask_100", (100, 0, 0)),
    ("mask_80_random_20", (80, 0, 20)),
    ("mask_80_same_20", (80, 20, 0)),
    ("same_20_random_80", (0, 20, 80)),
    ("random_100", (0, 0, 100)),
  ],
)
def test_recipes_of_berts_table_have_its_rates_of_replacement(row, shares):
  """The shares are percentages of [MASK], the same token and a random token."""
  recipe = recipes.load(f"configs/bert/masking.py:{row}").task
  masking = Masking(VOCABULARY, 128, "tokens", 0.15, recipe.mask_share, recipe.random_share)
  tokens = make_rows(800, 128)
  out = apply_masking(masking, tokens)
  chosen = out["weights"] > 0
  mask_share, same_share, random_share = shares
  masked = 100 * (out["inputs"] == MASK)[chosen].mean()
  same = 100 * (out["inputs"] == tokens)[chosen].mean()
  assert masked == pytest.approx(mask_share, abs=1.5)
  assert same == pytest.approx(same_share, abs=1.5)
  assert (masked > 0) == (mask_share > 0)
  # A random token may equal the original, once in a few hundred.
  assert (same > 0) == (same_share + random_share > 0)


def test_replacement_rates_are_exact_to_two_tenths_of_a_percent():
  num_seeds = 8
  length = 513
  tokens = np.tile(np.arange(60, 187, dtype=np.int32), (2500, 5))[:, :length]
  tokens[:, 0] = CLS
  masking = Masking(VOCABULARY, length)
  counts_by_position = np.zeros(length)
  replaced = np.zeros(VOCABULARY.size)
  counts = np.zeros(3, np.int64)  # of [MASK], other and unchanged tokens
  for seed in range(num_seeds):
    out = apply_masking(masking, tokens, seed)
    chosen = out["weights"] > 0
    inputs = out["inputs"]
    assert (chosen.sum(axis=1) == round(0.15 * (length - 1))).all()
    changed = (inputs != MASK) & (inputs != tokens)
    assert not (changed & ~chosen).any()
    counts_by_position += chosen.sum(axis=0)
    replaced += np.bincount(inputs[changed], minlength=VOCABULARY.size)
    counts += [(inputs == MASK).sum(), changed.sum(), (chosen & (inputs == tokens)).sum()]
  ordinary = ordinary_ids(VOCABULARY)
  total = counts.sum()
  unchanged_share = 0.1 / len(ordinary)  # a random token may equal the original
  assert total > 1_500_000
  assert replaced.sum() == replaced[ordinary].sum()
  shares = (0.8, 0.1 - unchanged_share, 0.1 + unchanged_share)
  for count, share in zip(counts, shares, strict=True):
    assert count / total == pytest.approx(share, abs=0.002)
    assert_share(count, total, share)
  assert not counts_by_position[0]
  assert_fits(counts_by_position[1:], drawn=round(0.15 * (length - 1)) / (length - 1))
  # `replaced` misses random tokens that equal the original, once in len(ordinary).
  from_text = np.bincount(tokens[0, 1:], minlength=VOCABULARY.size)[ordinary]
  assert_fits(replaced[ordinary], 1 - from_text / (length - 1))


@pytest.mark.parametrize("mode", ["words", "spans"])
def test_words_of_one_token_are_chosen_uniformly(mode):
  tokens = np.full((4000, 130), SPACE, np.int32)
  tokens[:, 0] = CLS
  tokens[:, -1] = SEP
  masking = Masking(VOCABULARY, 130, mode)
  counts_by_seed = []
  for seed in range(4):
    counts_by_seed.append((apply_masking(masking, tokens, seed)["weights"] > 0).sum(axis=0))
  counts = np.sum(counts_by_seed, axis=0)
  assert not counts[[0, -1]].any()
  if mode == "words":
    for counts_of_positions in (*counts_by_seed, counts):
      assert_fits(counts_of_positions[1:-1], drawn=19 / 128)
    return
  # Positions of a span are not independent, and those near the ends are chosen less often.
  inner = counts[25:105]
  assert (abs(inner / inner.mean() - 1) < 0.1).all()


def word_bounds(tokens):
  """Return [begin, end) of every word of a row, with None for each special token."""
  ordinary = [t not in SPECIAL for t in tokens]
  words = []
  for position, token in enumerate(tokens):
    if not ordinary[position]:
      words.append(None)
    elif VOCABULARY.starts_word[token] or position == 0 or not ordinary[position - 1]:
      words.append([position, position + 1])
    else:
      words[-1][1] = position + 1
  return words


def word_budget(words) -> int:
  """Return the number of tokens of these words that may be chosen."""
  return max(1, round(0.15 * sum(bounds[1] - bounds[0] for bounds in words if bounds)))


def test_chosen_words_equal_a_plain_loop():
  tokens = make_rows(60, 96, seed=3)
  masking = Masking(VOCABULARY, 96, "words", mask_share=1.0, random_share=0.0)
  chosen = apply_masking(masking, tokens)["weights"] > 0
  scores = masking._scores(row_keys(60), tf.range(96)[None]).numpy()
  for row in range(60):
    words = word_bounds(tokens[row].tolist())
    budget = word_budget(words)
    expected = np.zeros(96, bool)
    for number in sorted(range(len(words)), key=lambda n: -scores[row, n]):
      if words[number] is None:
        continue
      begin, end = words[number]
      if end - begin <= budget:
        budget -= end - begin
        expected[begin:end] = True
    assert (chosen[row] == expected).all()


def test_spans_equal_a_plain_loop():
  tokens = make_rows(60, 128, seed=5, word_length=3.0)
  masking = Masking(VOCABULARY, 128, "spans", 0.15, 1.0, 0.0)
  out = apply_masking(masking, tokens)
  tries = 4 * round(0.15 * 128) + 32
  drawn_positions = random.bits(random.row_keys(3, row_keys(60)), tries).numpy()
  drawn_lengths = draw_lengths(
    random.bits(random.row_keys(4, row_keys(60)), tries), LENGTH_SHARES["spans"]
  ).numpy()
  for row in range(60):
    words = word_bounds(tokens[row].tolist())
    budget = word_budget(words)
    usable = 1 + max(i for i, bounds in enumerate(words) if bounds)
    starts = np.zeros(128, int)
    ends = np.zeros(128, int)
    placed = 0
    for t in range(tries):
      if not budget:
        break
      first = int(drawn_positions[row, t]) * usable >> 32
      span = []
      if words[first] is None:
        continue
      end = words[first][0]
      for bounds in words[first : first + drawn_lengths[row, placed]]:
        end = bounds[1] if bounds else end
        if bounds is None or end - words[first][0] > budget:
          break
        span.append(bounds)
      if not span:
        continue
      span_begin = span[0][0]
      span_end = span[-1][1]
      if ends[span_begin - 1 : span_end + 1].any():
        continue
      starts[span_begin:span_end] = span_begin - 1
      ends[span_begin:span_end] = span_end
      budget -= span_end - span_begin
      placed += 1
    assert (out["span_starts"][row] == starts).all()
    assert (out["span_ends"][row] == ends).all()
    assert ((out["weights"][row] > 0) == (ends > 0)).all()


def test_tokens_of_a_span_are_all_masked_or_all_not():
  out = apply_masking(Masking(VOCABULARY, 256, "spans"), make_rows(300, 256, seed=7))
  row, position = np.nonzero(out["weights"])
  is_mask = (out["inputs"] == MASK)[row, position]
  span_id = row * 1000 + out["span_starts"][row, position]  # rows are shorter than 1,000
  _, span = np.unique(span_id, return_inverse=True)
  masked_tokens = np.bincount(span, weights=is_mask)
  assert ((masked_tokens == 0) | (masked_tokens == np.bincount(span))).all()


# The probabilities of SpanBERT's lengths of 1 to 10 words.
GEOMETRIC = 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10)


def draw_span_lengths(kind: str) -> np.ndarray:
  return draw_lengths(random.bits(row_keys(2000), 500), LENGTH_SHARES[kind]).numpy().ravel()


def test_span_lengths_are_geometric():
  lengths = draw_span_lengths("spans")
  assert lengths.mean() == pytest.approx(3.797, abs=0.01)
  assert_fits(np.bincount(lengths, minlength=11)[1:], GEOMETRIC)


def test_ngram_probabilities_are_inversely_proportional_to_length():
  assert_fits(np.bincount(draw_span_lengths("ngrams"), minlength=4)[1:], np.array([6, 3, 2]) / 11)


def test_ngrams_are_whole_words_whose_tokens_are_replaced_separately():
  tokens = make_rows(300, 256, seed=7, word_length=3.0)
  out = apply_masking(Masking(VOCABULARY, 256, "ngrams"), tokens)
  assert set(out) == {"inputs", "targets", "weights"}
  chosen = out["weights"] > 0
  run_lengths = []  # of consecutive chosen words
  partly_masked_words = 0
  for row in range(300):
    run_length = 0
    for bounds in [*word_bounds(tokens[row].tolist()), None]:
      is_chosen = bounds is not None and chosen[row, bounds[0]]
      if is_chosen:
        run_length += 1
        assert chosen[row, slice(*bounds)].all()
        is_mask = out["inputs"][row, slice(*bounds)] == MASK
        partly_masked_words += is_mask.any() and not is_mask.all()
        continue
      if bounds is not None:
        assert not chosen[row, slice(*bounds)].any()
      if run_length:
        run_lengths.append(run_length)
      run_length = 0
  assert max(run_lengths) > 3
  assert 1.2 < np.mean(run_lengths) < 2.5
  assert partly_masked_words > 0


def test_token_spans_may_begin_and_end_within_words():
  tokens = make_rows(300, 256, seed=7, word_length=3.0)
  chosen = apply_masking(Masking(VOCABULARY, 256, "token_spans", 1 / 6), tokens)["weights"] > 0
  partly_chosen_words = 0
  for row in range(300):
    for bounds in filter(None, word_bounds(tokens[row])):
      chosen_of_word = chosen[row, slice(*bounds)]
      partly_chosen_words += chosen_of_word.any() and not chosen_of_word.all()
  spans = (np.diff(np.pad(chosen, [[0, 0], [1, 0]]).astype(int), axis=1) == 1).sum()
  assert partly_chosen_words > 0.5 * spans
  length_chances = np.array([60, 30, 20, 15, 12]) / 137  # of 1 to 5 tokens
  # Adjacent spans count as one here, so the mean is above the mean of the lengths drawn.
  assert np.arange(1, 6) @ length_chances < chosen.sum() / spans < 3.2


def test_spans_have_geometric_lengths_and_reach_the_end_of_the_text():
  """Words have one token here; the text ends at the end of the row, or long before it."""
  length = 512
  counts = np.zeros(3)  # of [MASK], unchanged and other tokens
  for end in (511, 300):
    tokens = np.full((2000, length), SPACE, np.int32)
    tokens[:, 0] = CLS
    tokens[:, end] = SEP
    tokens[:, end + 1 :] = 0
    budget = round(0.15 * (end - 1))
    out = apply_masking(Masking(VOCABULARY, length, "spans"), tokens, seed=end)
    steps = np.diff(np.pad(out["weights"], [[0, 0], [1, 1]]), axis=1)
    row, begin = np.nonzero(steps == 1)
    lengths = np.nonzero(steps == -1)[1] - begin
    assert (np.bincount(row, weights=lengths) == budget).all()
    inner = begin + 10 < end  # spans that the end of the text cannot cut
    expected = expected_spans([0, *GEOMETRIC], budget)[1:]
    assert_fits(np.bincount(lengths[inner], minlength=11)[1:], expected)
    starts = np.bincount(begin, minlength=length)
    assert starts[end - 5 : end].mean() > 0.9 * starts[20 : end - 20].mean()
    assert not starts[end:].any()
    inputs = out["inputs"][row, begin]
    is_mask = inputs == MASK
    is_same = inputs == SPACE
    counts += [is_mask.sum(), is_same.sum(), (~is_mask & ~is_same).sum()]
  # A random token equals the original once in 256.
  shares = (0.8, 0.1 + 0.1 / 256, 0.1 - 0.1 / 256)
  for count, share in zip(counts, shares, strict=True):
    assert_share(count, counts.sum(), share)


@pytest.mark.parametrize("arguments", [{"rate": 0.0}, {"mask_share": 0.8, "random_share": 0.3}])
def test_impossible_shares_are_refused(arguments):
  with pytest.raises(UserError):
    Masking(VOCABULARY, 64, **arguments)
