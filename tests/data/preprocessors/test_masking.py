"""Masked language modelling: exact budgets, 80/10/10, words and spans against plain Python, uniform
places."""

import numpy as np
import pytest

from chances import assert_fits, assert_share, expected_spans
from t5x_like import recipes
from t5x_like.data import random
from t5x_like.data.preprocessors.masking import LENGTH_SHARES, Masking, draw_lengths, ordinary_ids
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.errors import UserError
from t5x_like.vocabularies import special_id
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary

VOCABULARY = ByteVocabulary(extra_ids=800)  # spaces, ids 35, begin words
MASK, CLS, SEP = (special_id(VOCABULARY, name) for name in ("mask", "cls", "sep"))
SPECIAL = VOCABULARY.special_ids


def keys(n, seed=0):
  return random.row_keys(seed, tf.range(n, dtype=tf.int64))


def rows(count, length, seed=0, word=5.0):
  """[CLS] text [SEP] text [SEP] padding, with words of about `word` bytes."""
  generator = np.random.default_rng(seed)
  tokens = generator.integers(60, 120, (count, length), dtype=np.int32)
  tokens[generator.random((count, length)) < 1 / word] = 35
  tokens[:, 0] = CLS
  for row in range(count):
    end = generator.integers(length // 2, length + 1)
    cut = generator.integers(2, length // 2 - 1)
    tokens[row, [cut, end - 1]] = SEP
    tokens[row, end:] = 0
  return tokens


def masked(masking, tokens, seed=0):
  return {
    name: x.numpy() for name, x in masking(tf.constant(tokens), keys(len(tokens), seed)).items()
  }


@pytest.mark.parametrize("mode", ["tokens", "words", "spans", "ngrams", "token_spans"])
def test_what_is_chosen_is_ordinary_within_the_budget_and_can_be_restored(mode):
  tokens = rows(400, 128)
  out = masked(Masking(VOCABULARY, 128, mode), tokens)
  chosen = out["weights"] > 0
  ordinary = ~np.isin(tokens, list(SPECIAL))
  assert not (chosen & ~ordinary).any()
  assert (out["targets"] == np.where(chosen, tokens, 0)).all()
  assert (out["inputs"] == tokens)[~chosen].all()
  budget = np.array([max(1, round(0.15 * n)) for n in ordinary.sum(axis=1).tolist()])
  if mode == "tokens":
    assert (chosen.sum(axis=1) == budget).all()
  else:
    assert (chosen.sum(axis=1) <= budget).all() and chosen.sum() > 0.9 * budget.sum()
  replaced = chosen & (out["inputs"] != MASK)
  assert not np.isin(out["inputs"][replaced], list(SPECIAL)).any()
  assert len({row.tobytes() for row in chosen}) > 390


@pytest.mark.parametrize(
  ("row", "shares"),
  {
    "mask_80_same_10_random_10": (80, 10, 10),
    "mask_100": (100, 0, 0),
    "mask_80_random_20": (80, 0, 20),
    "mask_80_same_20": (80, 20, 0),
    "same_20_random_80": (0, 20, 80),
    "random_100": (0, 0, 100),
  }.items(),
)
def test_each_row_of_berts_table_replaces_as_its_name_says(row, shares):
  """A random token is the same one in a few hundred."""
  given = recipes.load(f"configs/bert/masking.py:{row}").task
  tokens = rows(800, 128)
  out = masked(
    Masking(VOCABULARY, 128, "tokens", 0.15, given.mask_share, given.random_share), tokens
  )
  inputs, same = (x[out["weights"] > 0] for x in (out["inputs"], out["inputs"] == tokens))
  actual = 100 * np.array([(inputs == MASK).mean(), same.mean()])
  assert np.abs(actual - shares[:2]).max() < 1.5
  assert [bool(share) for share in actual] == [bool(shares[0]), bool(shares[1] or shares[2])]


def test_eighty_ten_ten_within_two_tenths_of_a_percent():
  parts = 8
  length = 513
  tokens = np.tile(np.arange(60, 187, dtype=np.int32), (2500, 5))[:, :length]
  tokens[:, 0] = CLS
  masking = Masking(VOCABULARY, length)
  places = np.zeros(length)
  replaced = np.zeros(VOCABULARY.size)
  fates = np.zeros(3, np.int64)
  for seed in range(parts):
    out = masked(masking, tokens, seed)
    chosen = out["weights"] > 0
    inputs = out["inputs"]
    assert (chosen.sum(axis=1) == round(0.15 * (length - 1))).all()
    changed = (inputs != MASK) & (inputs != tokens)
    assert not (changed & ~chosen).any()
    places += chosen.sum(axis=0)
    replaced += np.bincount(inputs[changed], minlength=VOCABULARY.size)
    fates += [(inputs == MASK).sum(), changed.sum(), (chosen & (inputs == tokens)).sum()]
  ordinary = ordinary_ids(VOCABULARY)
  total = fates.sum()
  own = 0.1 / len(ordinary)  # a random token may be the one that was there
  assert total > 1_500_000 and replaced.sum() == replaced[ordinary].sum()
  for found, share in zip(fates, (0.8, 0.1 - own, 0.1 + own), strict=True):
    assert found / total == pytest.approx(share, abs=0.002)
    assert_share(found, total, share)
  assert not places[0]
  assert_fits(places[1:], drawn=round(0.15 * (length - 1)) / (length - 1))
  # A token cannot be seen to be replaced by itself: once in len(ordinary) for each place it was
  # replaced at.
  from_text = np.bincount(tokens[0, 1:], minlength=VOCABULARY.size)[ordinary]
  assert_fits(replaced[ordinary], 1 - from_text / (length - 1))


@pytest.mark.parametrize("mode", ["tokens", "words", "spans"])
def test_neither_seed_nor_neighbours_move_what_is_chosen(mode):
  """Words of one token far from the ends: every place is as likely as any other."""
  tokens = np.full((4000, 130), 35, np.int32)
  tokens[:, 0], tokens[:, -1] = CLS, SEP
  masking = Masking(VOCABULARY, 130, mode)
  chosen = np.stack(
    [(masked(masking, tokens, seed)["weights"] > 0).sum(axis=0) for seed in range(4)]
  )
  assert not chosen[:, [0, -1]].any()
  # whose places go together; near the ends they are chosen less often, and not up to chance
  if mode == "spans":
    inner = chosen[:, 25:105].sum(axis=0)
    assert (abs(inner / inner.mean() - 1) < 0.1).all()
  else:
    for counts in (*chosen, chosen.sum(axis=0)):
      assert_fits(counts[1:-1], drawn=19 / 128)


def word_bounds(tokens):
  """(first, end) of every word of a row that is not special, and None for each special token."""
  ordinary = [t not in SPECIAL for t in tokens]
  words = []
  for place, token in enumerate(tokens):
    if not ordinary[place]:
      words.append(None)
    elif VOCABULARY.starts_word[token] or place == 0 or not ordinary[place - 1]:
      words.append([place, place + 1])
    else:
      words[-1][1] = place + 1
  return words


def test_whole_words_are_those_of_a_plain_loop():
  tokens = rows(60, 96, seed=3)
  masking = Masking(VOCABULARY, 96, "words", mask_share=1.0, random_share=0.0)
  chosen = masked(masking, tokens)["weights"] > 0
  scores = masking._scores(keys(60), tf.range(96)[None]).numpy()
  for row in range(60):
    words = word_bounds(tokens[row].tolist())
    left = max(1, round(0.15 * sum(w[1] - w[0] for w in words if w)))
    expected = np.zeros(96, bool)
    for number in sorted(range(len(words)), key=lambda w: -scores[row, w]):
      if words[number] and words[number][1] - words[number][0] <= left:
        left -= words[number][1] - words[number][0]
        expected[slice(*words[number])] = True
    assert (chosen[row] == expected).all()


def test_spans_are_those_of_a_plain_loop():
  tokens = rows(60, 128, seed=5, word=3.0)
  masking = Masking(VOCABULARY, 128, "spans", 0.15, 1.0, 0.0)
  out = masked(masking, tokens)
  tries = 4 * round(0.15 * 128) + 32
  where = random.bits(random.row_keys(3, keys(60)), tries).numpy()
  drawn = draw_lengths(
    random.bits(random.row_keys(4, keys(60)), tries), LENGTH_SHARES["spans"]
  ).numpy()
  for row in range(60):
    words = word_bounds(tokens[row].tolist())
    left = max(1, round(0.15 * sum(w[1] - w[0] for w in words if w)))
    usable = 1 + max(i for i, w in enumerate(words) if w)
    starts = np.zeros(128, int)
    ends = np.zeros(128, int)
    placed = 0
    for t in range(tries):
      if not left:
        break
      first = int(where[row, t]) * usable >> 32
      span = []
      if words[first] is None:
        continue
      end = words[first][0]
      for word in words[first : first + drawn[row, placed]]:
        end = word[1] if word else end
        if word is None or end - words[first][0] > left:
          break
        span.append(word)
      if not span:
        continue
      a = span[0][0]
      b = span[-1][1]
      if ends[a - 1 : b + 1].any():
        continue
      starts[a:b], ends[a:b] = a - 1, b
      left = left - (b - a)
      placed = placed + 1
    assert (out["span_starts"][row] == starts).all() and (out["span_ends"][row] == ends).all()
    assert ((out["weights"][row] > 0) == (ends > 0)).all()


def test_spans_have_their_neighbours_and_one_fate():
  tokens = rows(300, 256, seed=7)
  out = masked(Masking(VOCABULARY, 256, "spans"), tokens)
  chosen = out["weights"] > 0
  row, place = np.nonzero(chosen)
  before = out["span_starts"][row, place]
  after = out["span_ends"][row, place]
  assert (before < place).all() and (place < after).all()
  assert not chosen[row, before].any() and not chosen[row, after].any()
  kinds = np.where(out["inputs"] == MASK, 0, np.where(out["inputs"] == tokens, 1, 2))[row, place]
  for span in np.unique(row * 1000 + before):
    mine = kinds[row * 1000 + before == span]
    assert len({0} & set(mine.tolist())) == 0 or (mine == 0).all()


GEOMETRIC = 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10)


def test_lengths_are_geometric_or_shorter_the_more_often():
  drawn = draw_lengths(random.bits(keys(2000), 500), LENGTH_SHARES["spans"]).numpy().ravel()
  assert drawn.min() == 1 and drawn.max() == 10 and drawn.mean() == pytest.approx(3.797, abs=0.01)
  assert_fits(np.bincount(drawn, minlength=11)[1:], GEOMETRIC)
  drawn = draw_lengths(random.bits(keys(2000), 500), LENGTH_SHARES["ngrams"]).numpy().ravel()
  assert_fits(np.bincount(drawn, minlength=4)[1:], np.array([6, 3, 2]) / 11)


def test_ngrams_are_whole_words_that_may_touch_and_meet_fates_of_their_own():
  tokens = rows(300, 256, seed=7, word=3.0)
  out = masked(Masking(VOCABULARY, 256, "ngrams"), tokens)
  chosen = out["weights"] > 0
  runs = []
  apart = 0
  assert set(out) == {"inputs", "targets", "weights"}
  for row in range(300):
    words = [w for w in word_bounds(tokens[row].tolist()) if w]
    taken = [chosen[row, slice(*w)] for w in words]
    assert all(x.all() or not x.any() for x in taken)
    run = "".join(
      "x" if w and chosen[row, w[0]] else " " for w in word_bounds(tokens[row].tolist())
    ).split()
    runs += [len(x) for x in run]
    apart += sum(
      len(set((out["inputs"][row, slice(*w)] == MASK).tolist())) for w in words if chosen[row, w[0]]
    )
  assert max(runs) > 3 and 1.2 < np.mean(runs) < 2.5 and apart > len(runs)


def test_spans_of_tokens_begin_and_end_within_words():
  tokens = rows(300, 256, seed=7, word=3.0)
  chosen = masked(Masking(VOCABULARY, 256, "token_spans", 1 / 6), tokens)["weights"] > 0
  cut = sum(
    0 < chosen[row, slice(*w)].sum() < w[1] - w[0]
    for row in range(300)
    for w in word_bounds(tokens[row])
    if w
  )
  begins = (np.diff(np.pad(chosen, [[0, 0], [1, 0]]).astype(int), axis=1) == 1).sum()
  drawn = np.array([60, 30, 20, 15, 12]) / 137  # P(l) of 1 to 5; spans may touch
  assert cut > 0.5 * begins and np.arange(1, 6) @ drawn < chosen.sum() / begins < 3.2


def test_spans_in_a_row_have_the_lengths_drawn_and_may_lie_up_to_the_end_of_the_text():
  """Words of one token; the text ends with the row, or long before it."""
  length = 512
  fates = np.zeros(3)
  for end in (511, 300):
    tokens = np.full((2000, length), 35, np.int32)
    tokens[:, 0], tokens[:, end], tokens[:, end + 1 :] = CLS, SEP, 0
    out = masked(Masking(VOCABULARY, length, "spans"), tokens, seed=end)
    steps = np.diff(np.pad(out["weights"], [[0, 0], [1, 1]]), axis=1)
    row, begin = np.nonzero(steps == 1)
    lengths = np.nonzero(steps == -1)[1] - begin
    assert (
      np.add.reduceat(lengths, np.flatnonzero(np.diff(row, prepend=-1))) == round(0.15 * (end - 1))
    ).all()
    inner = begin + 10 < end  # only the budget cuts these
    share = expected_spans([0, *GEOMETRIC], round(0.15 * (end - 1)))[1:]
    assert_fits(np.bincount(lengths[inner], minlength=11)[1:], share)
    starts = np.bincount(begin, minlength=length)
    assert (
      starts[end - 5 : end].mean() > 0.9 * starts[20 : end - 20].mean() and not starts[end:].any()
    )
    inputs = out["inputs"][row, begin]
    fates += [
      (inputs == MASK).sum(),
      (inputs == 35).sum(),
      ((inputs != MASK) & (inputs != 35)).sum(),
    ]
  for fate, share in zip(fates, (0.8, 0.1 + 0.1 / 256, 0.1 - 0.1 / 256), strict=True):
    assert_share(fate, fates.sum(), share)


@pytest.mark.parametrize("arguments", [{"rate": 0.0}, {"mask_share": 0.8, "random_share": 0.3}])
def test_impossible_shares_are_refused(arguments):
  with pytest.raises(UserError):
    Masking(VOCABULARY, 64, **arguments)
