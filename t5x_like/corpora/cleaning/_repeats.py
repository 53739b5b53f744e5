"""Signatures that occur more than once, for the steps that compare hashes for equality."""

import hashlib

import numpy as np

from t5x_like.corpora.cleaning import Duplicates, Entries


def hashed(text: str) -> int:
  """Hash a text to 64 bits of BLAKE2b."""
  return int.from_bytes(
    hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little"
  )


def by_key(part: np.ndarray, key: np.ndarray, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Return (the order of the entries by key, then by corpus; marks of all but the first entry of
  each key)."""
  order_N = np.lexsort((place, part, key))
  sorted_N = key[order_N]
  return order_N, np.concatenate(
    [np.zeros(min(1, sorted_N.size), bool), sorted_N[1:] == sorted_N[:-1]]
  )


def earlier(part: np.ndarray, key: np.ndarray, place: np.ndarray, **_: np.ndarray) -> np.ndarray:
  """Mark entries whose key has an earlier entry: integers [N] each -> bool [N]."""
  order_N, repeats_N = by_key(part, key, place)
  marked_N = np.empty_like(repeats_N)
  marked_N[order_N] = repeats_N
  return marked_N


def firsts(signatures: np.ndarray, places: np.ndarray, before: np.ndarray) -> Entries:
  """Return the first place of each signature of a part."""
  key, first = np.unique(signatures, return_index=True)
  return {"key": key, "place": places[first]}


class Repeats(Duplicates):
  """The base of steps whose signatures are hashes, uint64 [n], that are duplicates if they are
  equal.

  A part sends each hash once, as the comparison `Comparison(name, firsts, earlier)`, and marks its
  own repeats.
  """

  def repeats(self, signatures: np.ndarray) -> np.ndarray:
    return earlier(np.zeros(signatures.size, np.int64), signatures, np.arange(signatures.size))
