"""Read token stores: one split of a corpus, tokenised once, as windows of one long token stream.

A token store has one array, `tokens`, whose items are documents of at least one token (made by
`corpora/tokens.py`).

Boundaries of documents are not held in memory. A shard's document ends are sorted, so interpolation
search locates the document of a token. The fraction of the shard's tokens before the token
estimates the document's position in the file; the block of ends read there either contains it or
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
_, _ENDS = array_directories(TOKENS)  # the directory of the document ends
_BLOCK = 256  # ends read per step: 2 KiB, half a page of memory
_NEXT_ENDS = 32  # ends read at once for the consecutive documents of a window
_END_BYTES = 8


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
    crowded_shards = np.flatnonzero(documents_S > tokens_S)
    if crowded_shards.size:
      row = crowded_shards[0]
      raise UserError(
        f"{files.name(SHARDS_TABLE)}: row {row}: found {documents_S[row]} documents, "
        f"expected 1 to {tokens_S[row]} (the shard's tokens): {REMEDY}"
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

    Raises:
      As `read_ranges`.
    """
    starts_B = np.asarray(starts_B, np.int64)
    tokens_N = self.read_ranges(TOKENS, starts_B, np.full(starts_B.size, length))
    tokens_BT = tokens_N.reshape(starts_B.size, length)
    return tokens_BT.astype(np.int32, copy=False)

  def document_ends(self) -> np.ndarray:
    """Return where every document ends in the token stream: int64 [num_documents], ascending.

    This reads all ends into memory; at scale, use `documents_at` for tokens or `document_spans` for
    documents.
    """
    return self.read_ends(TOKENS)

  def documents_at(self, positions_N: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the documents that contain tokens.

    Args:
      positions_N: the positions of the tokens in the stream.

    Returns:
      The indices of the documents, and their starts and ends in the stream, each int64 [N].
    """
    shards = self._shards
    positions_N = np.asarray(positions_N, np.int64)
    shard_N = np.searchsorted(self._first_token, positions_N, side="right") - 1
    first_token_N = self._first_token[shard_N]
    position_N = positions_N - first_token_N
    num_documents_N = shards.first_item[shard_N + 1] - shards.first_item[shard_N]
    num_tokens_N = self._first_token[shard_N + 1] - first_token_N
    search = _DocumentSearch(position_N, num_documents_N, num_tokens_N)
    bisect = False
    while search.open_n.size:
      begin_n, size_n = search.choose_blocks(bisect)
      ends_nK = self._read_ends(shard_N[search.open_n], begin_n, size_n)
      damaged_n = search.narrow(begin_n, size_n, ends_nK)
      if damaged_n.size:
        self._refuse_ends(int(shard_N[damaged_n[0]]))
      bisect = not bisect
    return (
      search.low_N + shards.first_item[shard_N],
      search.start_N + first_token_N,
      search.end_N + first_token_N,
    )

  def document_spans(self, documents_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where documents begin and end in the stream, each int64 [N]."""
    shards = self._shards
    shard_N = np.searchsorted(shards.first_item, documents_N, side="right") - 1
    number_N = documents_N - shards.first_item[shard_N]  # in the shard
    previous_N = np.maximum(number_N - 1, 0)
    num_ends_N = np.minimum(number_N + 1, 2)
    ends_N2 = self._read_ends(shard_N, previous_N, num_ends_N, width=2)
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
      The starts of the first documents in the stream, int64 [N], and the sizes, int64 [N, count], 0
      past the last document of the shard.
    """
    shards = self._shards
    shard_N = np.searchsorted(shards.first_item, documents_N, side="right") - 1
    number_N = documents_N - shards.first_item[shard_N]  # in the shard
    size_N = np.minimum(shards.first_item[shard_N + 1] - documents_N, count)
    has_previous_N = number_N > 0
    begin_N = number_N - has_previous_N
    num_ends_N = size_N + has_previous_N
    ends_NK = self._read_ends(shard_N, begin_N, num_ends_N, width=count + 1)
    # A shard's first document has no previous end; its row is shifted, so that a 0 takes its place.
    ends_NK[~has_previous_N] = np.roll(ends_NK[~has_previous_N], 1, axis=1)
    is_document_NK = np.arange(count) < size_N[:, None]
    sizes_NK = np.where(is_document_NK, np.diff(ends_NK, axis=1), 0)
    starts_N = ends_NK[:, 0] + self._first_token[shard_N]
    return starts_N, sizes_NK

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
      size_n = np.minimum(shards.first_item[shard_n + 1] - document_n, _NEXT_ENDS)
      ends_nK = self._read_ends(shard_n, number_n, size_n, width=_NEXT_ENDS)
      ends_nK += self._first_token[shard_n][:, None]
      position_nK = ends_nK - starts_B[row_n][:, None]
      is_inside_nK = (position_nK < length) & (np.arange(_NEXT_ENDS) < size_n[:, None])
      row_N, column_N = np.nonzero(is_inside_nK)
      begins_BW[row_n[row_N], position_nK[row_N, column_N]] = True
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
    row_bytes = width * _END_BYTES
    offset_N = _END_BYTES * begin_N
    bytes_N = _END_BYTES * size_N
    columns = (shard_N.tolist(), offset_N.tolist(), bytes_N.tolist())
    reads = []
    for row, (shard, offset, size) in enumerate(zip(*columns, strict=True)):
      first = row * row_bytes
      reads.append((shard, offset, buffer[first : first + size]))
    self._files.fill(self._shards, _ENDS, reads)
    return ends_NK

  def _refuse_ends(self, shard: int) -> None:
    """Raise UserError for a shard whose document ends are damaged."""
    name = self._files.name(self._shards.file(_ENDS, shard))
    raise UserError(
      f"{name}: found ends that do not reach the shard's last token: copy the file "
      f"again or {REMEDY}"
    )


class _DocumentSearch:
  """An interpolation search for the documents of many tokens, each in its shard.

  Attributes:
    open_n: the indices of the tokens whose document is not found yet.
    low_N, high_N: the document is in [low, high); when found, it is `low`.
    start_N, end_N: where document `low - 1` and document `high - 1` end, in tokens of the shard.
  """

  def __init__(self, position_N: np.ndarray, num_documents_N: np.ndarray, num_tokens_N: np.ndarray):
    self._position_N = position_N
    self.open_n = np.arange(position_N.size)
    self.low_N = np.zeros_like(position_N)
    self.high_N = num_documents_N
    self.start_N = np.zeros_like(position_N)
    self.end_N = num_tokens_N

  def choose_blocks(self, bisect: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return (the first end, the number of ends) of the block to read for each open token.

    Args:
      bisect: whether the block is in the middle of the range, not where the token's position
        suggests.
    """
    low_n = self.low_N[self.open_n]
    high_n = self.high_N[self.open_n]
    start_n = self.start_N[self.open_n]
    end_n = self.end_N[self.open_n]
    if bisect:
      share_n = 0.5
    else:
      share_n = (self._position_N[self.open_n] - start_n) / np.maximum(end_n - start_n, 1)
    size_n = np.minimum(high_n - low_n, _BLOCK)
    center_n = low_n + ((high_n - low_n) * share_n).astype(np.int64)
    begin_n = np.clip(center_n - size_n // 2, low_n, high_n - size_n)
    return begin_n, size_n

  def narrow(self, begin_n: np.ndarray, size_n: np.ndarray, ends_nK: np.ndarray) -> np.ndarray:
    """Narrow the ranges of open tokens by the ends of a block; close those that are found.

    Returns:
      The indices of tokens after the last end of their shard, which is then damaged.
    """
    open_n = self.open_n
    low_n = self.low_N[open_n]
    high_n = self.high_N[open_n]
    start_n = self.start_N[open_n]
    position_n = self._position_N[open_n]
    is_passed_nK = (ends_nK <= position_n[:, None]) & (np.arange(_BLOCK) < size_n[:, None])
    num_passed_n = np.count_nonzero(is_passed_nK, axis=1)
    is_before_n = (num_passed_n == 0) & (begin_n > low_n)  # of the block
    is_after_n = num_passed_n == size_n
    is_damaged_n = is_after_n & (begin_n + size_n >= high_n)
    if is_damaged_n.any():
      return open_n[is_damaged_n]

    row_n = np.arange(open_n.size)
    before_n = open_n[is_before_n]
    self.high_N[before_n] = begin_n[is_before_n] + 1
    self.end_N[before_n] = ends_nK[is_before_n, 0]
    after_n = open_n[is_after_n]
    last_end_n = ends_nK[row_n, size_n - 1]
    self.low_N[after_n] = (begin_n + size_n)[is_after_n]
    self.start_N[after_n] = last_end_n[is_after_n]

    previous_end_n = ends_nK[row_n, np.maximum(num_passed_n - 1, 0)]
    document_start_n = np.where(num_passed_n > 0, previous_end_n, start_n)
    document_end_n = ends_nK[row_n, np.minimum(num_passed_n, _BLOCK - 1)]
    is_inside_n = ~(is_before_n | is_after_n)
    inside_n = open_n[is_inside_n]
    self.low_N[inside_n] = (begin_n + num_passed_n)[is_inside_n]
    self.start_N[inside_n] = document_start_n[is_inside_n]
    self.end_N[inside_n] = document_end_n[is_inside_n]
    self.open_n = open_n[~is_inside_n]
    return open_n[is_damaged_n]
