"""The comparisons behind the removal of duplicates, on any set of complete groups of equal keys.

A comparison takes N entries, each with a key, its part of the corpus, and its place in that part, and marks some of
them. Entries are compared only within the same key, in the order of the corpus. They may therefore be divided among
machines by key in any way, and arrive in any order.
"""

import numpy as np

SIMILAR = 0.8  # minimum share of equal minima in near duplicates
REPRESENTATIVES = 1024  # maximum pages per key with which others are compared
_ROWS = 2**14  # compared at once; bounds memory


def earlier(part: np.ndarray, key: np.ndarray, place: np.ndarray, **_: np.ndarray) -> np.ndarray:
  """Mark entries whose key has an earlier entry: integers [N] each -> bool [N]."""
  order_N, repeats_N = _sorted(part, key, place)
  marked_N = np.empty_like(repeats_N)
  marked_N[order_N] = repeats_N
  return marked_N


def shared(part: np.ndarray, key: np.ndarray, place: np.ndarray, **_: np.ndarray) -> np.ndarray:
  """Mark entries whose key has another entry: integers [N] each -> bool [N]."""
  order_N, repeats_N = _sorted(part, key, place)
  marked_N = np.empty_like(repeats_N)
  marked_N[order_N] = repeats_N | np.append(repeats_N[1:], False)[: repeats_N.size]
  return marked_N


def similar(part: np.ndarray, key: np.ndarray, place: np.ndarray, minhash: np.ndarray, **_) -> np.ndarray:
  """Mark entries similar to an earlier representative of their key, by `minhash` uint32 [N, hashes]: -> bool [N].

  The first entry of a key is a representative. Every later entry is marked if it is similar to a representative, and
  otherwise becomes a representative itself, up to `REPRESENTATIVES`.
  """
  order_N, repeats_N = _sorted(part, key, place)
  marked_N, left, first = np.zeros(order_N.size, bool), order_N, ~repeats_N
  for _ in range(REPRESENTATIVES):
    group = np.cumsum(first) - 1
    others = np.flatnonzero(~first)
    if not others.size:
      break
    like = np.concatenate(
      [
        np.mean(minhash[left[some]] == minhash[left[first][group[some]]], axis=1) >= SIMILAR
        for some in np.split(others, range(_ROWS, others.size, _ROWS))
      ]
    )
    marked_N[left[others[like]]] = True
    left, group = left[others[~like]], group[others[~like]]
    first = np.diff(group, prepend=-1) != 0
  return marked_N


def _sorted(part: np.ndarray, key: np.ndarray, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Return (the order of the entries by key, then by corpus; marks of all but the first entry of each key)."""
  order_N = np.lexsort((place, part, key))
  sorted_N = key[order_N]
  return order_N, np.concatenate([np.zeros(min(1, sorted_N.size), bool), sorted_N[1:] == sorted_N[:-1]])
