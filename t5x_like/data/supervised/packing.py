"""Packing: several short examples in one row, by a plan that is made from their lengths.

A plan assigns examples to rows, without reading a token. It is a pure function of (lengths, limits,
seed), so rows are addressed by index like unpacked examples: they are shuffled again in every
epoch, resumed at any step and divided among hosts, and every epoch has every example once. An
example has one length per stream (the inputs and the targets of an encoder-decoder, or one
sequence), and a row has one limit per stream. `data/supervised/bins.py` finds the rows.

Worked example (`scatter`, and `shift_segments` for the inputs of the decoder), two examples of
inputs [7,8,5,1], [8,4,9,3,1] and targets [3,9,1], [4,1]:

    encoder_input_tokens  7 8 5 1 8 4 9 3 1 0    decoder_target_tokens  3 9 1 4 1 0 0
    encoder_segment_ids   1 1 1 1 2 2 2 2 2 0    decoder_segment_ids    1 1 1 2 2 0 0
    encoder_positions     0 1 2 3 0 1 2 3 4 0    decoder_positions      0 1 2 0 1 0 0
                                                 decoder_input_tokens   0 3 9 0 4 0 0
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence

import numpy as np

from t5x_like import data
from t5x_like.corpora import progress_files
from t5x_like.data.supervised import bins
from t5x_like.errors import TransientError, UserError
from t5x_like.files.paths import as_path

EDITION = 1  # the version of the plans; increment it whenever the result of `plan` changes


@dataclasses.dataclass(frozen=True)
class Plan:
  """An assignment of examples to rows.

  Attributes:
    examples: int64 [N], the example numbers, row by row.
    row_starts: int64 [R + 1], the beginning of each row in `examples`.
    offsets: int64 [N, D], the beginning of each example within its row, in each stream.
    tokens, limits: total positions used and the length of a row, in each stream.
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
    """The fraction of positions that hold a token, in each stream and, last, overall."""
    tokens = [*self.tokens, sum(self.tokens)]
    limits = [*self.limits, sum(self.limits)]
    return tuple(used / max(self.num_rows * limit, 1) for used, limit in zip(tokens, limits))

  def members(self, row_B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the examples of rows.

    Returns:
      (position in `examples`, position in `row_B`, number within its row), each int64 [n].
    """
    row_B = np.asarray(row_B, np.int64)
    count_B = self.row_starts[row_B + 1] - self.row_starts[row_B]
    row_n = np.repeat(np.arange(row_B.size), count_B)  # the position in `row_B`
    number_n = np.arange(row_n.size) - np.repeat(np.cumsum(count_B) - count_B, count_B)
    return self.row_starts[row_B][row_n] + number_n, row_n, number_n


def plan_unpacked(lengths_ND: np.ndarray, limits: Sequence[int]) -> Plan:
  """Return the plan of a task that does not pack: row i is example i."""
  N, D = lengths_ND.shape
  return Plan(
    examples=np.arange(N),
    row_starts=np.arange(N + 1),
    offsets=np.zeros((N, D), np.int64),
    tokens=_sums(lengths_ND),
    limits=tuple(limits),
  )


def plan(lengths_ND: np.ndarray, limits: Sequence[int], seed: int = 0) -> Plan:
  """Pack examples into rows.

  Args:
    lengths_ND: integers [N, D], the tokens of each example in each of one or two streams.
    limits: the length of a row in each stream.
    seed: breaks ties and orders the rows.

  Returns:
    A plan with every example exactly once, no row longer than the limits.

  Raises:
    UserError: an example is longer than a row; a limit is below 1.
  """
  lengths_ND = np.ascontiguousarray(lengths_ND, np.int64)
  limits_D = np.asarray(limits, np.int64)
  if limits_D.min(initial=1) < 1:
    raise UserError(f"row lengths: found {list(limits)}, expected at least 1")
  too_long_N = (lengths_ND > limits_D).any(axis=1)
  if too_long_N.any():
    example = np.flatnonzero(too_long_N)[0]
    raise UserError(
      f"example {example}: found lengths {lengths_ND[example].tolist()}, expected at most "
      f"{limits_D.tolist()}, the length of a row; {too_long_N.sum()} examples are too long"
    )
  row_N = bins.assign_rows(lengths_ND, limits_D, seed)
  _, row_N = np.unique(row_N, return_inverse=True)
  num_rows = int(row_N.max(initial=-1)) + 1
  # Rows are in random order.
  words_R = bins.random_words(seed + 1, np.arange(num_rows))
  rank_R = np.argsort(np.argsort(words_R, kind="stable"))
  row_N = rank_R[row_N]
  examples = np.argsort(row_N, kind="stable")
  row_starts = np.concatenate([[0], np.cumsum(np.bincount(row_N, minlength=num_rows))])
  return _make_plan(lengths_ND, limits, examples, row_starts)


def plan_examples(
  lengths_ND: np.ndarray, limits: Sequence[int], packed: bool, seed: int, path: str
) -> Plan:
  """Return the plan of the examples in the directory `path`, and report it."""
  if packed:
    examples_plan = load_or_plan(lengths_ND, limits, seed, f"{path}/plans")
    arrangement = f"packed into {examples_plan.num_rows:,} rows"
  else:
    examples_plan = plan_unpacked(lengths_ND, limits)
    arrangement = "unpacked"
  *stream_shares, total_share = examples_plan.utilisation
  streams = [f"{share:.1%} of {limit:,}" for share, limit in zip(stream_shares, limits)]
  data.announce(
    f"{path}: {examples_plan.examples.size:,} examples {arrangement}, {total_share:.1%} of "
    f"positions used ({', '.join(streams)})"
  )
  return examples_plan


def load_or_plan(lengths_ND: np.ndarray, limits: Sequence[int], seed: int, folder: str) -> Plan:
  """Return `plan`, cached in a file named by a hash of all it depends on.

  A damaged file, or one from another edition of the method, is ignored. If the folder is not
  writable, the plan is made again each time.
  """
  lengths_ND = np.ascontiguousarray(lengths_ND, np.int64)
  facts = {"edition": EDITION, "limits": list(limits), "seed": seed, "shape": lengths_ND.shape}
  dependencies = json.dumps(facts)
  key = hashlib.sha256(dependencies.encode() + lengths_ND.data).hexdigest()
  file = as_path(folder) / key[:32]
  cached = progress_files.load_arrays(file)
  if cached:
    return _make_plan(lengths_ND, limits, cached["examples"], cached["row_starts"])
  new_plan = plan(lengths_ND, limits, seed)
  with contextlib.suppress(OSError, UserError, TransientError):
    progress_files.save_arrays(file, examples=new_plan.examples, row_starts=new_plan.row_starts)
  return new_plan


def _make_plan(
  lengths_ND: np.ndarray, limits: Sequence[int], examples: np.ndarray, row_starts: np.ndarray
) -> Plan:
  """Return the plan of examples in this order, with their offsets."""
  before_ND = np.cumsum(lengths_ND[examples], axis=0) - lengths_ND[examples]
  if examples.size:
    before_ND -= np.repeat(before_ND[row_starts[:-1]], np.diff(row_starts), axis=0)
  int_limits = tuple(int(limit) for limit in limits)
  return Plan(examples, row_starts, before_ND, _sums(lengths_ND), int_limits)


def _sums(lengths_ND: np.ndarray) -> tuple[int, ...]:
  """Return the total length of each stream."""
  return tuple(lengths_ND.sum(axis=0, dtype=np.int64).tolist())


def scatter(
  tokens_nL: np.ndarray,
  valid_nL: np.ndarray,
  row_n: np.ndarray,
  number_n: np.ndarray,
  offset_n: np.ndarray,
  shape: tuple[int, int],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Place examples in rows.

  Args:
    tokens_nL, valid_nL: int32 and bool [n, L], the examples and which of their tokens are real.
    row_n, number_n, offset_n: integers [n], each example's row, number within the row (from 0) and
      offset in it.
    shape: (rows, length of a row).

  Returns:
    int32 [B, S] each: tokens, segments (from 1) and positions within the segment; 0 where a row is
    empty.
  """
  position_nL = (row_n * shape[1] + offset_n)[:, None] + np.arange(tokens_nL.shape[1])
  positions = position_nL[valid_nL]
  rows = np.zeros((3, shape[0] * shape[1]), np.int32)
  within_nL = np.broadcast_to(np.arange(tokens_nL.shape[1], dtype=np.int32), valid_nL.shape)
  number_nL = np.broadcast_to(number_n[:, None] + 1, valid_nL.shape)
  rows[0, positions] = tokens_nL[valid_nL]
  rows[1, positions] = number_nL[valid_nL]
  rows[2, positions] = within_nL[valid_nL]
  tokens_BS, segments_BS, positions_BS = rows.reshape(3, *shape)
  return tokens_BS, segments_BS, positions_BS


def shift_segments(
  targets_BT: np.ndarray, segments_BT: np.ndarray, positions_BT: np.ndarray, start_id: int
) -> np.ndarray:
  """Return a decoder's inputs, int32 [B, T].

  Each segment has `start_id`, then its targets except the last. Outside segments, inputs are 0.
  """
  before_BT = np.roll(targets_BT, 1, axis=1)
  start_BT = np.where(segments_BT > 0, start_id, 0)
  return np.where(positions_BT > 0, before_BT, start_BT).astype(np.int32)


def decoder_rows(
  tokens_nL: np.ndarray,
  valid_nL: np.ndarray,
  learned_nL: np.ndarray,
  positions_n: tuple[np.ndarray, np.ndarray, np.ndarray],
  shape: tuple[int, int],
  start_id: int,
  pad_id: int,
) -> dict[str, np.ndarray]:
  """Return the features of a decoder from examples whose tokens are all targets.

  Args:
    tokens_nL, valid_nL, shape: see `scatter`.
    learned_nL: bool [n, L], the tokens with loss.
    positions_n: the row, number and offset of each example, see `scatter`.
    start_id: the first input of each example.
    pad_id: the target where a row is empty.
  """
  targets, segments, positions = scatter(tokens_nL, valid_nL, *positions_n, shape)
  learned, _, _ = scatter(learned_nL, valid_nL, *positions_n, shape)
  return {
    "decoder_input_tokens": shift_segments(targets, segments, positions, start_id),
    "decoder_target_tokens": np.where(segments > 0, targets, pad_id),
    "decoder_loss_weights": learned,
    "decoder_segment_ids": segments,
    "decoder_positions": positions,
  }
