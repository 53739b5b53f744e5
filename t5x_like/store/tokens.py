"""Reads token stores: one split of a corpus, tokenised once, as windows of one long token stream.

A token store has one array, `tokens`, whose items are documents of at least one token (made by
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
    """Read windows of the token stream, across shard boundaries.

    Args:
      starts_B: the first token of each window.
      length: the number of tokens of a window.

    Returns:
      The tokens, int32 [B, length].

    Raises: see `read_ranges`.
    """
    starts_B = np.asarray(starts_B, np.int64)
    tokens_N = self.read_ranges(TOKENS, starts_B, np.full(starts_B.size, length))
    return tokens_N.reshape(starts_B.size, length).astype(np.int32, copy=False)

  def document_ends(self) -> np.ndarray:
    """Return where every document ends in the token stream: int64 [num_documents], ascending.

    This reads all ends into memory; at scale, use `documents_at` for tokens or `document_spans` for
    documents.
    """
    return self.read_ends(TOKENS)

  def documents_at(self, places_N: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the documents that contain tokens.

    Args:
      places_N: the places of the tokens in the stream.

    Returns:
      The indices of the documents, and their starts and ends in the stream, each int64 [N].
    """
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
    document_N = np.zeros_like(place_N)
    document_start_N = np.zeros_like(place_N)
    document_end_N = np.zeros_like(place_N)
    open_n = np.arange(place_N.size)  # tokens whose document is not found yet
    bisect = False
    while open_n.size:
      low = low_N[open_n]
      high = high_N[open_n]
      start = start_N[open_n]
      end = end_N[open_n]
      place = place_N[open_n]
      share = 0.5 if bisect else (place - start) / np.maximum(end - start, 1)
      size = np.minimum(high - low, _BLOCK)
      begin = low + ((high - low) * share).astype(np.int64) - size // 2
      begin = np.clip(begin, low, high - size)
      ends_nK = self._read_ends(shard_N[open_n], begin, size)
      is_before_nK = (ends_nK <= place[:, None]) & (np.arange(_BLOCK) < size[:, None])
      num_before = np.count_nonzero(is_before_nK, axis=1)
      is_left = (num_before == 0) & (begin > low)  # of the block
      is_right = num_before == size
      is_damaged = is_right & (begin + size >= high)
      if is_damaged.any():
        self._refuse_ends(int(shard_N[open_n[is_damaged][0]]))
      row = np.arange(open_n.size)
      high_N[open_n[is_left]] = begin[is_left] + 1
      end_N[open_n[is_left]] = ends_nK[is_left, 0]
      low_N[open_n[is_right]] = (begin + size)[is_right]
      start_N[open_n[is_right]] = ends_nK[row, size - 1][is_right]
      previous_end = np.where(num_before > 0, ends_nK[row, np.maximum(num_before - 1, 0)], start)
      next_end = ends_nK[row, np.minimum(num_before, _BLOCK - 1)]
      is_found = ~(is_left | is_right)
      found_n = open_n[is_found]
      document_N[found_n] = (begin + num_before)[is_found]
      document_start_N[found_n] = previous_end[is_found]
      document_end_N[found_n] = next_end[is_found]
      open_n = open_n[~is_found]
      bisect = not bisect
    return (
      document_N + shards.first_item[shard_N],
      document_start_N + first_token_N,
      document_end_N + first_token_N,
    )

  def document_spans(self, documents_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where documents begin and end in the stream, each int64 [N]."""
    shards = self._shards
    shard_N = np.searchsorted(shards.first_item, documents_N, side="right") - 1
    number_N = documents_N - shards.first_item[shard_N]  # in the shard
    ends_N2 = self._read_ends(
      shard_N, np.maximum(number_N - 1, 0), np.minimum(number_N + 1, 2), width=2
    )
    first_token_N = self._first_token[shard_N]
    start_N = np.where(number_N > 0, ends_N2[:, 0], 0)
    end_N = ends_N2[np.arange(documents_N.size), np.minimum(number_N, 1)]
    return start_N + first_token_N, end_N + first_token_N

  def document_sizes(self, documents_N: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sizes of consecutive documents.

      Args:
        documents_N: the first documents.
        count: the number of documents from each of them on.

      Returns:
    @@, 0 past the last document of the shard.
    """
    shards = self._shards
    shard_N = np.searchsorted(shards.first_item, documents_N, side="right") - 1
    number_N = documents_N - shards.first_item[shard_N]  # in the shard
    size_N = np.minimum(shards.first_item[shard_N + 1] - documents_N, count)
    has_previous_N = number_N > 0
    ends_NK = self._read_ends(
      shard_N, number_N - has_previous_N, size_N + has_previous_N, width=count + 1
    )
    # the first document of a shard begins at 0
    ends_NK[~has_previous_N] = np.roll(ends_NK[~has_previous_N], 1, axis=1)
    sizes_NK = np.where(np.arange(count) < size_N[:, None], np.diff(ends_NK, axis=1), 0)
    return ends_NK[:, 0] + self._first_token[shard_N], sizes_NK

  def document_begins(self, starts_B: np.ndarray, length: int) -> np.ndarray:
    """Mark the tokens at which a document begins: windows' first tokens [B] -> bool [B, length]."""
    shards = self._shards
    begins_BW = np.zeros((starts_B.size, length), bool)
    document_B, begin_B, end_B = self.documents_at(starts_B)
    begins_BW[begin_B == starts_B, :1] = True
    # windows in which the next document begins
    row_n = np.flatnonzero(end_B < starts_B + length)
    document_n = document_B[row_n]
    while row_n.size:
      shard_n = np.searchsorted(shards.first_item, document_n, side="right") - 1
      number_n = document_n - shards.first_item[shard_n]  # in the shard
      size_n = np.minimum(shards.first_item[shard_n + 1] - document_n, _FOLLOWING)
      ends_nK = self._read_ends(shard_n, number_n, size_n, width=_FOLLOWING)
      ends_nK += self._first_token[shard_n][:, None]
      place_nK = ends_nK - starts_B[row_n][:, None]
      is_inside_nK = (place_nK < length) & (np.arange(_FOLLOWING) < size_n[:, None])
      row_N, column_N = np.nonzero(is_inside_nK)
      begins_BW[row_n[row_N], place_nK[row_N, column_N]] = True
      continues_n = np.count_nonzero(is_inside_nK, axis=1) == size_n
      row_n = row_n[continues_n]
      document_n = (document_n + size_n)[continues_n]
    return begins_BW

  def _read_ends(
    self, shard_N: np.ndarray, begin_N: np.ndarray, size_N: np.ndarray, width: int = _BLOCK
  ) -> np.ndarray:
    """Read document ends [begin, begin + size) of shards: int64 [N, width], 0 beyond `size`."""
    ends_NK = np.zeros((shard_N.size, width), "<i8")
    if not ends_NK.size:
      return ends_NK
    buffer = memoryview(ends_NK).cast("B")
    row_bytes = width * _BYTES
    offset_N = _BYTES * begin_N
    bytes_N = _BYTES * size_N
    columns = (shard_N.tolist(), offset_N.tolist(), bytes_N.tolist())
    reads = []
    for row, (shard, offset, size) in enumerate(zip(*columns, strict=True)):
      first = row * row_bytes
      reads.append((shard, offset, buffer[first : first + size]))
    self._files.fill(self._shards, _ENDS, reads)
    return ends_NK

  def _refuse_ends(self, shard: int) -> None:
    name = self._files.name(self._shards.file(_ENDS, shard))
    raise UserError(
      f"{name}: found ends that do not reach the shard's last token: copy the file "
      f"again or {REMEDY}"
    )
