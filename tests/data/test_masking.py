"""Masked language modelling: exact budgets, 80/10/10, words and spans against plain Python, uniform places."""

import math

import numpy as np
import pytest

from t5x_like.data import random
from t5x_like.data.preprocessors.masking import Masking, geometric, ordinary_ids
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.vocabularies import ByteVocabulary, special
from t5x_like.errors import UserError

VOCABULARY = ByteVocabulary(extra_ids=800)  # spaces, ids 35, begin words
MASK, CLS, SEP = (special(VOCABULARY, name) for name in ("mask", "cls", "sep"))
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
    end, cut = generator.integers(length // 2, length + 1), generator.integers(2, length // 2 - 1)
    tokens[row, [cut, end - 1]] = SEP
    tokens[row, end:] = 0
  return tokens


def masked(masking, tokens, seed=0):
  return {name: x.numpy() for name, x in masking(tf.constant(tokens), keys(len(tokens), seed)).items()}


@pytest.mark.parametrize("mode", ["tokens", "words", "spans"])
def test_what_is_chosen_is_ordinary_within_the_budget_and_can_be_restored(mode):
  tokens = rows(400, 128)
  out = masked(Masking(VOCABULARY, 128, mode), tokens)
  chosen, ordinary = out["weights"] > 0, ~np.isin(tokens, list(SPECIAL))
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


def test_eighty_ten_ten_within_two_tenths_of_a_percent():
  tokens = np.tile(np.arange(60, 186, dtype=np.int32), (40_000, 4))[:, :512]
  tokens = np.concatenate([np.full((len(tokens), 1), CLS, np.int32), tokens], axis=1)
  masking = Masking(VOCABULARY, tokens.shape[1])
  parts = [masked(masking, tokens[i:i + 5000], seed=i) for i in range(0, 40_000, 5000)]
  inputs, chosen = (np.concatenate([part[name] for part in parts]) for name in ("inputs", "weights"))
  chosen = chosen > 0
  assert (chosen.sum(axis=1) == round(0.15 * (tokens.shape[1] - 1))).all()
  total = chosen.sum()
  assert total > 2_500_000
  random_ones = (inputs != MASK) & (inputs != tokens) & chosen
  changed = len(ordinary_ids(VOCABULARY))
  assert (inputs == MASK).sum() / total == pytest.approx(0.8, abs=0.002)
  assert random_ones.sum() / total == pytest.approx(0.1 * (1 - 1 / changed), abs=0.002)
  # Places and replacements are uniform, by chi-square at five standard deviations.
  for counts in (chosen.sum(axis=0)[1:], np.bincount(inputs[random_ones], minlength=VOCABULARY.size)[3:259]):
    expected = counts.mean()
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert abs(statistic - len(counts)) < 5 * math.sqrt(2 * len(counts)) + 0.2 * len(counts)


def word_bounds(tokens):
  """(first, end) of every word of a row that is not special, and None for each special token."""
  ordinary, words = [t not in SPECIAL for t in tokens], []
  for place, token in enumerate(tokens):
    if not ordinary[place]:
      words.append(None)
    elif VOCABULARY.starts_word[token] or place == 0 or not ordinary[place - 1]:
      words.append([place, place + 1])
    else:
      words[-1][1] = place + 1
  return words


def test_whole_words_are_those_of_a_plain_loop():
  tokens, masking = rows(60, 96, seed=3), Masking(VOCABULARY, 96, "words", mask_share=1.0, random_share=0.0)
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
  tokens, masking = rows(60, 128, seed=5, word=3.0), Masking(VOCABULARY, 128, "spans", 0.15, 1.0, 0.0)
  out = masked(masking, tokens)
  tries = 4 * round(0.15 * 128) + 32
  where = random.bits(random.row_keys(3, keys(60)), tries).numpy()
  lengths = geometric(random.bits(random.row_keys(4, keys(60)), tries)).numpy()
  for row in range(60):
    words = word_bounds(tokens[row].tolist())
    left = max(1, round(0.15 * sum(w[1] - w[0] for w in words if w)))
    usable = 1 + max(i for i, w in enumerate(words) if w)
    starts, ends, placed = np.zeros(128, int), np.zeros(128, int), 0
    for t in range(tries):
      if not left:
        break
      first = int(where[row, t]) * usable >> 32
      span = []
      if words[first] is None:
        continue
      end = words[first][0]
      for word in words[first:first + lengths[row, placed]]:
        end = word[1] if word else end + 1
        if end - words[first][0] > left:
          break
        span.append(word)
      if not span or None in span:
        continue
      a, b = span[0][0], span[-1][1]
      if ends[a - 1:b + 1].any():
        continue
      starts[a:b], ends[a:b] = a - 1, b
      left, placed = left - (b - a), placed + 1
    assert (out["span_starts"][row] == starts).all() and (out["span_ends"][row] == ends).all()
    assert ((out["weights"][row] > 0) == (ends > 0)).all()


def test_spans_have_their_neighbours_and_one_fate():
  tokens = rows(300, 256, seed=7)
  out = masked(Masking(VOCABULARY, 256, "spans"), tokens)
  chosen = out["weights"] > 0
  row, place = np.nonzero(chosen)
  before, after = out["span_starts"][row, place], out["span_ends"][row, place]
  assert (before < place).all() and (place < after).all()
  assert not chosen[row, before].any() and not chosen[row, after].any()
  kinds = np.where(out["inputs"] == MASK, 0, np.where(out["inputs"] == tokens, 1, 2))[row, place]
  for span in np.unique(row * 1000 + before):
    mine = kinds[row * 1000 + before == span]
    assert len({0} & set(mine.tolist())) == 0 or (mine == 0).all()


def test_span_lengths_are_geometric():
  lengths = geometric(random.bits(keys(2000), 500)).numpy().ravel()
  share = 0.2 * 0.8 ** np.arange(10)
  expected = share / share.sum() * lengths.size
  counts = np.bincount(lengths, minlength=11)[1:]
  assert lengths.min() == 1 and lengths.max() == 10 and lengths.mean() == pytest.approx(3.797, abs=0.01)
  assert ((counts - expected) ** 2 / expected).sum() < 9 + 5 * math.sqrt(18)


@pytest.mark.parametrize("arguments", [{"rate": 0.0}, {"mask_share": 0.8, "random_share": 0.3}])
def test_impossible_shares_are_refused(arguments):
  with pytest.raises(UserError):
    Masking(VOCABULARY, 64, **arguments)
