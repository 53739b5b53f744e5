"""Packing: several short examples in one row, by a plan made from their lengths before anything is read.

A plan says which examples each row holds. It is a pure function of (lengths, limits, seed), so a row of it is an index
like any other: rows are shuffled anew in every epoch, opened at any step and cut over hosts as unpacked examples are,
and every epoch has every example once. An example has one length per stream (the inputs and the targets of an
encoder-decoder, or one sequence) and a row a limit for each.

Examples of one stream are packed by best-fit decreasing: the longest first, each into the row it leaves least room in.
It is done for all examples of one length at once, among all rows of one room at once, so its cost hardly depends on how
many there are. Where two streams both fill a row, that leaves rows full in one of them only, so dealing is tried
too and the plan of fewer rows is taken: the examples, longest first, go in rounds to one row each, the longest to the
emptiest, and among examples and rows of about one size those long in the first stream to the rows with room in it;
what does not fit goes by best fit, one example a row, into what is left, then into new rows.

Worked example (`scatter`, and `shifted` for the inputs of the decoder), two examples of inputs [7,8,5,1], [8,4,9,3,1]
and targets [3,9,1], [4,1]:

    encoder_input_tokens  7 8 5 1 8 4 9 3 1 0    decoder_target_tokens  3 9 1 4 1 0 0
    encoder_segment_ids   1 1 1 1 2 2 2 2 2 0    decoder_segment_ids    1 1 1 2 2 0 0
    encoder_positions     0 1 2 3 0 1 2 3 4 0    decoder_positions      0 1 2 0 1 0 0
                                                 decoder_input_tokens   0 3 9 0 4 0 0
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from t5x_like.errors import UserError

_KINDS = 4096  # different lengths best fit tells apart; more are rounded up, which costs a little room
_GROUP = 64  # examples and rows of about one size that are matched by the difference of their streams
_ROUNDS = 16  # of filling up; the last place few


@dataclasses.dataclass(frozen=True)
class Plan:
  """Which examples each row holds.

  Attributes:
    examples: int64 [N], the numbers of the examples, row after row.
    row_starts: int64 [R + 1], where each row begins among them.
    offsets: int64 [N, D], where each of them begins within its row, in each stream.
    tokens, limits: positions used of each stream, in all, and the length of a row.
  """

  examples: np.ndarray
  row_starts: np.ndarray
  offsets: np.ndarray
  tokens: tuple[int, ...]
  limits: tuple[int, ...]

  @property
  def num_rows(self) -> int:
    return self.row_starts.size - 1

  @functools.cached_property
  def utilisation(self) -> tuple[float, ...]:
    """The fraction of positions that hold a token, in each stream and (last) in all."""
    parts = [*zip(self.tokens, self.limits), (sum(self.tokens), sum(self.limits))]
    return tuple(used / max(self.num_rows * limit, 1) for used, limit in parts)

  def members(self, row_B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The examples of some rows: (place in `examples`, place in `row_B`, number within its row), each int64 [n]."""
    row_B = np.asarray(row_B, np.int64)
    count_B = self.row_starts[row_B + 1] - self.row_starts[row_B]
    which_n = np.repeat(np.arange(row_B.size), count_B)
    number_n = np.arange(which_n.size) - np.repeat(np.cumsum(count_B) - count_B, count_B)
    return self.row_starts[row_B][which_n] + number_n, which_n, number_n


def alone(lengths_ND: np.ndarray, limits: Sequence[int]) -> Plan:
  """The plan of a task that does not pack: row i is example i."""
  N, D = lengths_ND.shape
  return Plan(np.arange(N), np.arange(N + 1), np.zeros((N, D), np.int64), _sums(lengths_ND), tuple(limits))


def plan(lengths_ND: np.ndarray, limits: Sequence[int], seed: int = 0) -> Plan:
  """Packs examples.

  Args:
    lengths_ND: integers [N, D], the tokens of each example in each of one or two streams.
    limits: the length of a row in each stream.
    seed: decides among equals, and the order of the rows.

  Returns:
    A plan with every example exactly once, none of its rows longer than the limits.

  Raises:
    UserError: an example is longer than a row; a limit is below 1.
  """
  lengths_ND = np.ascontiguousarray(lengths_ND, np.int64)
  limits_D = np.asarray(limits, np.int64)
  if limits_D.min(initial=1) < 1:
    raise UserError(f"row lengths: found {list(limits)}, expected at least 1")
  if (over := (lengths_ND > limits_D).any(axis=1)).any():
    raise UserError(f"example {np.flatnonzero(over)[0]}: found lengths {lengths_ND[over][0].tolist()}, expected at "
                    f"most {limits_D.tolist()}, the length of a row; {over.sum()} examples are too long")
  row_N = _best_fit(lengths_ND, limits_D, seed)
  if limits_D.size > 1:
    row_N = min(row_N, _deal(lengths_ND, limits_D, seed), key=lambda row_N: row_N.max(initial=0))
  _, row_N = np.unique(row_N, return_inverse=True)
  rows = int(row_N.max(initial=-1)) + 1
  row_N = np.argsort(np.argsort(_random(seed + 1, np.arange(rows)), kind="stable"))[row_N]
  examples = np.argsort(row_N, kind="stable")
  row_starts = np.concatenate([[0], np.cumsum(np.bincount(row_N, minlength=rows))])
  before_ND = np.cumsum(lengths_ND[examples], axis=0) - lengths_ND[examples]
  offsets = before_ND - before_ND[row_starts[:-1]][row_N[examples]] if rows else before_ND
  return Plan(examples, row_starts, offsets, _sums(lengths_ND), tuple(limits_D.tolist()))


def _sums(lengths_ND: np.ndarray) -> tuple[int, ...]:
  return tuple(lengths_ND.sum(axis=0, dtype=np.int64).tolist())


def _random(seed: int, index_N: np.ndarray) -> np.ndarray:
  """uint64 [N], a pure function of (seed, index), the same in every version of numpy; see `data/random.py`."""
  word = (index_N.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(seed % 2**64)
  for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
    word = (word ^ (word >> np.uint64(shift))) * np.uint64(factor)
  return word ^ (word >> np.uint64(31))


def _cost(lengths_ND: np.ndarray, limits_D: np.ndarray) -> np.ndarray:
  """What a token of each stream costs, as a fraction of a row: a stream with room to spare is cheap."""
  load_D = lengths_ND.sum(axis=0) / limits_D
  return load_D / max(load_D.max(), 1e-9) / limits_D


def _best_fit(lengths_ND: np.ndarray, limits_D: np.ndarray, seed: int) -> np.ndarray:
  """Best-fit decreasing: the row of each example, int64 [N]."""
  cost_D = _cost(lengths_ND, limits_D)
  kinds_KD, kind_N, count_K = _kinds(lengths_ND, limits_D, cost_D)
  examples = np.lexsort((_random(seed, np.arange(kind_N.size)), kind_N))  # those of one kind, in random order
  start_K = np.cumsum(count_K) - count_K
  row_N = np.empty(kind_N.size, np.int64)
  rooms: dict[tuple[int, ...], list[np.ndarray]] = {}  # room left -> the rows that have it
  rows = 0
  room_CD, key_C = np.zeros((0, limits_D.size), np.int64), []
  for kind in np.argsort(-(kinds_KD * cost_D).sum(axis=1), kind="stable"):
    length_D, todo = kinds_KD[kind], examples[start_K[kind] : start_K[kind] + count_K[kind]]
    fits = np.flatnonzero((room_CD >= length_D).all(axis=1))
    changed = []
    for place in fits[np.argsort((room_CD[fits] * cost_D).sum(axis=1), kind="stable")]:
      if not todo.size:
        break
      found = rooms.pop(key_C[place])
      row = found[0] if len(found) == 1 else np.concatenate(found)
      each = _times(room_CD[place], length_D)
      used = min(-(-todo.size // each), row.size)
      if used < row.size:
        rooms[key_C[place]] = [row[used:]]
      todo = _fill(row_N, todo, row[:used], each, room_CD[place], length_D, changed)
    if todo.size:
      each = _times(limits_D, length_D)
      new = np.arange(rows, rows - (-todo.size // each))
      rows += new.size
      _fill(row_N, todo, new, each, limits_D, length_D, changed)
    for room, row in changed:
      rooms.setdefault(room, []).append(row)
    key_C = list(rooms)
    room_CD = np.array(key_C, np.int64).reshape(-1, limits_D.size)
  return row_N


def _times(room_D: np.ndarray, length_D: np.ndarray) -> int:
  """How often an example that fits does; nothing fits a thousand million times."""
  return int(np.where(length_D > 0, room_D // np.maximum(length_D, 1), 2**30).min())


def _fill(row_N, todo, row, each, room_D, length_D, changed) -> np.ndarray:
  """Puts `each` of the examples `todo` into every row, fewer into the last; notes the rooms left, returns the rest."""
  placed = min(todo.size, row.size * each)
  row_N[todo[:placed]] = np.repeat(row, min(each, todo.size))[:placed]  # empty examples fit without end
  full = placed // each
  for part, number in ((row[:full], each), (row[full:], placed - full * each)):
    room_after = tuple((room_D - number * length_D).tolist())
    if part.size and any(room_after):
      changed.append((room_after, part))
  return todo[placed:]


def _kinds(lengths_ND, limits_D, cost_D):
  """(different lengths [K, D], kind of each example [N], how many of each [K]); K is kept small by rounding up."""
  step_D = np.ones_like(limits_D)
  while True:
    rounded_ND = np.minimum(-(-lengths_ND // step_D) * step_D, limits_D)
    code_N = rounded_ND @ np.cumprod([1, *(limits_D[:-1] + 1)])
    codes, first, kind_N, count_K = np.unique(code_N, return_index=True, return_inverse=True, return_counts=True)
    if codes.size <= _KINDS:
      return rounded_ND[first], kind_N, count_K
    step_D[np.argmin(step_D * cost_D)] *= 2  # the stream where that is cheapest


def _deal(lengths_ND: np.ndarray, limits_D: np.ndarray, seed: int) -> np.ndarray:
  """Dealing, then filling up: the row of each example, int64 [N]."""
  row_N = np.full(lengths_ND.shape[0], -1, np.int64)
  room_RD = np.zeros((0, limits_D.size), np.int64)
  left = np.arange(row_N.size)
  while left.size:
    cost_D = _cost(lengths_ND[left], limits_D)
    left = left[np.lexsort((_random(seed, left), -(lengths_ND[left] * cost_D).sum(axis=1)))]
    first, new = room_RD.shape[0], max(int(np.ceil((lengths_ND[left].sum(axis=0) / limits_D).max())), 1)
    room_RD = np.concatenate([room_RD, np.tile(limits_D, (new, 1))])
    over = []
    for start in range(0, left.size, new):
      dealt = left[start : start + new]
      row = first + np.argsort(-(room_RD[first:] * cost_D).sum(axis=1), kind="stable")[: dealt.size]
      dealt = _by_difference(dealt, lengths_ND[dealt] * cost_D)
      row = _by_difference(row, room_RD[row] * cost_D)
      over.append(_place(dealt, row, lengths_ND, room_RD, row_N))
    left, placed, rounds = np.concatenate(over), 1, 0
    while left.size and placed and rounds < _ROUNDS:
      before, left = left.size, _fill_up(left, lengths_ND, room_RD, cost_D, row_N)
      placed, rounds = before - left.size, rounds + 1
  return row_N


def _by_difference(ordered_N: np.ndarray, sizes_N2: np.ndarray) -> np.ndarray:
  """Reorders groups of neighbours by how much more they are of the first stream than of the second."""
  group = np.arange(ordered_N.size) // _GROUP
  return ordered_N[np.lexsort((sizes_N2[:, 1] - sizes_N2[:, 0], group))]


def _fill_up(left, lengths_ND, room_RD, cost_D, row_N) -> np.ndarray:
  """One round: each example to a row of its own, the one with least room to spare; returns those without."""
  stream = int(np.argmax(cost_D * room_RD.max(axis=0)))  # the dearer one decides; the other has to fit too
  order = np.argsort(lengths_ND[left, stream], kind="stable")
  left = left[order]
  open_rows = np.flatnonzero((room_RD >= lengths_ND[left].min(axis=0)).all(axis=1))
  row = open_rows[np.argsort(room_RD[open_rows, stream], kind="stable")]
  left, waiting = left[-row.size:] if row.size else left[:0], left[: left.size - row.size]
  # Shortest first, each takes the first row that is large enough and comes after that of the one before it.
  fitting = np.searchsorted(room_RD[row, stream], lengths_ND[left, stream])
  place = np.maximum.accumulate(fitting - np.arange(left.size)) + np.arange(left.size)
  found = place < row.size
  over = _place(left[found], row[place[found]], lengths_ND, room_RD, row_N)
  return np.concatenate([waiting, over, left[~found]])


def _place(examples, row, lengths_ND, room_RD, row_N) -> np.ndarray:
  """Puts examples into rows, each its own, where they fit; returns those that do not."""
  fits = (lengths_ND[examples] <= room_RD[row]).all(axis=1)
  room_RD[row[fits]] -= lengths_ND[examples[fits]]
  row_N[examples[fits]] = row[fits]
  return examples[~fits]


def scatter(tokens_nL: np.ndarray, valid_nL: np.ndarray, row_n: np.ndarray, number_n: np.ndarray, offset_n: np.ndarray,
            shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Lays examples into rows.

  Args:
    tokens_nL, valid_nL: int32 and bool [n, L], the examples and which of their places count.
    row_n, number_n, offset_n: integers [n], each one's row, number within the row (from 0), and where it begins there.
    shape: (rows, length of a row).

  Returns:
    int32 [B, S] each: tokens, segments (from 1) and positions within the segment; all 0 where nothing is.
  """
  place_nL = (row_n * shape[1] + offset_n)[:, None] + np.arange(tokens_nL.shape[1])
  places, out = place_nL[valid_nL], np.zeros((3, shape[0] * shape[1]), np.int32)
  within_nL = np.broadcast_to(np.arange(tokens_nL.shape[1], dtype=np.int32), valid_nL.shape)
  number_nL = np.broadcast_to(number_n[:, None] + 1, valid_nL.shape)
  for i, values_nL in enumerate((tokens_nL, number_nL, within_nL)):
    out[i, places] = values_nL[valid_nL]
  tokens_BS, segments_BS, positions_BS = out.reshape(3, *shape)
  return tokens_BS, segments_BS, positions_BS


def shifted(targets_BT: np.ndarray, segments_BT: np.ndarray, positions_BT: np.ndarray, start_id: int) -> np.ndarray:
  """A decoder's inputs: in every segment `start_id` and then its targets but the last; 0 outside of segments."""
  before_BT = np.roll(targets_BT, 1, axis=1)
  return np.where(positions_BT > 0, before_BT, np.where(segments_BT > 0, start_id, 0)).astype(np.int32)
