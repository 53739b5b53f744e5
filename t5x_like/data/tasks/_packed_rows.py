"""Packed rows of masked language modelling: several chunks of documents, each a separate sequence.

Every sequence has its own [CLS], [SEP], segment number and positions from 0, and attends only to
itself. So the model computes the same for it as in a row of its own. Krell et al. 2021
(arXiv:2107.02027) pack BERT's pairs this way.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from t5x_like.data import random
from t5x_like.data.chunk_rows import ChunkRows
from t5x_like.data.document_chunks import OtherDocuments
from t5x_like.data.preprocessors import segments, sentences
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.supervised import packing
from t5x_like.store.tokens import TOKENS, TokenStore


def max_pairs(length: int) -> int:
  """Return the greatest number of pairs in a row."""
  return length // 8


class DocSentences:
  """Rows of [CLS] text [SEP] sequences, each from one document; see `mlm`."""

  def __init__(self, tokens: TokenStore, length: int, ids: segments.Ids):
    self._rows = ChunkRows(tokens, length, beside=2)
    self._length = length
    self._ids = ids
    self.num_examples = self._rows.num_examples

  def __call__(self, example_index_B, key_B, offset_B):
    found = _call(self._read, [tf.int32] * 3, example_index_B)
    names = ("tokens", "segments", "positions")
    batch = example_index_B.shape[0]
    row = {
      name: tf.ensure_shape(x, [batch, self._length]) for name, x in zip(names, found, strict=True)
    }
    return row | {"types": tf.zeros_like(row["tokens"])}

  def _read(self, index_B):
    row_n, _, start_n, size_n = self._rows.members(index_B)
    chunk_nT = self._rows.tokens.read_padded(TOKENS, start_n, size_n, size_n.max(initial=1))
    text_nL = np.pad(chunk_nT, ((0, 0), (1, 1)), constant_values=self._ids.cls)
    text_nL[np.arange(row_n.size), size_n + 1] = self._ids.sep
    tokens, segments_BL, positions = _placed(
      text_nL, size_n + 2, row_n, (index_B.size, self._length)
    )
    return np.where(segments_BL > 0, tokens, np.int32(self._ids.pad)), segments_BL, positions


class Pairs:
  """Rows of [CLS] A [SEP] B [SEP] pairs, each from one chunk, with each pair's label and first
  position.

  A share `short` of the pairs is short: some chunks of at least half the greatest length are cut in
  two at a uniformly drawn token, and each part becomes a pair. (BERT's code cuts a tenth of the
  chunks short and goes on from there.) A B from another document has at most as many tokens as the
  B it replaces, and equally many if possible: its document is drawn up to four times, until one is
  as long as the chunk.
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
    self._most = max_pairs(length)
    self._length = length
    self._ids = ids
    spare = 3 if short else 0
    self._rows = ChunkRows(
      tokens, length, beside=3, spare=spare, most=self._most - bool(short), least=2
    )
    # of the chunks that are cut: n chunks become (1 + share) n pairs
    self._share = short / (2 - short)
    self._options = dict(
      sentences=rule, single=False, random_next=random_next, short=0.0, swapped=swapped
    )
    self.num_examples = self._rows.num_examples

  def __call__(self, example_index_B, key_B, offset_B):
    words_B2 = random.bits(random.row_keys(5, key_B), 2)
    row_n, number_n, *pair = _call(self._pairs, [tf.int64] * 5, example_index_B, words_B2)
    row_n.set_shape([None])
    key_n = random.row_keys(6, tf.gather(key_B, row_n), number_n)
    # four documents and a token
    words_n5 = tf.cast(random.bits(random.row_keys(5, key_n), 5), tf.uint64)
    chunk_nT, size_n, *others = _call(self._texts, [tf.int32] * 6, *pair, words_n5)
    for x in (chunk_nT, size_n, *others):
      x.set_shape([None, None] if x is chunk_nT or x is others[0] else [None])
    *found, label_n = segments.draw_pair(
      chunk_nT, size_n, *others, key_B=key_n, room_B=size_n, **self._options
    )
    made = segments.segment_pair(chunk_nT, *found, tf.shape(chunk_nT)[1] + 3, *self._ids)
    used_n = tf.reduce_sum(made["segments"], axis=1)
    batch = example_index_B.shape[0]
    L = self._length
    sizes = tf.stack([tf.shape(example_index_B)[0], tf.shape(made["tokens"])[1]])
    laid_out = _call(self._layout, [tf.int32] * 5, row_n, number_n, used_n, label_n, sizes)
    widths = (L, L, L, self._most, self._most)
    laid_out = (
      tf.ensure_shape(x, [batch, width]) for x, width in zip(laid_out, widths, strict=True)
    )
    place_BL, segments_BL, positions_BL, first_BK, label_BK = laid_out
    real_BL = segments_BL > 0
    token_BL, type_BL = (
      tf.gather(tf.reshape(made[name], [-1]), place_BL) for name in ("tokens", "types")
    )
    return {
      "tokens": tf.where(real_BL, token_BL, self._ids.pad),
      "types": tf.where(real_BL, type_BL, 0),
      "segments": segments_BL,
      "positions": positions_BL,
      "firsts": first_BK,
      "label": label_BK,
    }

  def _pairs(self, index_B, words_B2):
    """Return (place in the batch, number in the row, document, first token in the stream, tokens)
    of each pair."""
    row_n, document_n, start_n, size_n = self._rows.members(index_B)
    draw_n2 = words_B2[row_n] / 2**32
    # a row has one such chunk at most
    cut_n = (size_n >= max(self._rows.half, 4)) & (draw_n2[:, 0] < self._share)
    first_n = np.where(cut_n, 2 + (draw_n2[:, 1] * (size_n - 3)).astype(np.int64), size_n)
    of_n = np.repeat(np.arange(row_n.size), 1 + cut_n)
    second_n = np.append(False, of_n[1:] == of_n[:-1])[: of_n.size]
    start_n = start_n[of_n] + np.where(second_n, first_n[of_n], 0)
    size_n = np.where(second_n, (size_n - first_n)[of_n], first_n[of_n])
    return row_n[of_n], _numbers(row_n[of_n]), document_n[of_n], start_n, size_n

  def _texts(self, document_n, start_n, size_n, words_n5):
    """Return (chunk, its tokens, *the values of `Others.read`) of each pair, int32."""
    tokens = self._rows.tokens
    width = int(size_n.max(initial=2))
    others = OtherDocuments(tokens, width).read(document_n, words_n5, size_n)
    return tokens.read_padded(TOKENS, start_n, size_n, width), size_n.astype(np.int32), *others

  def _layout(self, row_n, number_n, used_n, label_n, sizes):
    """Return each row's token indices into all pairs' tokens, segments and positions, int32 [B, L]
    each; and its pairs' first positions and labels, int32 [B, K]."""
    rows, width = sizes.tolist()
    index_nW = np.arange(row_n.size * width, dtype=np.int32).reshape(-1, width)
    placed = _placed(index_nW, used_n, row_n, (rows, self._length))
    firsts_BK, labels_BK = np.zeros((2, rows, self._most), np.int32)
    firsts_BK[row_n, number_n], labels_BK[row_n, number_n] = _offsets(used_n, row_n), label_n
    return *placed, firsts_BK, labels_BK


def _placed(values_nW: np.ndarray, size_n: np.ndarray, row_n: np.ndarray, shape: tuple[int, int]):
  """Place the first `size` values of each sequence in its row, one sequence after another:
  `packing.scatter`."""
  valid_nW = np.arange(values_nW.shape[1]) < size_n[:, None]
  return packing.scatter(
    values_nW, valid_nW, row_n, _numbers(row_n), _offsets(size_n, row_n), shape
  )


def _numbers(row_n: np.ndarray) -> np.ndarray:
  """Return the number of each sequence within its row; rows are ascending."""
  return np.arange(row_n.size) - np.searchsorted(row_n, row_n)


def _offsets(size_n: np.ndarray, row_n: np.ndarray) -> np.ndarray:
  """Return the first position of each sequence in its row."""
  before_n = np.cumsum(size_n, dtype=np.int64) - size_n
  return before_n - before_n[np.searchsorted(row_n, row_n)]


def _call(function: Callable, types: list, *arguments: tf.Tensor) -> list[tf.Tensor]:
  return tf.numpy_function(function, arguments, types, stateful=False)
