"""Bin packing: the row of each example, by its lengths in one or two streams.

There are two methods; the plan with fewer rows is used. Both place all examples of equal lengths,
a *group*, together, so their cost depends on the number of groups rather than of examples.

- **Best-fit decreasing** (for one stream, and for two if patterns need more rows): the longest
  examples come first, each goes into the row where it leaves the least room. A whole group is
  placed at once, into all rows of equal room.
- **Patterns** (two streams). Best fit leaves rows that are full in one stream but not in the other:
  up to 16% more rows for SST-2, 1% to 3% for translation. Here one row, a pattern, is composed at a
  time and repeated as often as half of the examples of its scarcest group allow. Most of it is a
  stratified draw from the remaining examples, sorted by length, so that their distribution is kept.
  The room for about two more is filled with the one or two groups that leave the least room in the
  dominant stream (the one that needs more rows) and, among those, in the other. Of several draws,
  the first is taken that fills the dominant stream and has at least as many tokens of the other per
  token of it as the remaining examples have; failing that, the best. Whether a row should begin
  with the largest remaining example depends on the lengths: every fourth, none and every row are
  tried in turn until a plan is within a thousandth of the lower bound, the tokens of a stream
  divided by the length of a row.
"""

import dataclasses
import math

import numpy as np

# Beyond these numbers of groups, lengths are rounded up, which wastes a little room.
_MAX_BEST_FIT_GROUPS = 2**12
_MAX_PATTERN_GROUPS = 2**15
_GROUPS_TOGETHER = 2**11  # groups handled together when patterns are made
_DRAWS = 16  # draws of the beginning of a row
_COMPLETED_DRAWS = 4  # the most promising draws
_ACCEPTED_RATIO = 1.001  # times the lower bound on rows
_LARGEST_FIRST_PERIODS = (4, 0, 1)  # every fourth row, no row, every row


def assign_rows(lengths_ND: np.ndarray, limits_D: np.ndarray, seed: int) -> np.ndarray:
  """Return the row of each example, int64 [N], from int64 [N, D] lengths, none above its limit."""
  if limits_D.size == 1:
    return _best_fit(lengths_ND, limits_D, seed)
  return _assign_two_streams(lengths_ND, limits_D, seed)


def random_words(seed: int, index_N: np.ndarray) -> np.ndarray:
  """Return random words, uint64 [N], as a pure function of (seed, index).

  They are the same in every version of numpy; see `data/random.py`.
  """
  counter_N = (index_N.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
  word_N = counter_N ^ np.uint64(seed % 2**64)
  for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
    word_N = (word_N ^ (word_N >> np.uint64(shift))) * np.uint64(factor)
  return word_N ^ (word_N >> np.uint64(31))


@dataclasses.dataclass(frozen=True)
class _Groups:
  """Examples grouped by equal lengths.

  Attributes:
    lengths_GD: int64, the lengths of each group, rounded up where there would be too many groups.
    count_G, group_N: int64, the size of each group, and the group of each example.
    cost_D: the cost of a token of each stream, as a fraction of a row; a token costs less in a
      stream that needs fewer rows.
  """

  lengths_GD: np.ndarray
  count_G: np.ndarray
  group_N: np.ndarray
  cost_D: np.ndarray

  @property
  def size_G(self) -> np.ndarray:
    return (self.lengths_GD * self.cost_D).sum(axis=1)

  def examples(self, seed: int) -> np.ndarray:
    """Return the example numbers, int64 [N], group by group, in random order within a group."""
    return np.lexsort((random_words(seed, np.arange(self.group_N.size)), self.group_N))


def _group(lengths_ND: np.ndarray, limits_D: np.ndarray, max_groups: int) -> _Groups:
  """Group examples by length, sorted by the last stream, then by the first.

  Lengths are rounded up if there would be more than `max_groups`.
  """
  load_D = lengths_ND.sum(axis=0) / limits_D
  cost_D = load_D / max(load_D.max(), 1e-9) / limits_D
  step_D = np.ones_like(limits_D)
  while True:
    rounded_ND = np.minimum(-(-lengths_ND // step_D) * step_D, limits_D)
    code_N = rounded_ND @ np.cumprod([1, *(limits_D[:-1] + 1)])
    codes, first, group_N, count_G = np.unique(
      code_N, return_index=True, return_inverse=True, return_counts=True
    )
    if codes.size <= max_groups:
      return _Groups(rounded_ND[first], count_G, group_N, cost_D)
    step_D[np.argmin(step_D * cost_D)] *= 2  # the stream where rounding is cheapest


def _best_fit(lengths_ND: np.ndarray, limits_D: np.ndarray, seed: int) -> np.ndarray:
  """Return the row of each example, int64 [N], by best-fit decreasing."""
  groups = _group(lengths_ND, limits_D, _MAX_BEST_FIT_GROUPS)
  examples = groups.examples(seed)
  start_G = np.cumsum(groups.count_G) - groups.count_G
  row_N = np.empty(examples.size, np.int64)
  rows_of_room: dict[tuple[int, ...], list[np.ndarray]] = {}  # by the room left
  num_rows = 0
  room_CD = np.zeros((0, limits_D.size), np.int64)
  key_C = []
  for group in np.argsort(-groups.size_G, kind="stable"):
    length_D = groups.lengths_GD[group]
    unplaced = examples[start_G[group] : start_G[group] + groups.count_G[group]]
    fits = np.flatnonzero((room_CD >= length_D).all(axis=1))
    changed = []
    for position in fits[np.argsort((room_CD[fits] * groups.cost_D).sum(axis=1), kind="stable")]:
      if not unplaced.size:
        break
      parts = rows_of_room.pop(key_C[position])
      row = parts[0] if len(parts) == 1 else np.concatenate(parts)  # avoids a copy
      per_row = _count_fitting(room_CD[position], length_D)
      num_used = min(-(-unplaced.size // per_row), row.size)
      if num_used < row.size:
        rows_of_room[key_C[position]] = [row[num_used:]]
      unplaced = _fill(
        row_N, unplaced, row[:num_used], per_row, room_CD[position], length_D, changed
      )
    if unplaced.size:
      per_row = _count_fitting(limits_D, length_D)
      new_rows = np.arange(num_rows, num_rows - (-unplaced.size // per_row))
      num_rows += new_rows.size
      _fill(row_N, unplaced, new_rows, per_row, limits_D, length_D, changed)
    for room, row in changed:
      rows_of_room.setdefault(room, []).append(row)
    key_C = list(rows_of_room)
    room_CD = np.array(key_C, np.int64).reshape(-1, limits_D.size)
  return row_N


def _count_fitting(room_D: np.ndarray, length_D: np.ndarray) -> int:
  """Return how many times an example fits into a room; 2^30 for an empty example."""
  return int(np.where(length_D > 0, room_D // np.maximum(length_D, 1), 2**30).min())


def _fill(
  row_N: np.ndarray,
  examples: np.ndarray,
  rows: np.ndarray,
  per_row: int,
  room_D: np.ndarray,
  length_D: np.ndarray,
  changed: list[tuple[tuple[int, ...], np.ndarray]],
) -> np.ndarray:
  """Put examples into rows, as many as fit into each, fewer into the last.

  Args:
    row_N: the row of each example, set in place.
    examples: examples of one length.
    rows: rows with the same room.
    per_row: examples in a row.
    room_D, length_D: the room of the rows, and the length of the examples.
    changed: the rows by the room left in them, appended in place.

  Returns:
    The examples that are left.
  """
  num_placed = min(examples.size, rows.size * per_row)
  # Any number of empty examples fits.
  row_N[examples[:num_placed]] = np.repeat(rows, min(per_row, examples.size))[:num_placed]
  num_full = num_placed // per_row
  in_last = num_placed - num_full * per_row
  for part, number in ((rows[:num_full], per_row), (rows[num_full:], in_last)):
    room_after = tuple((room_D - number * length_D).tolist())
    if part.size and any(room_after):
      changed.append((room_after, part))
  return examples[num_placed:]


def _assign_two_streams(lengths_ND: np.ndarray, limits_D: np.ndarray, seed: int) -> np.ndarray:
  """Return the row of each example, int64 [N], by the plan with fewer rows for two streams."""
  groups = _group(lengths_ND, limits_D, _MAX_PATTERN_GROUPS)
  reach_D = np.array([_reach(groups.lengths_GD[:, d], int(limits_D[d])) for d in range(2)])
  load_D = groups.count_G @ groups.lengths_GD / np.maximum(reach_D, 1)
  dominant = 0 if load_D[0] >= load_D[1] else 1
  streams = [dominant, 1 - dominant]
  remaining = _remaining_groups(groups, streams)
  num_groups = remaining.group_G.size
  num_parts = min(-(-num_groups // _GROUPS_TOGETHER), int(load_D.max()) // _GROUPS_TOGETHER)
  num_parts = max(num_parts, 1)
  patterns = []
  times = []
  periods = _LARGEST_FIRST_PERIODS
  for part in range(num_parts):
    groups_of_part = remaining.select(np.arange(part, num_groups, num_parts))
    part_patterns, part_times, best_period = _best_patterns(
      groups_of_part, reach_D[streams], periods, seed + part
    )
    periods = (best_period,)
    patterns += part_patterns
    times += part_times
  if sum(times) > math.ceil(load_D.max()) * _ACCEPTED_RATIO:
    row_N = _best_fit(lengths_ND, limits_D, seed)
    if row_N.max(initial=-1) < sum(times):
      return row_N
  return _repeat(patterns, times, groups, seed)


def _remaining_groups(groups: _Groups, streams: list[int]) -> "_RemainingGroups":
  """Return the groups that are not empty, with the lengths x and y in these streams."""
  group_G = np.flatnonzero(groups.lengths_GD.any(axis=1))  # empty examples fit anywhere
  group_G = group_G[np.lexsort(groups.lengths_GD[group_G][:, streams[::-1]].T)]
  x_G, y_G = groups.lengths_GD[group_G][:, streams].T
  return _RemainingGroups(group_G, x_G, y_G, groups.count_G[group_G], groups.size_G[group_G])


def _best_patterns(
  groups: "_RemainingGroups", limits_D: np.ndarray, periods: tuple[int, ...], seed: int
) -> tuple[list[np.ndarray], list[int], int]:
  """Return the patterns with the fewest rows, their numbers of uses and their period.

  The periods are tried in turn until the rows are near the lower bound.
  """
  bound = math.ceil((groups.count_G @ groups.x_G) / max(limits_D[0], 1))
  best = None
  for period in periods:
    patterns, times = _patterns(groups, limits_D, period, seed)
    if best is None or sum(times) < sum(best[1]):
      best = (patterns, times, period)
    if sum(times) <= bound * _ACCEPTED_RATIO:
      break
  return best


def _reach(length_G: np.ndarray, limit: int) -> int:
  """Return the largest sum, up to the limit, of any multiset of these lengths."""
  sums = 1  # bit n: the lengths can sum to n
  mask = (1 << limit + 1) - 1
  for length in np.unique(length_G[length_G > 0]).tolist():
    while length <= limit:
      sums |= sums << length & mask
      length *= 2
  return sums.bit_length() - 1


def _patterns(
  remaining: "_RemainingGroups", limits_D: np.ndarray, period: int, seed: int
) -> tuple[list[np.ndarray], list[int]]:
  """Return rows as arrays of groups, and their numbers of uses.

  Every `period`-th row begins with the largest example.
  """
  remaining = remaining.select(remaining.count_G > 0)  # a copy
  patterns = []
  times = []
  while remaining.group_G.size:
    forced = []
    if period and len(patterns) % period == 0:
      forced = [int(np.argmax(remaining.size_G))]
    row = _compose(remaining, limits_D.tolist(), forced, seed + 2**32 * len(patterns))
    member_g, number_g = np.unique(row, return_counts=True)
    max_uses_g = remaining.count_G[member_g] // number_g
    uses_g = np.where(np.isin(member_g, forced), max_uses_g, max_uses_g // 2)
    uses = max(int(uses_g.min()), 1)
    times.append(uses)
    patterns.append(remaining.group_G[row])
    remaining.count_G[member_g] -= number_g * uses
    if not remaining.count_G[member_g].all():
      remaining = remaining.select(remaining.count_G > 0)
  return patterns, times


@dataclasses.dataclass(frozen=True)
class _RemainingGroups:
  """The remaining groups, sorted by x, then y; each array is [G].

  Attributes:
    group_G: the numbers of the groups.
    x_G, y_G: their lengths in the dominant stream and in the other.
    count_G: the numbers of their remaining examples.
    size_G: their sizes, see `_Groups.size_G`.
  """

  group_G: np.ndarray
  x_G: np.ndarray
  y_G: np.ndarray
  count_G: np.ndarray
  size_G: np.ndarray

  def select(self, selection: np.ndarray) -> "_RemainingGroups":
    """Return copies of some groups, by their positions or a mask."""
    return _RemainingGroups(
      self.group_G[selection],
      self.x_G[selection],
      self.y_G[selection],
      self.count_G[selection],
      self.size_G[selection],
    )


def _compose(
  remaining: _RemainingGroups, limits: list[int], forced: list[int], seed: int
) -> list[int]:
  """Compose one row from the remaining groups, none used more often than its count."""
  count_G = remaining.count_G.copy()
  count_G[forced] -= 1
  all_x = int(remaining.x_G @ remaining.count_G)
  all_y = int(remaining.y_G @ remaining.count_G)
  room_x = limits[0] - int(remaining.x_G[forced].sum())
  room_y = limits[1] - int(remaining.y_G[forced].sum())
  num_examples = remaining.count_G.sum()
  # The number of average examples that fit into the room.
  average_fit = min(room_x * num_examples / max(all_x, 1), room_y * num_examples / max(all_y, 1))
  drawn_PM = np.zeros((1, 0), np.int64)
  number = min(int(average_fit) - 2, int(count_G.sum()))
  if number > 0:
    candidate_PM = _draw_stratified(count_G, number, seed)
    x_P = remaining.x_G[candidate_PM].sum(axis=1)
    y_P = remaining.y_G[candidate_PM].sum(axis=1)
    fits = np.flatnonzero((x_P <= room_x) & (y_P <= room_y))
    if fits.size:
      # Prefer draws whose streams are nearest to the ratio of the remaining examples.
      used_x = limits[0] - room_x + x_P[fits]
      used_y = limits[1] - room_y + y_P[fits]
      uneven = np.abs(used_y * all_x - used_x * all_y)
      best_first = np.argsort(uneven, kind="stable")
      drawn_PM = candidate_PM[fits[best_first[:_COMPLETED_DRAWS]]]
  best = None
  row = []
  for drawn_M in drawn_PM:
    completion, left_x, left_y = _complete(
      remaining,
      count_G - np.bincount(drawn_M, minlength=count_G.size),
      room_x - int(remaining.x_G[drawn_M].sum()),
      room_y - int(remaining.y_G[drawn_M].sum()),
    )
    shortage = max((limits[0] - left_x) * all_y - (limits[1] - left_y) * all_x, 0)
    if best is None or (left_x, shortage) < best:
      best = (left_x, shortage)
      row = [*forced, *drawn_M.tolist(), *completion]
    if left_x == 0 and shortage < all_x:  # short by less than a token
      break
  return row


def _draw_stratified(count_G: np.ndarray, number: int, seed: int) -> np.ndarray:
  """Draw groups from the examples sorted by length, one from each of `number` equal parts.

  Returns:
    int64 [_DRAWS, number], positions among the groups.
  """
  start_M = np.arange(number + 1) * int(count_G.sum()) // number
  random_PM = random_words(seed, np.arange(_DRAWS * number)).reshape(_DRAWS, number)
  within_PM = (random_PM % np.diff(start_M).astype(np.uint64)).astype(np.int64)
  return np.searchsorted(np.cumsum(count_G), start_M[:-1] + within_PM, side="right")


def _complete(
  remaining: _RemainingGroups, count_G: np.ndarray, x: int, y: int
) -> tuple[list[int], int, int]:
  """Return the groups that best fill a room of x and y, and the room that remains.

  They are chosen one or two at a time; `count_G` is reduced in place.
  """
  row = []
  while True:
    fits_G = (count_G > 0) & (remaining.x_G <= x) & (remaining.y_G <= y)
    open_g = np.flatnonzero(fits_G)
    if not open_g.size:
      return row, x, y
    chosen = _pair(remaining.x_G[open_g], remaining.y_G[open_g], count_G[open_g], x, y)
    for position in open_g[chosen].tolist():
      row.append(position)
      count_G[position] -= 1
      x -= int(remaining.x_G[position])
      y -= int(remaining.y_G[position])


def _pair(x_G: np.ndarray, y_G: np.ndarray, count_G: np.ndarray, x: int, y: int) -> list[int]:
  """Return the one or two groups that leave the least of x, then the least of y.

  All groups fit; they are sorted by x, then y.
  """
  key_G = x_G * (y + 1) + y_G
  # The first of each pair, and the room it leaves.
  first_n = np.arange(x_G.size)
  x_n = x - x_G
  y_n = y - y_G
  single = np.lexsort((y_n, x_n))[0]
  best = (x_n[single], y_n[single])
  pair = [single]
  second_n = np.searchsorted(key_G, x_n * (y + 1) + y_n, side="right") - 1
  while True:
    # The first examples whose pairs may still leave less than the best one.
    is_open_n = second_n >= 0
    is_open_n[is_open_n] = x_n[is_open_n] - x_G[second_n[is_open_n]] <= best[0]
    if not is_open_n.any():
      return pair
    first_n = first_n[is_open_n]
    second_n = second_n[is_open_n]
    x_n = x_n[is_open_n]
    y_n = y_n[is_open_n]
    is_low_n = y_G[second_n] <= y_n
    fits = np.flatnonzero(is_low_n & ((first_n != second_n) | (count_G[first_n] > 1)))
    if fits.size:
      room_x = x_n[fits] - x_G[second_n[fits]]
      room_y = y_n[fits] - y_G[second_n[fits]]
      tightest = np.lexsort((room_y, room_x))[0]
      if (room_x[tightest], room_y[tightest]) < best:
        best = (room_x[tightest], room_y[tightest])
        pair = [first_n[fits[tightest]], second_n[fits[tightest]]]
    # If the second is too long in y, try the next one that is shorter in x and fits in y. If the
    # pair is one group with a single example left, try the next shorter group.
    shorter_n = np.searchsorted(key_G, x_G[second_n] * (y + 1) + y_n, side="right") - 1
    second_n = np.where(is_low_n, second_n - 1, shorter_n)
    second_n[fits] = -1


def _repeat(patterns: list[np.ndarray], times: list[int], groups: _Groups, seed: int) -> np.ndarray:
  """Return the row of each example, int64 [N], from the patterns and their numbers of uses."""
  times_P = np.array(times, np.int64)
  size_P = np.array([pattern.size for pattern in patterns], np.int64)
  group_n = np.concatenate([np.zeros(0, np.int64), *patterns])
  times_n = np.repeat(times_P, size_P)
  start_n = np.repeat(np.cumsum(times_P) - times_P, size_P)
  row_m = np.arange(times_n.sum()) + np.repeat(start_n - np.cumsum(times_n) + times_n, times_n)
  row_N = np.zeros(groups.group_N.size, np.int64)
  is_not_empty_N = np.repeat(groups.lengths_GD.any(axis=1), groups.count_G)
  order_m = np.argsort(np.repeat(group_n, times_n), kind="stable")
  row_N[groups.examples(seed)[is_not_empty_N]] = row_m[order_m]
  return row_N
