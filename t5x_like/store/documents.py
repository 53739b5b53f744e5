"""Lookup of document boundaries in the files of a token store, without holding them in memory.

A shard's document ends are sorted, so interpolation search locates the document of a token. The fraction of the shard's
tokens before the token estimates the document's place in the file; the block of ends read there either contains it or
narrows the range. Every other step bisects the range instead, so no corpus takes more than a few steps. All tokens of a
batch take each step together.
"""

import numpy as np

from t5x_like.errors import UserError
from t5x_like.files.ranges import Files
from t5x_like.store.manifest import REMEDY
from t5x_like.store.shards import Shards

_BLOCK = 256  # ends read per step: half a page
_FOLLOWING = 32  # ends read at once for the consecutive documents of a window
_BYTES = 8  # per end


class Documents:
  """The documents of the shards of a store."""

  def __init__(self, files: Files, shards: Shards):
    self._files, self._shards = files, shards

  def at(self, places_N: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the documents that contain tokens: places in the stream [N] -> (indices, starts, ends), each int64 [N]."""
    shards = self._shards
    shard_N = np.searchsorted(shards.first_token, places_N, side="right") - 1
    first_token_N = shards.first_token[shard_N]
    place_N = places_N - first_token_N
    # The document is in [low, high) of its shard; document `low - 1` ends at `start`, document `high - 1` at `end`.
    low_N, high_N = np.zeros_like(place_N), shards.first_document[shard_N + 1] - shards.first_document[shard_N]
    start_N, end_N = np.zeros_like(place_N), shards.first_token[shard_N + 1] - first_token_N
    found_3N = np.zeros((3, place_N.size), np.int64)
    open_n, halve = np.arange(place_N.size), False
    while open_n.size:
      low, high, start, end, place = (x[open_n] for x in (low_N, high_N, start_N, end_N, place_N))
      share = 0.5 if halve else (place - start) / np.maximum(end - start, 1)
      size = np.minimum(high - low, _BLOCK)
      begin = np.clip(low + ((high - low) * share).astype(np.int64) - size // 2, low, high - size)
      ends_nK = self._read(shard_N[open_n], begin, size)
      before = np.count_nonzero((ends_nK <= place[:, None]) & (np.arange(_BLOCK) < size[:, None]), axis=1)
      left, right = (before == 0) & (begin > low), before == size
      if (damaged := right & (begin + size >= high)).any():
        self._refuse(int(shard_N[open_n[damaged][0]]))
      row = np.arange(open_n.size)
      high_N[open_n[left]], end_N[open_n[left]] = begin[left] + 1, ends_nK[left, 0]
      low_N[open_n[right]], start_N[open_n[right]] = (begin + size)[right], ends_nK[row, size - 1][right]
      previous = np.where(before > 0, ends_nK[row, np.maximum(before - 1, 0)], start)
      found_3n = np.stack([begin + before, previous, ends_nK[row, np.minimum(before, _BLOCK - 1)]])
      done = ~(left | right)
      found_3N[:, open_n[done]] = found_3n[:, done]
      open_n, halve = open_n[~done], not halve
    return found_3N[0] + shards.first_document[shard_N], found_3N[1] + first_token_N, found_3N[2] + first_token_N

  def spans(self, documents_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where documents begin and end in the stream: indices [N] -> (starts, ends), each int64 [N]."""
    shards = self._shards
    shard_N = np.searchsorted(shards.first_document, documents_N, side="right") - 1
    inside_N = documents_N - shards.first_document[shard_N]
    ends_N2 = self._read(shard_N, np.maximum(inside_N - 1, 0), np.minimum(inside_N + 1, 2), 2)
    row_N, first_token_N = np.arange(documents_N.size), shards.first_token[shard_N]
    start_N = np.where(inside_N > 0, ends_N2[:, 0], 0)
    return start_N + first_token_N, ends_N2[row_N, np.minimum(inside_N, 1)] + first_token_N

  def sizes(self, documents_N: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sizes of consecutive documents: first documents [N] -> (their starts in the stream, int64 [N]; tokens
    of `count` documents from there on, int64 [N, count], 0 past the shard's last document)."""
    shards = self._shards
    shard_N = np.searchsorted(shards.first_document, documents_N, side="right") - 1
    inside_N = documents_N - shards.first_document[shard_N]
    size_N, before_N = np.minimum(shards.first_document[shard_N + 1] - documents_N, count), inside_N > 0
    ends_NK = self._read(shard_N, inside_N - before_N, size_N + before_N, count + 1)
    ends_NK[~before_N] = np.roll(ends_NK[~before_N], 1, axis=1)  # the first document of a shard begins at 0
    sizes_NK = np.where(np.arange(count) < size_N[:, None], np.diff(ends_NK, axis=1), 0)
    return ends_NK[:, 0] + shards.first_token[shard_N], sizes_NK

  def begins(self, starts_B: np.ndarray, length: int) -> np.ndarray:
    """Mark the tokens of windows at which a document begins: first tokens [B] -> bool [B, length]."""
    shards, begins_BW = self._shards, np.zeros((starts_B.size, length), bool)
    document_B, begin_B, end_B = self.at(starts_B)
    begins_BW[begin_B == starts_B, :1] = True
    row_n = np.flatnonzero(end_B < starts_B + length)  # windows in which the next document begins
    document_n = document_B[row_n]
    while row_n.size:
      shard_n = np.searchsorted(shards.first_document, document_n, side="right") - 1
      inside_n = document_n - shards.first_document[shard_n]
      size_n = np.minimum(shards.first_document[shard_n + 1] - document_n, _FOLLOWING)
      ends_nK = self._read(shard_n, inside_n, size_n, _FOLLOWING) + shards.first_token[shard_n][:, None]
      place_nK = ends_nK - starts_B[row_n][:, None]
      within_nK = (place_nK < length) & (np.arange(_FOLLOWING) < size_n[:, None])
      row_N, column_N = np.nonzero(within_nK)
      begins_BW[row_n[row_N], place_nK[row_N, column_N]] = True
      more_n = np.count_nonzero(within_nK, axis=1) == size_n
      row_n, document_n = row_n[more_n], (document_n + size_n)[more_n]
    return begins_BW

  def ends(self) -> np.ndarray:
    """Return where every document ends in the stream: int64 [documents], all in memory."""
    shards = self._shards
    ends_D = np.empty(shards.first_document[-1], "<i8")
    data, bounds = memoryview(ends_D).cast("B"), (_BYTES * shards.first_document).tolist()
    reads = [(shard, 0, data[bounds[shard] : bounds[shard + 1]]) for shard in range(len(shards))]
    self._files.fill(shards, "document_ends", reads)
    return ends_D + np.repeat(shards.first_token[:-1], np.diff(shards.first_document))

  def _read(self, shard_N: np.ndarray, begin_N: np.ndarray, size_N: np.ndarray, most: int = _BLOCK) -> np.ndarray:
    """Read document ends [begin, begin + size) of shards: int64 [N, most], 0 beyond `size`."""
    ends_NK = np.zeros((shard_N.size, most), "<i8")
    data = memoryview(ends_NK).cast("B") if ends_NK.size else memoryview(b"")
    rows = zip(shard_N.tolist(), (_BYTES * begin_N).tolist(), (_BYTES * size_N).tolist(), strict=True)
    reads = [
      (shard, offset, data[row * most * _BYTES : row * most * _BYTES + size])
      for row, (shard, offset, size) in enumerate(rows)
    ]
    self._files.fill(self._shards, "document_ends", reads)
    return ends_NK

  def _refuse(self, shard: int) -> None:
    name = self._files.name(self._shards.file("document_ends", shard))
    raise UserError(f"{name}: found ends that do not reach the shard's last token: copy the file again or {REMEDY}")
