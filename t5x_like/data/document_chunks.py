"""Chunks of documents as examples, for objectives that must know where documents begin.

A document is cut from its beginning into chunks of `length` tokens; the last may be shorter.
Example i is chunk i of the store, so an epoch has every chunk once. A document's length determines
its number of chunks. Opening the chunks for the first time counts the chunks before every block of
256 documents: it reads all document ends (8 bytes per document) and holds one number per block (a
32nd of a byte per document). The counts of large stores are cached under `data.cache_directory()`,
named by a hash of everything they depend on; if that is not writable, they are counted again. Chunk
i is located by bisection among the blocks and then in the 256 lengths of its block, which are read
on demand.

An EOS that the store appended to every document is not part of it. Worked example, documents of 5,
1 and 4 tokens, chunks of 2: chunks 0 to 2 are tokens 0-1, 2-3 and 4, chunk 3 is token 5, chunks 4
and 5 are tokens 6-7 and 8-9. If a chunk needs at least 2 tokens (`min_tokens`), they are 0-1, 2,
3-4, 6-7 and 8-9. `chunk_rows.py` packs several into a row.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import os
from collections.abc import Callable

import numpy as np

from t5x_like.corpora import progress_files
from t5x_like.data import cache_directory, random
from t5x_like.errors import TransientError, UserError
from t5x_like.files import checked_json
from t5x_like.files.paths import as_path
from t5x_like.quiet_tensorflow import tf
from t5x_like.store.tokens import TOKENS, TokenStore

BLOCK = 256  # documents
_DOCUMENTS_AT_ONCE = 2**16  # documents that are counted together, in whole blocks
_MIN_CACHED_DOCUMENTS = 2**17  # stores of at least this many documents cache their counts
_EDITION = 1  # the version of the cached counts


class Chunks:
  """The chunks of an open store.

  Args:
    tokens: the store.
    length: maximum tokens per chunk.
    min_tokens: minimum tokens per chunk; a shorter last chunk takes tokens from the previous chunk,
      and a shorter document has no chunk.
    block: documents per block.

  Attributes:
    num_examples: number of chunks.
    others: the reader of stretches of other documents.

  Raises:
    UserError: the store is shorter than one chunk, or no document is long enough.
  """

  def __init__(self, tokens: TokenStore, length: int, min_tokens: int = 1, block: int = BLOCK):
    self.tokens = tokens
    self.length = length
    self.min_tokens = min_tokens
    self._block = block
    self._eos = int(tokens.append_eos)
    if tokens.num_tokens < length:
      raise UserError(
        f"{tokens.path}: found {tokens.num_tokens} tokens, expected at least one chunk of "
        f"{length}; shorten the task's lengths or prepare a larger corpus"
      )
    self.others = OtherDocuments(tokens, length)
    self._first_document = tokens.first_items
    blocks_S = -(-np.diff(self._first_document) // block)
    self._first_block = np.concatenate([[0], np.cumsum(blocks_S)])
    self._counts = self._load_or_count()
    self._before = self._counts["before"]
    self.num_examples = int(self._before[-1])
    if not self.num_examples:
      raise UserError(
        f"{tokens.path}: found no document of {min_tokens} tokens or more: prepare another corpus"
      )

  def read(self, example_index_B: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Read the chunks of examples, int64 [B].

    Returns:
      (int32 [B, length], 0 after the chunk; int32 [B], its size).
    """

    def read(index_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
      _, starts, sizes = self.locate(index_B)
      return self._read(starts, sizes)

    return _run_on_host(read, (self.length, None), example_index_B)

  def read_with_others(self, example_index_B: tf.Tensor, key_B: tf.Tensor):
    """Read chunks as `read` does, and for each a stretch of another document.

    The document is drawn by the example's key, uint64 [B].

    Returns:
      (chunk, size, *`OtherDocuments.read`, as int32).
    """
    bits_B2 = tf.cast(random.bits(random.row_keys(5, key_B), 2), tf.uint64)

    def read(index_B: np.ndarray, bits_B2: np.ndarray) -> tuple[np.ndarray, ...]:
      document_B, starts, sizes = self.locate(index_B)
      return *self._read(starts, sizes), *self.others.read(document_B, bits_B2)

    lengths = (self.length, None, self.others.length, None, None, None)
    return _run_on_host(read, lengths, example_index_B, bits_B2)

  def locate(self, index_B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Locate chunks: int64 [B] -> (document, first token in the stream, tokens), each int64 [B]."""
    within_B, first_document_B, start_BK, sizes_BK = self._blocks(index_B)
    ends_BK = np.cumsum(self._count(sizes_BK), axis=1)
    nth_B = np.count_nonzero(ends_BK <= within_B[:, None], axis=1)  # the document in its block
    row_B = np.arange(index_B.size)
    chunks_before_B = np.where(nth_B > 0, ends_BK[row_B, np.maximum(nth_B - 1, 0)], 0)
    begin_B, size_B = self._cut(sizes_BK[row_B, nth_B], within_B - chunks_before_B)
    return first_document_B + nth_B, start_BK[row_B, nth_B] + begin_B, size_B

  def _blocks(self, index_B: np.ndarray) -> tuple[np.ndarray, ...]:
    """Locate the blocks of examples.

    Returns:
      (the example's number within its block, the block's first document, each int64 [B]; the first
      token and the size of its documents in the stream, each int64 [B, K]; size 0 past a shard's
      end).
    """
    block_B = np.searchsorted(self._before, index_B, side="right") - 1
    shard_B = np.searchsorted(self._first_block, block_B, side="right") - 1
    block_in_shard_B = block_B - self._first_block[shard_B]
    document_B = self._first_document[shard_B] + block_in_shard_B * self._block
    start_B, sizes_BK = self.tokens.document_sizes(document_B, self._block)
    start_BK = start_B[:, None] + np.cumsum(sizes_BK, axis=1) - sizes_BK
    return index_B - self._before[block_B], document_B, start_BK, sizes_BK

  def _cut(self, size_N: np.ndarray, nth_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (first token within the document, tokens) of the nth chunk of documents.

    Args:
      size_N: the stored sizes of the documents.
      nth_N: the number of the chunk in each.
    """
    size_N = size_N - self._eos
    last_N = (size_N + self.length - 1) // self.length - 1
    begin_N = np.minimum(nth_N * self.length, size_N - self.min_tokens)
    next_N = np.minimum((nth_N + 1) * self.length, size_N - self.min_tokens)
    end_N = np.where(nth_N < last_N, next_N, size_N)
    return begin_N, end_N - begin_N

  def _count(self, sizes: np.ndarray) -> np.ndarray:
    """Count the chunks of documents of these stored sizes, of any shape."""
    sizes = sizes - self._eos
    return np.where(sizes >= self.min_tokens, (sizes + self.length - 1) // self.length, 0)

  def _load_or_count(self) -> dict[str, np.ndarray]:
    """Return `_count_all()`, from the cache if possible."""
    if self.tokens.num_documents < _MIN_CACHED_DOCUMENTS:
      return self._count_all()
    dependencies = {"edition": _EDITION, "store": self.tokens.fingerprint, **self._facts()}
    dependencies["firsts"] = hashlib.sha256(self._first_document.tobytes()).hexdigest()
    key = checked_json.digest(dependencies)
    file = as_path(cache_directory()) / "chunks" / key[:32]
    cached = progress_files.load_arrays(file)
    if cached:
      return cached
    counts = self._count_all()
    with contextlib.suppress(OSError, UserError, TransientError):
      progress_files.save_arrays(file, **counts)
    return counts

  def _facts(self) -> dict[str, int]:
    """Return the settings on which the counts of a store depend."""
    return {"length": self.length, "least": self.min_tokens}

  def _count_all(self) -> dict[str, np.ndarray]:
    """Return `before`, int64 [blocks + 1]: the examples before each block, and at the end all."""
    before = np.zeros(self._first_block[-1] + 1, np.int64)

    def count(shard: int) -> None:
      first, end = self._first_document[shard : shard + 2].tolist()
      block = int(self._first_block[shard]) + 1
      for piece in range(first, end, _DOCUMENTS_AT_ONCE):
        blocks = -(-min(end - piece, _DOCUMENTS_AT_ONCE) // self._block)
        _, sizes_1K = self.tokens.document_sizes(np.array([piece]), blocks * self._block)
        sizes_NK = sizes_1K.reshape(blocks, self._block)
        before[block : block + blocks] = self._count_examples(sizes_NK, piece, end)
        block += blocks

    with concurrent.futures.ThreadPoolExecutor(min(16, 2 * (os.cpu_count() or 1))) as pool:
      for _ in pool.map(count, range(len(self._first_document) - 1)):
        pass
    return {"before": np.cumsum(before, out=before)}

  def _count_examples(self, sizes_NK: np.ndarray, first: int, end: int) -> np.ndarray:
    """Count the examples of each block, int64 [N].

    Args:
      sizes_NK: the stored sizes of the K documents of N blocks.
      first: the first document of the first block.
      end: the end of the documents of the shard.
    """
    return self._count(sizes_NK).sum(axis=1)

  def _read(self, begins: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    chunk_BL = self.tokens.read_padded(TOKENS, begins, sizes, self.length)
    return chunk_BL, sizes.astype(np.int32)


class OtherDocuments:
  """Reads stretches of documents other than those of the examples.

  Args:
    tokens: the store.
    text_length: tokens of a stretch that become text.

  Attributes:
    search: tokens before the drawn one, in which a caller looks for the beginning of a sentence.
    length: maximum tokens per stretch, `text_length + search`.
  """

  def __init__(self, tokens: TokenStore, text_length: int):
    self.tokens = tokens
    self.search = max(0, min(text_length // 2, tokens.num_tokens - text_length))
    self.length = text_length + self.search
    self._eos = int(tokens.append_eos)

  def read(
    self, document_B: np.ndarray, bits_BN: np.ndarray, size_B: np.ndarray | int = 0
  ) -> tuple[np.ndarray, ...]:
    """Read a stretch of another document for each document.

    N - 1 other documents are drawn uniformly; in a store of one document, itself. The first with
    `size` tokens is used, or else the longest. A token is drawn uniformly from it. The stretch
    begins up to `search` tokens before that token, as far as the document allows, and ends with the
    document or after `length` tokens.

    Args:
      document_B: int64 [B].
      bits_BN: uint64 [B, N], N >= 2 random 32-bit words per row.
      size_B: the tokens that the other document should have.

    Returns:
      (stretch int32 [B, length], its size, the drawn token's position in it, 1 if it begins its
      document), the last three int32 [B].
    """
    other_BC = _draw_below(self.tokens.num_documents - 1, bits_BN[:, :-1])
    if self.tokens.num_documents > 1:
      other_BC += other_BC >= document_B[:, None]
    begins, ends = self.tokens.document_spans(other_BC[:, 0])
    begins = begins.copy()
    ends = ends.copy()
    for other_B in other_BC.T[1:]:
      short_b = np.flatnonzero(ends - begins - self._eos < size_B)
      begin_b, end_b = self.tokens.document_spans(other_B[short_b])
      is_longer_b = end_b - begin_b > (ends - begins)[short_b]
      begins[short_b[is_longer_b]] = begin_b[is_longer_b]
      ends[short_b[is_longer_b]] = end_b[is_longer_b]
    ends -= self._eos
    drawn = begins + _draw_below(np.maximum(ends - begins, 1), bits_BN[:, -1])
    firsts = np.maximum(begins, drawn - self.search)
    sizes = np.clip(ends - firsts, 0, self.length)
    stretch_BL = self.tokens.read_padded(TOKENS, firsts, sizes, self.length)
    position_B = (drawn - firsts).astype(np.int32)
    is_whole_B = (firsts == begins).astype(np.int32)
    return stretch_BL, sizes.astype(np.int32), position_B, is_whole_B


def _run_on_host(
  function: Callable, lengths: tuple[int | None, ...], *arguments: tf.Tensor
) -> tuple[tf.Tensor, ...]:
  """Run a numpy function; its outputs are int32 [B, length], or [B] where the length is None."""
  batch = arguments[0].shape[0]
  dtypes = [tf.int32] * len(lengths)
  outputs = tf.numpy_function(function, arguments, dtypes, stateful=False)
  shaped = []
  for output, length in zip(outputs, lengths, strict=True):
    shape = [batch] if length is None else [batch, length]
    shaped.append(tf.ensure_shape(output, shape))
  return tuple(shaped)


def _draw_below(n: int | np.ndarray, bits_B: np.ndarray) -> np.ndarray:
  """Map 32-bit words, uint64 of any shape, to integers 0..n-1, int64.

  The result is floor(n * bits / 2^32), computed without overflow.
  """
  n = np.asarray(n, np.uint64)
  low = bits_B * (n & np.uint64(2**32 - 1)) >> np.uint64(32)
  return (bits_B * (n >> np.uint64(32)) + low).astype(np.int64)
