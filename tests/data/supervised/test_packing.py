"""Packing plans use every example once and fill rows up to their limits."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refusals import refuses
from t5x_like.data.supervised import bins, packing


@st.composite
def packings(draw):
  """Draw lengths of examples in one or two streams, the limits of a row, and a seed."""
  limits = tuple(draw(st.lists(st.integers(1, 40), min_size=1, max_size=2)))
  size = draw(st.integers(0, 60))
  columns = []
  for limit in limits:
    columns.append(draw(st.lists(st.integers(0, limit), min_size=size, max_size=size)))
  lengths = np.array(columns, np.int64).reshape(len(limits), size).T
  seed = draw(st.integers(-3, 2**63))
  return lengths, limits, seed


@settings(max_examples=100)
@given(packings())
def test_plan_uses_every_example_once_and_no_row_is_too_long(case):
  lengths, limits, seed = case
  plan = packing.plan(lengths, limits, seed)
  assert sorted(plan.examples.tolist()) == list(range(len(lengths)))
  assert plan.row_starts[0] == 0
  assert plan.row_starts[-1] == len(lengths)
  assert (np.diff(plan.row_starts) > 0).all()
  for row in range(plan.num_rows):
    members = slice(*plan.row_starts[row : row + 2])
    row_lengths = lengths[plan.examples[members]]
    assert (row_lengths.sum(axis=0) <= limits).all()
    expected_offsets = np.cumsum(row_lengths, axis=0) - row_lengths
    np.testing.assert_array_equal(plan.offsets[members], expected_offsets)
  same_plan = packing.plan(lengths.copy(), limits, seed)
  np.testing.assert_array_equal(same_plan.examples, plan.examples)
  np.testing.assert_array_equal(same_plan.row_starts, plan.row_starts)


def draw_lognormal(median, sigma, size=30_000, seed=0):
  """Draw log-normal lengths of at least 1 with about this median."""
  logs = np.random.default_rng(seed).normal(np.log(median), sigma, size)
  return np.maximum(np.exp(logs).astype(int), 1)


SOURCE_LENGTHS = draw_lognormal(15, 0.4)


def pair_with_targets(percent: int) -> np.ndarray:
  """Return the lengths of sources, and of targets of about `percent` percent of these lengths."""
  return np.stack([SOURCE_LENGTHS, SOURCE_LENGTHS * draw_lognormal(percent, 0.2, seed=1) // 100], 1)


# name: (the lengths of examples in each stream, the limits of a row)
CASES = {
  "sentences": (draw_lognormal(20, 0.5)[:, None], (256,)),
  "paragraphs": (draw_lognormal(150, 0.45)[:, None], (512,)),
  "uniform": (np.random.default_rng(1).integers(1, 513, (30_000, 1)), (512,)),
  "translation": (pair_with_targets(100), (512, 512)),
  "translation, short rows": (pair_with_targets(103), (128, 128)),
  "translation, three per row": (pair_with_targets(103)[:4000], (48, 48)),
  "answers": (np.stack([draw_lognormal(150, 0.4), draw_lognormal(5, 0.5)], 1), (2048, 128)),
  "answers, both full": (
    np.stack([draw_lognormal(180, 0.4), draw_lognormal(5, 0.4)], 1)[:6000],
    (2048, 64),
  ),
  # 35 labels of 3 tokens fill 105 of 107 tokens of a row.
  "labels": (np.stack([draw_lognormal(20, 0.5), np.full(30_000, 3)], 1), (512, 107)),
  "summaries": (
    np.stack([draw_lognormal(260, 0.4), draw_lognormal(30, 0.4)], 1)[:2000],
    (1024, 128),
  ),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_are_full_of_the_longer_stream(name):
  lengths, limits = CASES[name]
  lengths = np.clip(lengths, 1, limits).astype(int)
  plan = packing.plan(lengths, limits)
  assert max(plan.utilisation[:-1]) > 0.99
  # at most 1 % more rows than the longer stream fills
  assert plan.num_rows <= 1.01 * max(lengths.sum(axis=0) / limits) + 1
  assert np.array_equal(np.sort(plan.examples), np.arange(len(lengths)))


def test_many_distinct_lengths_still_fill_rows_within_the_limits(monkeypatch):
  """Above the limits set here, lengths are rounded up, and groups of equal lengths are split."""
  monkeypatch.setattr(bins, "_MAX_PATTERN_GROUPS", 300)
  monkeypatch.setattr(bins, "_MAX_BEST_FIT_GROUPS", 100)
  monkeypatch.setattr(bins, "_GROUPS_TOGETHER", 64)
  lengths = np.random.default_rng(2).integers(1, 40, (6000, 2))
  assert len(np.unique(lengths, axis=0)) > 1000
  plan = packing.plan(lengths, (256, 256))
  row_lengths = np.add.reduceat(lengths[plan.examples], plan.row_starts[:-1])
  assert (row_lengths <= 256).all()
  assert plan.num_rows > 4 * 64  # enough for four parts of 64 groups
  np.testing.assert_array_equal(np.sort(plan.examples), np.arange(6000))
  assert min(plan.utilisation) > 0.9


@pytest.mark.parametrize(
  "lengths, rows",
  [
    ([[0, 0]] * 5, 1),  # both streams empty
    ([[0, 5]] * 7, 4),  # one stream empty
    ([[0, 0], [10, 10], [0, 0]], 1),
    ([[10, 1], [1, 10]], 2),
    ([[9, 1], [1, 9], [5, 5], [5, 5]], 2),
  ],
)
def test_small_plans_have_the_fewest_rows(lengths, rows):
  assert packing.plan(np.array(lengths), (10, 10)).num_rows == rows


def test_rows_repeat_a_composition_while_its_groups_last(monkeypatch):
  compose = bins._compose
  calls = []

  def count_and_compose(*arguments):
    calls.append(1)
    return compose(*arguments)

  monkeypatch.setattr(bins, "_compose", count_and_compose)
  n = np.arange(150_000)
  lengths = np.stack([8 + n % 29, 8 + n % 31], axis=1)
  plan = packing.plan(lengths, (256, 256))
  assert plan.num_rows > 10_000
  assert len(calls) < 4000
  assert max(plan.utilisation) > 0.998


def test_seed_changes_only_which_examples_share_a_row():
  lengths = draw_lognormal(20, 0.5, 2000)[:, None].clip(max=64)
  first_plan = packing.plan(lengths, (64,), seed=0)
  second_plan = packing.plan(lengths, (64,), seed=1)
  assert first_plan.num_rows == second_plan.num_rows
  assert not np.array_equal(first_plan.examples, second_plan.examples)


def test_plans_do_not_change_between_releases():
  """A resumed run reads the same rows only while these plans stay the same."""
  lengths = np.array([[5], [3], [3], [7], [2], [9], [1], [4]])
  plan = packing.plan(lengths, (10,), 3)
  assert plan.examples.tolist() == [2, 4, 0, 7, 5, 6, 1, 3]
  assert plan.row_starts.tolist() == [0, 2, 4, 6, 8]


def test_plans_of_pairs_do_not_change_between_releases():
  """See `test_plans_do_not_change_between_releases`."""
  n = np.arange(2000)
  plan = packing.plan(np.stack([4 + n % 23, 4 + n % 19 + n % 5], axis=1), (128, 128), 3)
  assert plan.num_rows == 235
  assert plan.row_starts[:4].tolist() == [0, 9, 17, 26]
  assert plan.examples[:8].tolist() == [13, 422, 495, 792, 868, 1190, 1566, 1591]
  digest = hashlib.sha256(plan.examples.astype("<i8").tobytes()).hexdigest()
  assert digest[:16] == "27be6aa58034109e"


@pytest.mark.parametrize(
  "lengths, limits, words",
  [
    (
      [[3], [11], [12]],
      (10,),
      ("example 1: found lengths [11], expected at most [10]", "2 examples are too long"),
    ),
    ([[3]], (0,), ("row lengths: found ", "expected at least 1")),
  ],
)
def test_too_long_examples_and_empty_rows_are_refused(lengths, limits, words):
  with refuses(*words):
    packing.plan(np.array(lengths), limits)
