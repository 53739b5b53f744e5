"""Rows that pack several whole chunks, for corpora whose documents are shorter than a row.

`document_chunks.py` cuts the chunks. Each block of consecutive documents is packed independently.
The last chunks of its documents are placed longest first, each in the row where it leaves the least
room (best-fit decreasing). Every earlier chunk fills a separate row. Example i is a row, and
every chunk is in exactly one row. The store determines the contents of a row through two tables:
the number of rows before each block, and one byte per document (two in larger blocks) for its row
within the block. Both are computed when the rows are first opened, at about a million documents per
second, and cached.

A block has 256 documents, or more if it would otherwise average fewer than 32 rows. Worked example:
rows of 8, chunks that need 2 positions besides their tokens, and documents of 9, 3, 1 and 4 tokens.
Their chunks, 6 and 3, 3, 1, 4, need 8 and 5, 5, 3, 6 positions. The longest last chunk comes first:
document 3 goes to row 0, documents 0 and 1 to rows 1 and 2, and document 2 to the rest of row 1.
Row 3 holds the beginning of document 0.
"""

import numpy as np

from t5x_like.data.document_chunks import BLOCK, Chunks
from t5x_like.store.tokens import TokenStore

_MIN_AVERAGE_ROWS = 32  # per block
_LARGEST_BLOCK = 2**12


class ChunkRows(Chunks):
  """The rows of an open store.

  Args:
    tokens: the store.
    room: positions per row.
    overhead: positions that a chunk needs besides its tokens.
    spare: further positions for a chunk of at least `half` tokens; the largest chunk has `room -
      overhead - spare` tokens.
    max_chunks: maximum chunks per row.
    min_tokens: see `Chunks`.

  Attributes:
    num_examples: number of rows.
    half: half the largest chunk's tokens.

  Raises:
    UserError: as `Chunks`.
  """

  def __init__(
    self,
    tokens: TokenStore,
    room: int,
    overhead: int,
    *,
    spare: int = 0,
    max_chunks: int = 2**15,
    min_tokens: int = 1,
  ):
    length = room - overhead - spare
    documents = max(1, tokens.num_documents)
    self._room = room
    self._overhead = overhead
    self._spare = spare
    self._max_chunks = max_chunks
    self.half = length // 2
    mean = tokens.num_tokens / documents + overhead
    block = 2 ** int(np.ceil(np.log2(max(1, _MIN_AVERAGE_ROWS * room / mean))))
    super().__init__(tokens, length, min_tokens, int(np.clip(block, BLOCK, _LARGEST_BLOCK)))

  def members(self, row_B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the chunks of rows int64 [B], row by row.

    Returns:
      (index into `row_B`, document, first token in the stream, tokens), each int64 [n].
    """
    within_B, document_B, start_BK, sizes_BK = self._blocks(row_B)
    count_BK = self._count(sizes_BK)
    number_BK = document_B[:, None] + np.arange(self._block)
    number_BK = np.minimum(number_BK, self.tokens.num_documents - 1)
    # The row of each document's last chunk.
    last_row_BK = self._counts["rows"][number_BK].astype(np.int64)
    last_row_BK[count_BK == 0] = -1
    num_packed_B = last_row_BK.max(axis=1) + 1
    # The chunks that each fill a row, up to the end of each document.
    full_ends_BK = np.cumsum(np.maximum(count_BK - 1, 0), axis=1)
    # Rows of packed chunks come first in a block; for these, `full_B` is negative.
    full_B = within_B - num_packed_B
    is_full_B = full_B >= 0
    full_document_B = np.count_nonzero(full_ends_BK <= full_B[:, None], axis=1)
    is_member_BK = last_row_BK == within_B[:, None]
    is_full_document_BK = np.arange(self._block) == full_document_B[:, None]
    is_member_BK |= is_full_document_BK & is_full_B[:, None]
    row_n, position_n = np.nonzero(is_member_BK)
    count_n = count_BK[row_n, position_n]
    full_before_n = full_ends_BK[row_n, position_n] - count_n + 1
    nth_n = np.where(is_full_B[row_n], full_B[row_n] - full_before_n, count_n - 1)
    begin_n, size_n = self._cut(sizes_BK[row_n, position_n], nth_n)
    return row_n, document_B[row_n] + position_n, start_BK[row_n, position_n] + begin_n, size_n

  def _facts(self) -> dict[str, int]:
    return super()._facts() | {
      "room": self._room,
      "beside": self._overhead,
      "most": self._max_chunks,
      "block": self._block,
    }

  def _count_all(self) -> dict[str, np.ndarray]:
    dtype = np.uint8 if self._block <= 256 else np.uint16
    self._rows = np.zeros(self.tokens.num_documents, dtype)
    return super()._count_all() | {"rows": self._rows}

  def _count_examples(self, sizes_NK: np.ndarray, first: int, end: int) -> np.ndarray:
    count_NK = self._count(sizes_NK)
    _, last_size_NK = self._cut(sizes_NK, count_NK - 1)
    spare_NK = np.where(last_size_NK >= self.half, self._spare, 0)
    need_NK = last_size_NK + self._overhead + spare_NK
    row_NK = best_fit(np.where(count_NK > 0, need_NK, 0), self._room, self._max_chunks)
    self._rows[first : min(end, first + row_NK.size)] = row_NK.reshape(-1)[: end - first]
    packed_N = np.where(count_NK > 0, row_NK + 1, 0).max(axis=1)
    return packed_N + np.maximum(count_NK - 1, 0).sum(axis=1)


def best_fit(need_NK: np.ndarray, room: int, max_items: int) -> np.ndarray:
  """Pack N independent lists of items into rows by best-fit decreasing.

  Args:
    need_NK: integers [N, K], the positions each item needs, at most `room`; 0 marks an absent item.
    room: positions per row.
    max_items: maximum items per row.

  Returns:
    int64 [N, K], each item's row within its list, from 0.
  """
  N, K = need_NK.shape
  order_NK = np.argsort(-need_NK, axis=1, kind="stable")
  list_N = np.arange(N)
  used_N = np.zeros(N, np.int64)
  row_NK = np.zeros((N, K), np.int64)
  free_NR = np.full((N, 1), room, np.int32)
  items_left_NR = np.full((N, 1), max_items, np.int32)
  for item_N in order_NK.T:
    need_N = need_NK[list_N, item_N]
    if not need_N.any():
      break
    open_rows = int(used_N.max()) + 1
    if open_rows > free_NR.shape[1]:
      further_rows = ((0, 0), (0, free_NR.shape[1]))
      free_NR = np.pad(free_NR, further_rows, constant_values=room)
      items_left_NR = np.pad(items_left_NR, further_rows, constant_values=max_items)
    remaining_NR = free_NR[:, :open_rows] - need_N[:, None].astype(np.int32)
    # Unused rows come last.
    best_N = np.argmin(np.where(remaining_NR >= 0, remaining_NR, room + 1), axis=1)
    is_item_N = need_N > 0
    row_NK[list_N, item_N] = best_N
    used_N = np.maximum(used_N, np.where(is_item_N, best_N + 1, 0))
    items_left_NR[list_N, best_N] -= is_item_N
    has_items_left_N = items_left_NR[list_N, best_N] > 0
    free_NR[list_N, best_N] = np.where(has_items_left_N, free_NR[list_N, best_N] - need_N, -1)
  return row_NK
