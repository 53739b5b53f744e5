"""Stretches of single documents, found by any token in them: for objectives that must know where documents begin.

A document is cut from its beginning into chunks of `length` tokens, the last one shorter. Example i is the chunk that
holds a token drawn uniformly from window i of the stream (tokens [i * length, (i + 1) * length)), so that a document
is seen in proportion to its length and an epoch passes over the stream once, without an index of chunks: opening and
memory do not depend on the corpus. (So a chunk of a short document may be seen twice in an epoch and another not.) An
EOS that the store put at the end of every document is no part of it.
"""

import numpy as np

from t5x_like.data import random
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.store.reader import TokenStore
from t5x_like.errors import UserError


class Chunks:
  """The chunks of an open store.

  Args:
    tokens: the store.
    length: most tokens in a chunk.

  Attributes:
    num_examples: windows of `length` tokens in the store.
    search: tokens before a drawn one, among which a sentence's beginning is looked for.

  Raises:
    UserError: the store is shorter than one window.
  """

  def __init__(self, tokens: TokenStore, length: int):
    self.tokens, self.length = tokens, length
    self.num_examples = tokens.num_tokens // length
    self.search = max(0, min(length // 2, tokens.num_tokens - length))
    self._eos = int(tokens.manifest.append_eos)
    if not self.num_examples:
      raise UserError(
        f"{tokens.path}: {tokens.num_tokens} tokens are no example: the task needs windows of {length} "
        "tokens: shorten the task's lengths or prepare a larger corpus"
      )

  def read(self, example_index_B: tf.Tensor, key_B: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The chunks of examples: int64 [B], uint64 [B] -> (int32 [B, length], 0 after the chunk; int32 [B], its size)."""
    place_B = self._anchors(example_index_B, key_B)
    return self._call(lambda places: self._read(*self._chunks(places)[1:], self.length), (self.length, None), place_B)

  def read_with_others(self, example_index_B: tf.Tensor, key_B: tf.Tensor):
    """As `read`, and for each a stretch of another document.

    The other document is drawn uniformly from all others, of which there has to be one, and a token uniformly from it;
    its stretch begins up to `search` tokens before the drawn one, where there are so many, and ends with the document
    or after `length + search` tokens.

    Returns:
      (chunk, size, other int32 [B, length + search], its size, the place of the drawn token in it, 1 where it begins
      with its document); the others int32 [B].
    """
    documents = self.tokens.num_documents
    bits_B2 = tf.cast(random.bits(random.row_keys(5, key_B), 2), tf.uint64)
    room = self.length + self.search

    def read(places, bits):
      index, starts, sizes = self._chunks(places)
      other = _below(documents - 1, bits[:, 0])
      begins, ends = self.tokens.document_spans(other + (other >= index))
      ends = ends - self._eos
      drawn = begins + _below(np.maximum(ends - begins, 1), bits[:, 1])
      firsts = np.maximum(begins, drawn - self.search)
      return (
        *self._read(starts, sizes, self.length),
        *self._read(firsts, np.clip(ends - firsts, 0, room), room),
        (drawn - firsts).astype(np.int32),
        (firsts == begins).astype(np.int32),
      )

    return self._call(read, (self.length, None, room, None, None, None), self._anchors(example_index_B, key_B), bits_B2)

  def _anchors(self, example_index_B, key_B):
    bits_B = random.bits(random.row_keys(6, key_B), 1)[:, 0]
    return example_index_B * self.length + tf.cast(random.integers(bits_B, self.length), tf.int64)

  def _chunks(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(document, first token, tokens) of the chunks that hold places: each int64 [B]."""
    index, starts, ends = self.tokens.documents_at(places)
    ends = ends - self._eos
    places = np.minimum(places, np.maximum(ends - 1, starts))
    begins = starts + (places - starts) // self.length * self.length
    return index, begins, np.minimum(ends - begins, self.length)

  def _read(self, begins: np.ndarray, sizes: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(tokens int32 [B, length], sizes int32 [B])."""
    last = self.tokens.num_tokens - length
    window = self.tokens.windows(np.minimum(begins, last), length)
    for row in np.flatnonzero(begins > last).tolist():  # near the end of the stream
      window[row] = np.roll(window[row], -(begins[row] - last))
    window[np.arange(length) >= sizes[:, None]] = 0
    return window, sizes.astype(np.int32)

  def _call(self, function, lengths: tuple[int | None, ...], *arguments):
    """Runs on the host; the outputs are int32, [B, length], or [B] where the length is None."""
    batch = arguments[0].shape[0]
    found = tf.numpy_function(function, arguments, [tf.int32] * len(lengths), stateful=False)
    return tuple(tf.ensure_shape(x, [batch] if n is None else [batch, n]) for x, n in zip(found, lengths, strict=True))


def _below(n: int | np.ndarray, bits_B: np.ndarray) -> np.ndarray:
  """floor(n * bits / 2^32) without overflow, so uniform in 0..n-1: 32-bit words as uint64 [B] -> int64 [B]."""
  n = np.asarray(n, np.uint64)
  low = bits_B * (n & np.uint64(2**32 - 1)) >> np.uint64(32)
  return (bits_B * (n >> np.uint64(32)) + low).astype(np.int64)
