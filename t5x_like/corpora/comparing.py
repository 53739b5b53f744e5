"""Comparisons of `duplicates.py` in the processes of this machine, through files.

Each part's entries are written to disk sorted by key, so that a range of keys is one slice of every part's files.
Ranges hold about 256 MB each and are matched one after another or in several processes. Memory holds the ranges at work
and the marks.
"""

import functools
import pathlib
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np

from t5x_like.corpora import duplicates
from t5x_like.corpora.duplicates import Comparison
from t5x_like.corpora.job import Job
from t5x_like.files.places import is_remote

_RANGE_BYTES = 2**28

Marked = list[tuple[int, np.ndarray]]  # parts, and places in each


def run(job: Job, one: Comparison, parts: int, each: Callable[[Callable, Iterable[int]], Iterable]) -> None:
  """Make a comparison.

  Args:
    job, one: the job and the comparison.
    parts: number of parts.
    each: `map`, or the `map` of a pool of processes.
  """
  duplicates.begin(job, one)
  scratch = None if is_remote(job.progress) else job.progress
  with tempfile.TemporaryDirectory(prefix=".keys.", dir=scratch) as folder:
    size = sum(each(functools.partial(_write, job, one, folder), range(parts)))
    ranges = max(1, -(-size // _RANGE_BYTES))
    marked = defaultdict(list)
    for found in each(functools.partial(_match, one, folder, parts, ranges), range(ranges)):
      for part, places in found:
        marked[part].append(places)
  for part in range(parts):
    duplicates.save(job, one, part, marked.pop(part, ()))
  duplicates.end(job, one)


def _write(job: Job, one: Comparison, folder: str, number: int) -> int:
  """Write a part's entries, sorted by key, and return their size in bytes."""
  found = duplicates.entries(job, one, number)
  order_n = np.argsort(found["key"], kind="stable")
  part = pathlib.Path(folder, str(number))
  part.mkdir()
  for name, values in found.items():
    np.save(part / f"{name}.npy", values[order_n])
  return sum(values.nbytes for values in found.values())


def _match(one: Comparison, folder: str, parts: int, ranges: int, number: int) -> Marked:
  """Mark duplicates in range `number` of `ranges` equal ranges of keys."""
  bounds = [np.uint64(2**64 * edge // ranges - (edge == ranges)) for edge in (number, number + 1)]
  pieces = []
  for part in range(parts):
    found = {file.stem: np.load(file, mmap_mode="r") for file in pathlib.Path(folder, str(part)).iterdir()}
    low, high = (int(np.searchsorted(found["key"], bound)) for bound in bounds)
    if number + 1 == ranges:
      high = found["key"].size
    pieces.append((part, {name: np.array(values[low:high]) for name, values in found.items()}))  # closes the files
  return matched(one, pieces)


def matched(one: Comparison, pieces: Iterable[tuple[int, duplicates.Entries]]) -> Marked:
  """Mark duplicates; `pieces` must contain every entry of each key."""
  pieces = sorted(((part, found) for part, found in pieces if found["key"].size), key=lambda piece: piece[0])
  if not pieces:
    return []
  part_N = np.concatenate([np.full(found["key"].size, part) for part, found in pieces])
  found = {name: np.concatenate([found[name] for _, found in pieces]) for name in pieces[0][1]}
  marked_N = one.match(part_N, **found)
  if not marked_N.any():
    return []
  part_p, first_p = np.unique(part_N[marked_N], return_index=True)
  return list(zip(part_p.tolist(), np.split(found["place"][marked_N], first_p[1:]), strict=True))
