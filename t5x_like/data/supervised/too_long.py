"""The treatment of examples longer than a row; they are always counted and reported."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from t5x_like import data
from t5x_like.errors import UserError

TooLong = Literal["refuse", "skip", "truncate"]


def fit(
  lengths_ND: np.ndarray, limits: Sequence[int], too_long: TooLong, where: str, names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
  """Select the examples to use and their lengths.

  Args:
    lengths_ND: integers [N, D], the length of each stream.
    limits: the greatest length allowed in each stream.
    too_long: `refuse` raises, `skip` leaves them out, `truncate` shortens them.
    where, names: the examples and the task's keys that set the limits, for messages.

  Returns:
    (int64 [n], int64 [n, D]): the examples used, ascending, and their lengths.

  Raises:
    UserError: some are too long and `too_long` is `refuse`, or none are left.
  """
  over_ND = lengths_ND > np.asarray(limits)
  over_N = over_ND.any(axis=1)
  if not over_N.any():
    return np.arange(len(lengths_ND)), lengths_ND
  counts = []
  for d, name in enumerate(names):
    if over_ND[:, d].any():
      longest = lengths_ND[:, d].max()
      counts.append(f"{name}: {over_ND[:, d].sum():,} over {limits[d]:,}, the longest {longest:,}")
  details = ", ".join(counts)
  if too_long == "refuse":
    raise UserError(
      f"{where}: {over_N.sum():,} of {over_N.size:,} examples are too long ({details} tokens); "
      "raise that length, or set config.task.too_long to skip or truncate"
    )
  if too_long == "truncate":
    data.announce(
      f"{where}: {over_N.sum():,} of {over_N.size:,} examples truncated ({details} tokens)"
    )
    return np.arange(len(lengths_ND)), np.minimum(lengths_ND, limits)
  used = np.flatnonzero(~over_N)
  if not used.size:
    raise UserError(
      f"{where}: all {over_N.size:,} examples are too long ({details} tokens); raise that length"
    )
  data.announce(
    f"{where}: {over_N.sum():,} of {over_N.size:,} examples skipped, too long ({details} tokens)"
  )
  return used, lengths_ND[used]


def truncated_share(lengths_ND: np.ndarray, used: np.ndarray, sizes_nD: np.ndarray) -> float:
  """Return the share of the examples used that `fit` has shortened.

  Args:
    lengths_ND: the lengths of all examples.
    used: the examples that `fit` selected.
    sizes_nD: their lengths after it.
  """
  is_shortened_n = lengths_ND[used].sum(axis=1) > sizes_nD.sum(axis=1)
  return float(is_shortened_n.mean())


def drop_unanswered(
  used: np.ndarray, lengths_nD: np.ndarray, first_ND: np.ndarray, where: str
) -> tuple[np.ndarray, np.ndarray]:
  """Return the used examples, int64 [n], that keep a part of their answers, and their lengths.

  Args:
    used: the examples in use.
    lengths_nD: their lengths in a row.
    first_ND: the first token of the answer, of all examples.
    where: the examples, for messages.

  Raises:
    UserError: no example keeps any.
  """
  has_answer_n = (lengths_nD > first_ND[used]).all(axis=1)
  if not has_answer_n.any():
    raise UserError(
      f"config.task.length: found {lengths_nD.max()}, expected more: the prompts of all examples "
      f"of {where} fill it"
    )
  if not has_answer_n.all():
    data.announce(f"{where}: {(~has_answer_n).sum():,} examples skipped, whose prompt fills a row")
  return used[has_answer_n], lengths_nD[has_answer_n]
