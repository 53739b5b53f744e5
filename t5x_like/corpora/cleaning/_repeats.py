"""Mark signatures that occur more than once, for steps that compare hashes for equality."""

import hashlib

import numpy as np

from t5x_like.corpora.cleaning import Duplicates, Entries


def hash_text(text: str) -> int:
  """Hash a text to 64 bits of BLAKE2b."""
  digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
  return int.from_bytes(digest, "little")


def sort_by_key(
  part: np.ndarray, key: np.ndarray, position: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Sort entries by key, then by their order in the corpus.

  Returns:
    The order of the entries, and marks of all but the first entry of each key, in that order.
  """
  order_N = np.lexsort((position, part, key))
  key_N = key[order_N]
  repeats_N = np.zeros(key_N.size, bool)
  repeats_N[1:] = key_N[1:] == key_N[:-1]
  return order_N, repeats_N


def mark_repeats(
  part: np.ndarray, key: np.ndarray, position: np.ndarray, **_: np.ndarray
) -> np.ndarray:
  """Mark entries whose key has an earlier entry: integers [N] each -> bool [N]."""
  order_N, repeats_N = sort_by_key(part, key, position)
  marked_N = np.empty_like(repeats_N)
  marked_N[order_N] = repeats_N
  return marked_N


def first_positions(signatures: np.ndarray, positions: np.ndarray, before: np.ndarray) -> Entries:
  """Return the first position of each signature of a part, as the entries of a `Comparison`."""
  key, first = np.unique(signatures, return_index=True)
  return {"key": key, "position": positions[first]}


class Repeats(Duplicates):
  """The base of steps whose signatures are hashes, uint64 [n].

  Signatures are duplicates if they are equal. A part sends each of its hashes once to
  `Comparison(name, first_positions, mark_repeats)`, and marks repeats within the part itself.
  """

  def mark_repeats_in_part(self, signatures: np.ndarray) -> np.ndarray:
    return mark_repeats(np.zeros(signatures.size, np.int64), signatures, np.arange(signatures.size))
