"""Packing plans: what every plan must be, how full rows get, and rows laid out as SeqIO lays
them."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5x_like.data.supervised import bins, packing
from t5x_like.errors import UserError


@st.composite
def packings(draw):
  limits = tuple(draw(st.lists(st.integers(1, 40), min_size=1, max_size=2)))
  size = draw(st.integers(0, 60))
  columns = [
    draw(st.lists(st.integers(0, limit), min_size=size, max_size=size)) for limit in limits
  ]
  return (
    np.array(columns, np.int64).reshape(len(limits), size).T,
    limits,
    draw(st.integers(-3, 2**63)),
  )


@settings(max_examples=100)
@given(packings())
def test_every_example_once_and_no_row_too_long(case):
  lengths, limits, seed = case
  plan = packing.plan(lengths, limits, seed)
  assert sorted(plan.examples.tolist()) == list(range(len(lengths)))
  assert (
    plan.row_starts[0] == 0
    and plan.row_starts[-1] == len(lengths)
    and (np.diff(plan.row_starts) > 0).all()
  )
  for row in range(plan.num_rows):
    members = slice(*plan.row_starts[row : row + 2])
    held = lengths[plan.examples[members]]
    assert (held.sum(axis=0) <= limits).all()
    assert np.array_equal(plan.offsets[members], np.cumsum(held, axis=0) - held)
  again = packing.plan(lengths.copy(), limits, seed)
  assert np.array_equal(again.examples, plan.examples) and np.array_equal(
    again.row_starts, plan.row_starts
  )


def lognormal(mean, sigma, size=30_000, seed=0):
  return np.maximum(
    np.exp(np.random.default_rng(seed).normal(np.log(mean), sigma, size)).astype(int), 1
  )


SIDE = lognormal(15, 0.4)
CASES = {
  "sentences": (lognormal(20, 0.5)[:, None], (256,)),
  "paragraphs": (lognormal(150, 0.45)[:, None], (512,)),
  "uniform": (np.random.default_rng(1).integers(1, 513, (30_000, 1)), (512,)),
  "translation": (np.stack([SIDE, SIDE * lognormal(100, 0.2, seed=1) // 100], 1), (512, 512)),
  "translation, short rows": (
    np.stack([SIDE, SIDE * lognormal(103, 0.2, seed=1) // 100], 1),
    (128, 128),
  ),
  "translation, three a row": (
    np.stack([SIDE, SIDE * lognormal(103, 0.2, seed=1) // 100], 1)[:4000],
    (48, 48),
  ),
  "answers": (np.stack([lognormal(150, 0.4), lognormal(5, 0.5)], 1), (2048, 128)),
  "answers, both full": (np.stack([lognormal(180, 0.4), lognormal(5, 0.4)], 1)[:6000], (2048, 64)),
  # 35 labels a row, 2 tokens over
  "labels": (np.stack([lognormal(20, 0.5), np.full(30_000, 3)], 1), (512, 107)),
  "summaries": (np.stack([lognormal(260, 0.4), lognormal(30, 0.4)], 1)[:2000], (1024, 128)),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_are_full(name):
  """The stream that needs more rows is full; the other is as full as the ratio of their tokens lets
  it be."""
  lengths, limits = CASES[name]
  lengths = np.clip(lengths, 1, limits).astype(int)
  plan = packing.plan(lengths, limits)
  assert max(plan.utilisation[:-1]) > 0.99
  assert plan.num_rows <= 1.01 * max(lengths.sum(axis=0) / limits) + 1
  assert np.array_equal(np.sort(plan.examples), np.arange(len(lengths)))


def test_more_lengths_than_groups(monkeypatch):
  """Lengths are rounded up, and groups are dealt into several parts; no row gets too long by
  that."""
  monkeypatch.setattr(bins, "_MAX_PATTERN_GROUPS", 300)
  monkeypatch.setattr(bins, "_MAX_BEST_FIT_GROUPS", 100)
  monkeypatch.setattr(bins, "_GROUPS_TOGETHER", 64)
  lengths = np.random.default_rng(2).integers(1, 40, (6000, 2))
  assert len(np.unique(lengths, axis=0)) > 1000
  plan = packing.plan(lengths, (256, 256))
  assert (
    np.add.reduceat(lengths[plan.examples], plan.row_starts[:-1]) <= 256
  ).all() and plan.num_rows > 4 * 64
  assert np.array_equal(np.sort(plan.examples), np.arange(6000)) and min(plan.utilisation) > 0.9


@pytest.mark.parametrize(
  "lengths, rows",
  [
    ([[0, 0]] * 5, 1),  # nothing at all
    ([[0, 5]] * 7, 4),  # one stream empty
    ([[0, 0], [10, 10], [0, 0]], 1),
    ([[10, 1], [1, 10]], 2),
    ([[9, 1], [1, 9], [5, 5], [5, 5]], 2),
  ],
)
def test_small_plans(lengths, rows):
  assert packing.plan(np.array(lengths), (10, 10)).num_rows == rows


def test_cost_is_by_groups(monkeypatch):
  """Far fewer rows are composed than there are: each is repeated while its groups last."""
  composed = []
  compose = bins._compose
  monkeypatch.setattr(
    bins, "_compose", lambda *arguments: composed.append(1) or compose(*arguments)
  )
  n = np.arange(150_000)
  lengths = np.stack([8 + n % 29, 8 + n % 31], axis=1)
  plan = packing.plan(lengths, (256, 256))
  assert plan.num_rows > 10_000 and len(composed) < 4000 and max(plan.utilisation) > 0.998


def test_the_seed_decides_who_shares_a_row_and_nothing_else():
  lengths = lognormal(20, 0.5, 2000)[:, None].clip(max=64)
  one, two = (packing.plan(lengths, (64,), seed) for seed in (0, 1))
  assert one.num_rows == two.num_rows and not np.array_equal(one.examples, two.examples)


def test_frozen():
  """Runs resume into the same rows only while this stays as it is; another plan is another version
  of the tasks."""
  lengths = np.array([[5], [3], [3], [7], [2], [9], [1], [4]])
  plan = packing.plan(lengths, (10,), 3)
  assert plan.examples.tolist() == FROZEN[0] and plan.row_starts.tolist() == FROZEN[1]
  n = np.arange(2000)
  plan = packing.plan(np.stack([4 + n % 23, 4 + n % 19 + n % 5], axis=1), (128, 128), 3)
  assert (plan.num_rows, plan.examples[:8].tolist(), plan.row_starts[:4].tolist()) == FROZEN_PAIRS
  assert hashlib.sha256(plan.examples.astype("<i8").tobytes()).hexdigest()[:16] == FROZEN_DIGEST


FROZEN = ([2, 4, 0, 7, 5, 6, 1, 3], [0, 2, 4, 6, 8])
FROZEN_PAIRS = (235, [13, 422, 495, 792, 868, 1190, 1566, 1591], [0, 9, 17, 26])
FROZEN_DIGEST = "27be6aa58034109e"


@pytest.mark.parametrize(
  "lengths, limits, message",
  [
    (
      [[3], [11], [12]],
      (10,),
      r"example 1: found lengths \[11\], expected at most \[10\].*2 "
      r"examples are too long",
    ),
    ([[3]], (0,), "row lengths: found .0., expected at least 1"),
  ],
)
def test_what_no_row_holds_is_refused(lengths, limits, message):
  with pytest.raises(UserError, match=message):
    packing.plan(np.array(lengths), limits)


def test_rows_as_seqio_lays_them_out():
  inputs = [[7, 8, 5, 1], [8, 4, 9, 3, 1]]
  targets = [[3, 9, 1], [4, 1]]
  plan = packing.Plan(
    np.array([0, 1]), np.array([0, 2]), np.array([[0, 0], [4, 3]]), (9, 5), (10, 7)
  )
  place, row, number = plan.members(np.array([0]))
  laid = {}
  for side, examples, stream in (("encoder", inputs, 0), ("decoder", targets, 1)):
    lengths = np.array([len(example) for example in examples])
    valid = np.arange(lengths.max()) < lengths[:, None]
    tokens = np.zeros(valid.shape, np.int32)
    tokens[valid] = np.concatenate(examples)
    laid[side] = packing.scatter(
      tokens, valid, row, number, plan.offsets[place, stream], (1, plan.limits[stream])
    )
  digits = {side: ["".join(map(str, part[0])) for part in parts] for side, parts in laid.items()}
  assert digits == {
    "encoder": ["7851849310", "1111222220", "0123012340"],
    "decoder": ["3914100", "1112200", "0120100"],
  }
  assert packing.shift_segments(*laid["decoder"], 0).tolist() == [[0, 3, 9, 0, 4, 0, 0]]
