"""Packed rows of masked language modelling: several chunks of documents, each a separate sequence.

Every sequence has its own [CLS], [SEP], segment number and positions from 0, and attends only to
itself. So the model computes the same for it as in a separate row. Krell et al. 2021
(arXiv:2107.02027) pack BERT's pairs this way.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from t5x_like.data import random
from t5x_like.data.chunk_rows import ChunkRows
from t5x_like.data.document_chunks import OtherDocuments
from t5x_like.data.preprocessors import segments, sentences
from t5x_like.data.supervised import packing
from t5x_like.quiet_tensorflow import tf
from t5x_like.store.tokens import TOKENS, TokenStore


def max_pairs(length: int) -> int:
  """Return the greatest number of pairs in a row, which is a limit on shapes."""
  return length // 8


class DocSentences:
  """Rows of [CLS] text [SEP] sequences, each from one document; see `mlm`."""

  def __init__(self, tokens: TokenStore, length: int, ids: segments.Ids):
    self._rows = ChunkRows(tokens, length, overhead=2)
    self._length = length
    self._ids = ids
    self.num_examples = self._rows.num_examples

  def __call__(self, example_index_B, key_B, offset_B):
    arrays = _call_on_host(self._read, [tf.int32] * 3, example_index_B)
    shape = [example_index_B.shape[0], self._length]
    tokens_BL, segments_BL, positions_BL = [tf.ensure_shape(array, shape) for array in arrays]
    return {
      "tokens": tokens_BL,
      "segments": segments_BL,
      "positions": positions_BL,
      "types": tf.zeros_like(tokens_BL),
    }

  def _read(self, index_B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tokens, segments and positions of rows, int32 [B, L]."""
    row_n, _, start_n, size_n = self._rows.members(index_B)
    chunk_nT = self._rows.tokens.read_padded(TOKENS, start_n, size_n, size_n.max(initial=1))
    text_nL = np.pad(chunk_nT, ((0, 0), (1, 1)), constant_values=self._ids.cls)
    text_nL[np.arange(row_n.size), size_n + 1] = self._ids.sep
    tokens, segments_BL, positions = _place_in_rows(
      text_nL, size_n + 2, row_n, (index_B.size, self._length)
    )
    return np.where(segments_BL > 0, tokens, np.int32(self._ids.pad)), segments_BL, positions


class Pairs:
  """Rows of [CLS] A [SEP] B [SEP] pairs, each from one chunk.

  They have the label and the first position of each pair.

  A share `short` of the pairs is short: some chunks of at least half the greatest length are cut in
  two at a uniformly drawn token, and each part becomes a pair. (BERT's code cuts a tenth of the
  chunks short and continues after them.) A B from another document has at most as many tokens as
  the B it replaces, and equally many if possible: its document is drawn up to four times, until one
  is as long as the chunk.
  """

  def __init__(
    self,
    tokens: TokenStore,
    length: int,
    ids: segments.Ids,
    rule: sentences.Sentences,
    *,
    random_next: float,
    short: float,
    swapped: float = 0.0,
  ):
    self._max_pairs = max_pairs(length)
    self._length = length
    self._ids = ids
    # Room for the chunk of a row that is cut into two pairs.
    spare_positions = 3 if short else 0
    spare_chunks = 1 if short else 0
    self._rows = ChunkRows(
      tokens,
      length,
      overhead=3,
      spare=spare_positions,
      max_chunks=self._max_pairs - spare_chunks,
      min_tokens=2,
    )
    # The share of the chunks that are cut: n chunks become (1 + share) n pairs.
    self._cut_share = short / (2 - short)
    # The arguments of `segments.draw_pair`.
    self._options = dict(
      sentences=rule, single=False, random_next=random_next, short=0.0, swapped=swapped
    )
    self.num_examples = self._rows.num_examples

  def __call__(self, example_index_B, key_B, offset_B):
    row_n, number_n, pairs, used_n, label_n = self._draw_pairs(example_index_B, key_B)
    sizes = tf.stack([tf.shape(example_index_B)[0], tf.shape(pairs["tokens"])[1]])
    arrays = _call_on_host(self._layout, [tf.int32] * 5, row_n, number_n, used_n, label_n, sizes)
    batch = example_index_B.shape[0]
    row_shape = [batch, self._length]
    source_BL, segments_BL, positions_BL = [tf.ensure_shape(x, row_shape) for x in arrays[:3]]
    pair_shape = [batch, self._max_pairs]
    first_BK, label_BK = [tf.ensure_shape(x, pair_shape) for x in arrays[3:]]
    real_BL = segments_BL > 0
    token_BL = tf.gather(tf.reshape(pairs["tokens"], [-1]), source_BL)
    type_BL = tf.gather(tf.reshape(pairs["types"], [-1]), source_BL)
    return {
      "tokens": tf.where(real_BL, token_BL, self._ids.pad),
      "types": tf.where(real_BL, type_BL, 0),
      "segments": segments_BL,
      "positions": positions_BL,
      "firsts": first_BK,
      "label": label_BK,
    }

  def _draw_pairs(self, example_index_B, key_B):
    """Draw the pairs of rows.

    Returns:
      (row, number in the row, `segments.segment_pair`, its tokens, label) of each pair.
    """
    words_B2 = random.bits(random.row_keys(5, key_B), 2)
    row_n, number_n, *chunk = _call_on_host(
      self._cut_chunks, [tf.int64] * 5, example_index_B, words_B2
    )
    row_n.set_shape([None])
    key_n = random.row_keys(6, tf.gather(key_B, row_n), number_n)
    # Words for four documents and a token.
    words_n5 = tf.cast(random.bits(random.row_keys(5, key_n), 5), tf.uint64)
    texts = _call_on_host(self._read_texts, [tf.int32] * 6, *chunk, words_n5)
    chunk_nT, size_n, other_nU, *other_numbers = texts
    chunk_nT.set_shape([None, None])
    other_nU.set_shape([None, None])
    for number_of_pair in (size_n, *other_numbers):
      number_of_pair.set_shape([None])
    *parts, label_n = segments.draw_pair(
      chunk_nT, size_n, other_nU, *other_numbers, key_B=key_n, room_B=size_n, **self._options
    )
    pairs = segments.segment_pair(chunk_nT, *parts, tf.shape(chunk_nT)[1] + 3, *self._ids)
    used_n = tf.reduce_sum(pairs["segments"], axis=1)
    return row_n, number_n, pairs, used_n, label_n

  def _cut_chunks(self, index_B: np.ndarray, words_B2: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the chunk of each pair, int64 [n] each.

    Returns:
      (position in the batch, number in the row, document, first token in the stream, tokens).
    """
    row_n, document_n, start_n, size_n = self._rows.members(index_B)
    draw_n2 = words_B2[row_n] / 2**32
    # A row has at most one chunk of this size.
    is_long_n = size_n >= max(self._rows.half, 4)
    is_cut_n = is_long_n & (draw_n2[:, 0] < self._cut_share)
    cut_position_n = 2 + (draw_n2[:, 1] * (size_n - 3)).astype(np.int64)
    first_size_n = np.where(is_cut_n, cut_position_n, size_n)
    chunk_m = np.repeat(np.arange(row_n.size), 1 + is_cut_n)
    is_second_m = np.diff(chunk_m, prepend=-1) == 0
    start_m = start_n[chunk_m] + np.where(is_second_m, first_size_n[chunk_m], 0)
    second_size_n = size_n - first_size_n
    size_m = np.where(is_second_m, second_size_n[chunk_m], first_size_n[chunk_m])
    row_m = row_n[chunk_m]
    return row_m, _numbers_in_rows(row_m), document_n[chunk_m], start_m, size_m

  def _read_texts(self, document_n, start_n, size_n, words_n5) -> tuple[np.ndarray, ...]:
    """Return (chunk, its tokens, *`OtherDocuments.read`) of each pair, int32."""
    tokens = self._rows.tokens
    width = int(size_n.max(initial=2))
    other_parts = OtherDocuments(tokens, width).read(document_n, words_n5, size_n)
    chunk_nT = tokens.read_padded(TOKENS, start_n, size_n, width)
    return chunk_nT, size_n.astype(np.int32), *other_parts

  def _layout(self, row_n, number_n, used_n, label_n, sizes) -> tuple[np.ndarray, ...]:
    """Lay the pairs out in rows.

    Returns:
      The indices of each row's tokens among the tokens of all pairs, segments and positions, int32
      [B, L] each; the first positions and the labels of its pairs, int32 [B, K] each.
    """
    num_rows, width = sizes.tolist()
    index_nW = np.arange(row_n.size * width, dtype=np.int32).reshape(-1, width)
    source_BL, segments_BL, positions_BL = _place_in_rows(
      index_nW, used_n, row_n, (num_rows, self._length)
    )
    firsts_BK = np.zeros((num_rows, self._max_pairs), np.int32)
    firsts_BK[row_n, number_n] = _offsets_in_rows(used_n, row_n)
    labels_BK = np.zeros((num_rows, self._max_pairs), np.int32)
    labels_BK[row_n, number_n] = label_n
    return source_BL, segments_BL, positions_BL, firsts_BK, labels_BK


def _place_in_rows(
  values_nW: np.ndarray, size_n: np.ndarray, row_n: np.ndarray, shape: tuple[int, int]
):
  """Place the first `size` values of each sequence in its row, one after another."""
  valid_nW = np.arange(values_nW.shape[1]) < size_n[:, None]
  number_n = _numbers_in_rows(row_n)
  offset_n = _offsets_in_rows(size_n, row_n)
  return packing.scatter(values_nW, valid_nW, row_n, number_n, offset_n, shape)


def _numbers_in_rows(row_n: np.ndarray) -> np.ndarray:
  """Return the number of each sequence within its row; rows are ascending."""
  return np.arange(row_n.size) - np.searchsorted(row_n, row_n)


def _offsets_in_rows(size_n: np.ndarray, row_n: np.ndarray) -> np.ndarray:
  """Return the first position of each sequence in its row."""
  before_n = np.cumsum(size_n, dtype=np.int64) - size_n
  return before_n - before_n[np.searchsorted(row_n, row_n)]


def _call_on_host(function: Callable, types: list, *arguments: tf.Tensor) -> list[tf.Tensor]:
  """Run a NumPy function on the host; `types` are the dtypes of its results."""
  return tf.numpy_function(function, arguments, types, stateful=False)
