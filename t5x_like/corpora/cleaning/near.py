"""`near`: keep the first of similar pages.

Pages are similar if their sets of five-word shingles have a Jaccard similarity of about 0.8 or
more; a letter is a word in scripts without spaces (`segmentation`). A page's signature is its
MinHash, 128 minima over its shingles (Broder 1997). The share of equal minima estimates the
similarity. `bands` finds the bands of minima that two pages of the split share, so that `near`
compares only pages that share one.
"""

import dataclasses
import functools
from collections import Counter

import numpy as np

from t5x_like import segmentation
from t5x_like.corpora.cleaning import CleanResult, Comparison, Duplicates, Entries
from t5x_like.corpora.cleaning._repeats import hash_text, sort_by_key

SHINGLE = 5  # words
# With 16 bands of 8 minima, two pages of similarity 0.8 share a band with probability 0.95, and two
# of similarity 0.5 with probability 0.06.
HASHES = 128
BANDS = 16
MIN_SIMILARITY = 0.8  # the least share of equal minima in near duplicates
REPRESENTATIVES = 1024  # the most pages of a key with which its others are compared
_PAIRS_AT_ONCE = 2**14  # pairs of signatures to compare together, within memory


def mark_shared(
  part: np.ndarray, key: np.ndarray, position: np.ndarray, **_: np.ndarray
) -> np.ndarray:
  """Mark entries whose key has another entry: integers [N] each -> bool [N]."""
  order_N, repeats_N = sort_by_key(part, key, position)
  is_shared_N = repeats_N.copy()
  is_shared_N[:-1] |= repeats_N[1:]  # the next entry has the same key
  marked_N = np.empty_like(is_shared_N)
  marked_N[order_N] = is_shared_N
  return marked_N


def mark_similar(
  part: np.ndarray, key: np.ndarray, position: np.ndarray, minhash: np.ndarray, **_
) -> np.ndarray:
  """Mark entries similar to an earlier representative of their key.

  The first entry of a key is a representative. Every later entry is marked if it is similar to a
  representative, and otherwise becomes a representative itself, up to `REPRESENTATIVES`.

  Args:
    part, key, position: integers [N].
    minhash: the signatures, uint32 [N, hashes].

  Returns:
    The marks, bool [N].
  """
  order_N, repeats_N = sort_by_key(part, key, position)
  marked_N = np.zeros(order_N.size, bool)
  unmarked_n = order_N
  is_first_n = ~repeats_N
  for _ in range(REPRESENTATIVES):
    group_n = np.cumsum(is_first_n) - 1
    later_m = np.flatnonzero(~is_first_n)
    if not later_m.size:
      break
    representative_m = unmarked_n[is_first_n][group_n[later_m]]
    is_similar_m = _are_similar(minhash, unmarked_n[later_m], representative_m)
    marked_N[unmarked_n[later_m[is_similar_m]]] = True
    remaining_m = later_m[~is_similar_m]
    unmarked_n = unmarked_n[remaining_m]
    is_first_n = np.diff(group_n[remaining_m], prepend=-1) != 0
  return marked_N


def _are_similar(minhash: np.ndarray, first_m: np.ndarray, second_m: np.ndarray) -> np.ndarray:
  """Compare pairs of signatures by their positions: bool [m]."""
  is_similar_m = np.empty(first_m.size, bool)
  for start in range(0, first_m.size, _PAIRS_AT_ONCE):
    pairs = slice(start, start + _PAIRS_AT_ONCE)
    is_equal = minhash[first_m[pairs]] == minhash[second_m[pairs]]
    is_similar_m[pairs] = np.mean(is_equal, axis=1) >= MIN_SIMILARITY
  return is_similar_m


def band_keys(minhash: np.ndarray) -> np.ndarray:
  """Compute band keys of MinHash signatures: uint32 [..., HASHES] -> uint64 [..., BANDS]."""
  rows = minhash.reshape(*minhash.shape[:-1], BANDS, HASHES // BANDS).astype(np.uint64)
  key = np.broadcast_to(np.arange(BANDS, dtype=np.uint64), rows.shape[:-1])
  for row in range(rows.shape[-1]):
    key = _mix(key ^ rows[..., row])
  return key


def _band_entries(minhash: np.ndarray, positions: np.ndarray, marked: np.ndarray) -> Entries:
  """Return each band key of a part once.

  The comparison marks the keys that several parts have, so a key is also its own position.
  """
  key = np.unique(band_keys(minhash))
  return {"key": key, "position": key.view(np.int64)}


def _near_entries(minhash: np.ndarray, positions: np.ndarray, marked: np.ndarray) -> Entries:
  """Return the pages of each band key that occurs twice in the part or is in another part too."""
  key_n = band_keys(minhash).reshape(-1)
  _, inverse_n, count = np.unique(key_n, return_inverse=True, return_counts=True)
  is_shared_n = (count[inverse_n] > 1) | np.isin(key_n, marked.view(np.uint64))
  shared_n = np.flatnonzero(is_shared_n)
  page_n = shared_n // BANDS
  return {"key": key_n[shared_n], "position": positions[page_n], "minhash": minhash[page_n]}


@dataclasses.dataclass(frozen=True)
class Step(Duplicates):
  """The cleaning step `near`, whose signature is the MinHash of a page."""

  stage = 2
  edition = 3  # edition 2 found no words in scripts without spaces
  comparisons = (
    Comparison("bands", _band_entries, mark_shared),
    Comparison("near", _near_entries, mark_similar),
  )

  def sign(self, text: str) -> np.ndarray:
    return minhash(text)[None]

  def remove_marked(self, text: str, marked_n: np.ndarray) -> CleanResult:
    return None, "near duplicate", Counter()


def minhash(text: str) -> np.ndarray:
  """Compute the minimum of each of 128 hashes over a page's shingles: uint32 [HASHES].

  A page shorter than one shingle is padded to one.
  """
  words = segmentation.words(text.lower())
  hashes = np.fromiter(map(_word_hash, words), np.uint64, len(words))
  hashes = np.pad(hashes, (0, max(0, SHINGLE - hashes.size)))
  shingles = np.zeros(hashes.size - SHINGLE + 1, np.uint64)
  for offset in range(SHINGLE):
    shingles = _mix(shingles ^ hashes[offset : offset + shingles.size])
  high_bits = (shingles >> np.uint64(32)).astype(np.uint32)
  multiply, add = _multipliers()
  minima = np.full(HASHES, 2**32 - 1, np.uint32)
  for start in range(0, high_bits.size, 512):  # fits in a core's cache
    mixed = high_bits[start : start + 512, None] * multiply  # modulo 2^32
    mixed += add
    np.minimum(minima, mixed.min(axis=0), out=minima)
  return minima


_word_hash = functools.lru_cache(2**17)(hash_text)  # most words recur


def _mix(x: np.ndarray) -> np.ndarray:
  """Apply SplitMix64's finaliser (Steele et al. 2014): uint64 -> uint64."""
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))


@functools.cache
def _multipliers() -> tuple[np.ndarray, np.ndarray]:
  """Return the odd factor and the addend of each hash function, uint32 [HASHES] each."""
  generator = np.random.default_rng(20)  # part of the definition of a signature
  return (
    generator.integers(0, 2**32, HASHES, dtype=np.uint32) | np.uint32(1),
    generator.integers(0, 2**32, HASHES, dtype=np.uint32),
  )
