"""Hashes for comparing pages, pure functions of their texts.

- exact: hash of the text without case and spaces;
- minhash: 128 minima over the five-word shingles (Broder 1997); the share of equal minima estimates the Jaccard
  similarity of two pages;
- spans: hash of every three consecutive sentences, without case and spaces.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence

import numpy as np

from t5x_like.corpora.cleaning import SPAN, STEPS, sentences

SHINGLE = 5  # words
HASHES, BANDS = 128, 16  # 16 bands of 8: a pair of similarity 0.8 shares a band with probability 0.95, one of 0.5 0.06


@dataclasses.dataclass(frozen=True)
class Signature:
  """Hashes for comparing a page with others.

  Attributes:
    exact: uint64 [], hash of the text without case and spaces; 0 if not computed.
    minhash: uint32 [HASHES]; empty if not computed.
    spans: uint64 [spans], hash of every three consecutive sentences; empty if not computed.
  """

  exact: np.uint64
  minhash: np.ndarray
  spans: np.ndarray


@dataclasses.dataclass(frozen=True)
class Signatures:
  """The signatures of D pages; the spans of all pages are concatenated, S in all.

  Attributes:
    exact: uint64 [D].
    minhash: uint32 [D, HASHES], or [D, 0].
    spans: uint64 [S].
    lengths: int64 [D], the number of spans of each page.
  """

  exact: np.ndarray
  minhash: np.ndarray
  spans: np.ndarray
  lengths: np.ndarray

  @classmethod
  def of(cls, pages: Sequence[Signature]) -> "Signatures":
    if not pages:
      return cls(np.zeros(0, np.uint64), np.zeros((0, 0), np.uint32), np.zeros(0, np.uint64), np.zeros(0, np.int64))
    return cls(
      np.array([page.exact for page in pages], np.uint64),
      np.stack([page.minhash for page in pages]),
      np.concatenate([page.spans for page in pages]),
      np.array([page.spans.size for page in pages], np.int64),
    )


def signature(text: str, steps: Sequence[str] = STEPS) -> Signature:
  """Compute the hashes of a page that `steps` need."""
  words = text.lower().split() if {"exact", "near"} & set(steps) else []
  exact = np.uint64(_hash(" ".join(words)) if "exact" in steps else 0)
  minhash = _minhash(words) if "near" in steps else np.zeros(0, np.uint32)
  spans = _spans(sentences(text)) if "spans" in steps else np.zeros(0, np.uint64)
  return Signature(exact, minhash, spans)


def same_bands(minhash: np.ndarray) -> np.ndarray:
  """Compute band keys of MinHash signatures: uint32 [..., HASHES] -> uint64 [..., BANDS]; equal keys are compared."""
  rows = minhash.reshape(*minhash.shape[:-1], BANDS, HASHES // BANDS).astype(np.uint64)
  key = np.broadcast_to(np.arange(BANDS, dtype=np.uint64), rows.shape[:-1])
  for row in range(rows.shape[-1]):
    key = _mix(key ^ rows[..., row])
  return key


def _hash(text: str) -> int:
  """Hash a text to 64 bits of BLAKE2b."""
  return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


_word_hash = functools.lru_cache(2**17)(_hash)  # most words recur


def _mix(x: np.ndarray) -> np.ndarray:
  """Apply SplitMix64's finaliser (Steele et al. 2014): uint64 -> uint64."""
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))


@functools.cache
def _multipliers() -> tuple[np.ndarray, np.ndarray]:
  generator = np.random.default_rng(20)  # part of the definition of a signature
  return (
    generator.integers(0, 2**32, HASHES, dtype=np.uint32) | np.uint32(1),
    generator.integers(0, 2**32, HASHES, dtype=np.uint32),
  )


def _minhash(words: list[str]) -> np.ndarray:
  """Compute the minimum of each of 128 hashes over the shingles; a page shorter than one shingle is padded to one."""
  hashed = np.fromiter(map(_word_hash, words), np.uint64, len(words))
  hashed = np.pad(hashed, (0, max(0, SHINGLE - hashed.size)))
  shingles = np.zeros(hashed.size - SHINGLE + 1, np.uint64)
  for place in range(SHINGLE):
    shingles = _mix(shingles ^ hashed[place : place + shingles.size])
  high = (shingles >> np.uint64(32)).astype(np.uint32)
  multiply, add = _multipliers()
  least = np.full(HASHES, 2**32 - 1, np.uint32)
  for start in range(0, high.size, 512):  # fits in a core's cache
    mixed = high[start : start + 512, None] * multiply  # modulo 2^32
    mixed += add
    np.minimum(least, mixed.min(axis=0), out=least)
  return least


def _spans(found: list[str]) -> np.ndarray:
  normal = [" ".join(sentence.lower().split()) for sentence in found]
  spans = max(0, len(normal) - SPAN + 1)
  return np.fromiter((_hash("\n".join(normal[i : i + SPAN])) for i in range(spans)), np.uint64, spans)
