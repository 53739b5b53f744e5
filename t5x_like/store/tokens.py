"""Token stores: one split of a corpus, tokenised once, read as random windows of one long token
stream.

A store of one array, `tokens`, whose items are documents of at least one token (made by
`corpora/tokens.py`).

Boundaries of documents are not held in memory. A shard's document ends are sorted, so interpolation
search locates the document of a token. The fraction of the shard's tokens before the token
estimates the document's place in the file; the block of ends read there either contains it or
narrows the range. Every other step bisects the range instead, so no corpus takes more than a few
steps. All tokens of a batch take each step together.
"""

import numpy as np

from t5x_like.errors import UserError
from t5x_like.files import file_names
from t5x_like.store import manifest as manifests
from t5x_like.store.manifest import REMEDY
from t5x_like.store.reader import Store
from t5x_like.store.shards import SHARDS_TABLE, array_directories

TOKENS = "tokens"
_ENDS = array_directories(TOKENS)[1]
_BLOCK = 256  # ends read per step: half a page
_FOLLOWING = 32  # ends read at once for the consecutive documents of a window
_BYTES = 8  # per end


class TokenStore(Store):
  """An open token store; open it with `TokenStore.open`.

  Attributes:
    append_eos: whether EOS ends every document.

  Raises:
    UserError: the store holds something else.
  """

  def __init__(self, path, files, text, manifest, shards, verification):
    super().__init__(path, files, text, manifest, shards, verification)
    where = files.name(manifests.FILE)
    arrays = [(array.name, array.dtype, array.width) for array in manifest.arrays]
    if arrays not in ([(TOKENS, "uint16", 1)], [(TOKENS, "int32", 1)]):
      raise UserError(
        f"{where}: arrays: found {file_names.quote_name(arrays)}, expected ids named {TOKENS!r}: "
        f"{REMEDY}"
      )
    self.append_eos = manifest.facts.get("append_eos")
    if not isinstance(self.append_eos, bool):
      raise UserError(
        f"{where}: facts.append_eos: found {self.append_eos!r:.80}, expected a bool: {REMEDY}"
      )
    self._first_token = shards.first_value[TOKENS]
    tokens_S = np.diff(self._first_token)
    documents_S = np.diff(shards.first_item)
    if (wrong := np.flatnonzero(documents_S > tokens_S)).size:
      raise UserError(
        f"{files.name(SHARDS_TABLE)}: row {wrong[0]}: found {documents_S[wrong[0]]} documents, "
        f"expected 1 to {tokens_S[wrong[0]]} (the shard's tokens): {REMEDY}"
      )

  @property
  def num_tokens(self) -> int:
    return self.manifest.arrays[0].num_values

  @property
  def num_documents(self) -> int:
    return self.num_items

  def windows(self, starts_B: np.ndarray, length: int) -> np.ndarray:
    """Read windows of the token stream, across shard boundaries: first tokens [B] -> int32 [B,
    length].

    Raises: see `read_ranges`.
    """
    starts_B = np.asarray(starts_B, np.int64)
    window_N = self.read_ranges(TOKENS, starts_B, np.full(starts_B.size, length))
    return window_N.reshape(starts_B.size, length).astype(np.int32, copy=False)

  def document_ends(self) -> np.ndarray:
    """Return where every document ends in the token stream, ascending up to `num_tokens`: int64
    [num_documents].

    This reads all ends into memory; at scale, use `documents_at` for tokens or `document_spans` for
    documents.
    """
    return self.read_ends(TOKENS)

  def documents_at(self, places_N: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the documents that contain tokens: places in the stream [N] -> (indices, starts, ends),
    each int64 [N]."""
    shards = self._shards
    places_N = np.asarray(places_N, np.int64)
    shard_N = np.searchsorted(self._first_token, places_N, side="right") - 1
    first_token_N = self._first_token[shard_N]
    place_N = places_N - first_token_N
    # The document is in [low, high) of its shard; document `low - 1` ends at `start`, document
    # `high - 1` at `end`.
    low_N = np.zeros_like(place_N)
    high_N = shards.first_item[shard_N + 1] - shards.first_item[shard_N]
    start_N = np.zeros_like(place_N)
    end_N = self._first_token[shard_N + 1] - first_token_N
    found_3N = np.zeros((3, place_N.size), np.int64)
    open_n = np.arange(place_N.size)
    halve = False
    while open_n.size:
      low, high, start, end, place = (x[open_n] for x in (low_N, high_N, start_N, end_N, place_N))
      share = 0.5 if halve else (place - start) / np.maximum(end - start, 1)
      size = np.minimum(high - low, _BLOCK)
      begin = np.clip(low + ((high - low) * share).astype(np.int64) - size // 2, low, high - size)
      ends_nK = self._ends(shard_N[open_n], begin, size)
      before = np.count_nonzero(
        (ends_nK <= place[:, None]) & (np.arange(_BLOCK) < size[:, None]), axis=1
      )
      left = (before == 0) & (begin > low)
      right = before == size
      if (damaged := right & (begin + size >= high)).any():
        self._refuse(int(shard_N[open_n[damaged][0]]))
      row = np.arange(open_n.size)
      high_N[open_n[left]], end_N[open_n[left]] = begin[left] + 1, ends_nK[left, 0]
      low_N[open_n[right]], start_N[open_n[right]] = (
        (begin + size)[right],
        ends_nK[row, size - 1][right],
      )
      previous = np.where(before > 0, ends_nK[row, np.maximum(before - 1, 0)], start)
      found_3n = np.stack([begin + before, previous, ends_nK[row, np.minimum(before, _BLOCK - 1)]])
      done = ~(left | right)
      found_3N[:, open_n[done]] = found_3n[:, done]
      open_n = open_n[~done]
      halve = not halve
    return (
      found_3N[0] + shards.first_item[shard_N],
      found_3N[1] + first_token_N,
      found_3N[2] + first_token_N,
    )

  def document_spans(self, documents_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where documents begin and end in the stream: indices [N] -> (starts, ends), each int64
    [N]."""
    shards = self._shards
    shard_N = np.searchsorted(shards.first_item, documents_N, side="right") - 1
    inside_N = documents_N - shards.first_item[shard_N]
    ends_N2 = self._ends(shard_N, np.maximum(inside_N - 1, 0), np.minimum(inside_N + 1, 2), 2)
    row_N = np.arange(documents_N.size)
    first_token_N = self._first_token[shard_N]
    start_N = np.where(inside_N > 0, ends_N2[:, 0], 0)
    return start_N + first_token_N, ends_N2[row_N, np.minimum(inside_N, 1)] + first_token_N

  def document_sizes(self, documents_N: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sizes of consecutive documents: first documents [N] -> (their starts in the
    stream, int64 [N]; tokens of `count` documents from there on, int64 [N, count], 0 past the
    shard's last document)."""
    shards = self._shards
    shard_N = np.searchsorted(shards.first_item, documents_N, side="right") - 1
    inside_N = documents_N - shards.first_item[shard_N]
    size_N = np.minimum(shards.first_item[shard_N + 1] - documents_N, count)
    before_N = inside_N > 0
    ends_NK = self._ends(shard_N, inside_N - before_N, size_N + before_N, count + 1)
    # the first document of a shard begins at 0
    ends_NK[~before_N] = np.roll(ends_NK[~before_N], 1, axis=1)
    sizes_NK = np.where(np.arange(count) < size_N[:, None], np.diff(ends_NK, axis=1), 0)
    return ends_NK[:, 0] + self._first_token[shard_N], sizes_NK

  def document_begins(self, starts_B: np.ndarray, length: int) -> np.ndarray:
    """Mark the tokens of windows at which a document begins: first tokens [B] -> bool [B,
    length]."""
    shards = self._shards
    begins_BW = np.zeros((starts_B.size, length), bool)
    document_B, begin_B, end_B = self.documents_at(starts_B)
    begins_BW[begin_B == starts_B, :1] = True
    row_n = np.flatnonzero(end_B < starts_B + length)  # windows in which the next document begins
    document_n = document_B[row_n]
    while row_n.size:
      shard_n = np.searchsorted(shards.first_item, document_n, side="right") - 1
      inside_n = document_n - shards.first_item[shard_n]
      size_n = np.minimum(shards.first_item[shard_n + 1] - document_n, _FOLLOWING)
      ends_nK = (
        self._ends(shard_n, inside_n, size_n, _FOLLOWING) + self._first_token[shard_n][:, None]
      )
      place_nK = ends_nK - starts_B[row_n][:, None]
      within_nK = (place_nK < length) & (np.arange(_FOLLOWING) < size_n[:, None])
      row_N, column_N = np.nonzero(within_nK)
      begins_BW[row_n[row_N], place_nK[row_N, column_N]] = True
      more_n = np.count_nonzero(within_nK, axis=1) == size_n
      row_n = row_n[more_n]
      document_n = (document_n + size_n)[more_n]
    return begins_BW

  def _ends(
    self, shard_N: np.ndarray, begin_N: np.ndarray, size_N: np.ndarray, most: int = _BLOCK
  ) -> np.ndarray:
    """Read document ends [begin, begin + size) of shards: int64 [N, most], 0 beyond `size`."""
    ends_NK = np.zeros((shard_N.size, most), "<i8")
    data = memoryview(ends_NK).cast("B") if ends_NK.size else memoryview(b"")
    rows = zip(
      shard_N.tolist(), (_BYTES * begin_N).tolist(), (_BYTES * size_N).tolist(), strict=True
    )
    reads = [
      (shard, offset, data[row * most * _BYTES : row * most * _BYTES + size])
      for row, (shard, offset, size) in enumerate(rows)
    ]
    self._files.fill(self._shards, _ENDS, reads)
    return ends_NK

  def _refuse(self, shard: int) -> None:
    name = self._files.name(self._shards.file(_ENDS, shard))
    raise UserError(
      f"{name}: found ends that do not reach the shard's last token: copy the file "
      f"again or {REMEDY}"
    )
