"""BERT's inputs from segments: [CLS] A [SEP], or [CLS] A [SEP] B [SEP] with token types.

Devlin et al. 2019, section 3.1.

Worked example, A = 5 6 7, B = 8 9, length 10, [CLS] 2, [SEP] 3:

    tokens    2 5 6 7 3 8 9 3 0 0
    types     0 0 0 0 0 1 1 1 0 0
    segments  1 1 1 1 1 1 1 1 0 0      (0 on padding)
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from t5x_like.data import random
from t5x_like.data.preprocessors.sentences import Sentences
from t5x_like.quiet_tensorflow import tf

# The formats of rows, see `tasks.mlm`.
Format = Literal["segment_pair", "sentence_pair", "full_sentences", "doc_sentences"]


class Ids(NamedTuple):
  """The ids of the special tokens of a row."""

  cls: int
  sep: int
  pad: int


def single_segment(
  a_BT: tf.Tensor, size_B: tf.Tensor, length: int, cls_id: int, sep_id: int, pad_id: int = 0
) -> dict[str, tf.Tensor]:
  """Build [CLS] A [SEP].

  Args:
    a_BT: int32 [B, T]; A is the first `size` tokens of each row.
    size_B: int32 [B], at most `length - 2`.
    length: length of the result.
    cls_id, sep_id, pad_id: ids of [CLS], [SEP] and padding.

  Returns:
    `tokens`, `types` and `segments`, int32 [B, length].
  """
  zero_B = tf.zeros_like(size_B)
  pair = segment_pair(
    a_BT, zero_B, size_B, a_BT[:, :1], zero_B, zero_B, length, cls_id, sep_id, pad_id
  )
  position = tf.range(length)
  end = size_B[:, None] + 2
  return {
    "tokens": tf.where(position < end, pair["tokens"], pad_id),
    "types": tf.zeros_like(pair["types"]),
    "segments": tf.cast(position < end, tf.int32),
  }


def segment_pair(
  a_BT,
  a_start_B,
  a_size_B,
  b_BU,
  b_start_B,
  b_size_B,
  length: int,
  cls_id: int,
  sep_id: int,
  pad_id: int = 0,
):
  """Build [CLS] A [SEP] B [SEP].

  A is tokens `a_start` to `a_start + a_size` of each row of `a_BT`, and B likewise. The sizes must
  add up to at most `length - 3`.

  Returns:
    `tokens`, `types` and `segments`, int32 [B, length].
  """
  position = tf.range(length)[None]
  a_end = a_size_B[:, None] + 1  # the position of its [SEP]
  b_end = a_end + b_size_B[:, None] + 1
  a_BL = _gather(a_BT, position - 1 + a_start_B[:, None])
  b_BL = _gather(b_BU, position - a_end - 1 + b_start_B[:, None])
  tokens = tf.where(position < a_end, a_BL, tf.where(position < b_end, b_BL, pad_id))
  tokens = tf.where(position == 0, cls_id, tokens)
  tokens = tf.where((position == a_end) | (position == b_end), sep_id, tokens)
  return {
    "tokens": tokens,
    "types": tf.cast((position > a_end) & (position <= b_end), tf.int32),
    "segments": tf.cast(position <= b_end, tf.int32),
  }


def take_tokens(x_BT: tf.Tensor, start_B: tf.Tensor, length: int) -> tf.Tensor:
  """Take `length` tokens of each row from `start` on: [B, T] -> [B, length].

  The last token is repeated past the end.
  """
  return _gather(x_BT, tf.range(length) + start_B[:, None])


def _gather(x_BT: tf.Tensor, position_BL: tf.Tensor) -> tf.Tensor:
  """Return the tokens at positions of each row; positions outside take the nearest token."""
  T = tf.shape(x_BT)[1]
  flat = tf.clip_by_value(position_BL, 0, T - 1) + tf.range(tf.shape(x_BT)[0])[:, None] * T
  return tf.gather(tf.reshape(x_BT, [-1]), flat)


def insert_separators(
  window_BR: tf.Tensor,
  start_B: tf.Tensor,
  end_B: tf.Tensor,
  first_BR: tf.Tensor,
  sep_id: int,
  length: int,
) -> tuple[tf.Tensor, tf.Tensor]:
  """Insert a separator between consecutive documents of a text.

  Args:
    window_BR: int32 [B, R], the tokens.
    start_B, end_B: int32 [B]; the text is tokens `start` to `end` - 1 of each row.
    first_BR: bool [B, R], where documents begin.
    sep_id: the id of the separator.
    length: length of the result; longer text is truncated.

  Returns:
    (int32 [B, length], its size int32 [B]).
  """
  batch = tf.shape(window_BR)[0]
  R = tf.shape(window_BR)[1]
  position_R = tf.range(R)
  split_BR = first_BR & (position_R > start_B[:, None]) & (position_R < end_B[:, None])
  split_N2 = tf.cast(tf.where(split_BR), tf.int32)  # (row, position), in order
  row_N = split_N2[:, 0]
  splits_B = tf.reduce_sum(tf.cast(split_BR, tf.int32), axis=1)
  first_split_B = tf.cumsum(splits_B, exclusive=True)
  number_N = tf.range(tf.shape(row_N)[0]) - tf.gather(first_split_B, row_N)  # within the row
  position_N = tf.minimum(split_N2[:, 1] - tf.gather(start_B, row_N) + number_N, length)
  separator_N2 = tf.stack([row_N, position_N], axis=1)
  separator_BL = tf.scatter_nd(separator_N2, tf.ones_like(row_N), [batch, length + 1])[:, :length]
  source_BL = tf.range(length) + start_B[:, None] - tf.cumsum(separator_BL, axis=1)
  text_BL = tf.where(separator_BL > 0, sep_id, _gather(window_BR, source_BL))
  return text_BL, tf.minimum(end_B - start_B + splits_B, length)


def draw_pair(
  chunk_BT: tf.Tensor,
  size_B: tf.Tensor,
  other_BU: tf.Tensor,
  other_size_B: tf.Tensor,
  drawn_B: tf.Tensor,
  is_whole_B: tf.Tensor,
  *,
  sentences: Sentences,
  single: bool,
  random_next: float,
  short: float,
  swapped: float = 0.0,
  key_B: tf.Tensor,
  room_B: tf.Tensor | None = None,
):
  """Cut chunks into A and the following B, and replace B in a share of the rows.

  A replaced B is text from another document. The cut is before a sentence, drawn uniformly from all
  sentences of the chunk except its first. A replaced B begins with the sentence that holds the
  drawn token of `other` (or with the next sentence, if that one begins too far back), so the
  beginning of B does not reveal its origin. If the chunk has only one sentence, the cut is before
  any token but the first, and a replaced B begins with the drawn token, or with the next token if
  the drawn one begins a sentence: again, both kinds of B begin in the same way. (BERT's code always
  replaces B in this case, so in corpora of short documents fewer than half of the Bs follow A.)

  Args:
    chunk_BT, size_B, other_BU, other_size_B, drawn_B, is_whole_B: from `Chunks.read_with_others`.
    sentences: the rule for sentences.
    single: whether A and B are one sentence each, the last before the cut and the first after it.
    random_next: share of rows whose B is replaced.
    short: share of rows whose chunk is first cut to a uniformly drawn size, 2 to T (a tenth in the
      code of Devlin et al. 2019, to prepare the model for fine-tuning on short sequences).
    swapped: share of rows whose A and B are swapped, if B follows A (sentence order prediction).
    key_B: uint64 [B], one random key per row.
    room_B: int32 [B], the maximum tokens of A and B together if they share a row with others; a
      replaced B then begins early enough to fill its room, if the given part of its document is
      long enough. None is the whole row.

  Returns:
    (a_start, a_size, b, b_start, b_size, label): B's tokens int32 [B, T]; label 1 if B is replaced
    or was before A. A chunk of one token has no following B and always gets label 1; an `other`
    without tokens (only an EOS) gets label 0.
  """
  T = tf.shape(chunk_BT)[1]
  words_B4 = random.bits(random.row_keys(7, key_B), 4)
  shares_row = room_B is not None
  if not shares_row:
    is_short_B = tf.cast(words_B4[:, 0], tf.int64) < round(short * 2**32)
    short_B = 2 + random.integers(words_B4[:, 1], max(chunk_BT.shape[1] - 1, 1))
    size_B = tf.where(is_short_B, tf.minimum(size_B, short_B), size_B)
    room_B = tf.where(is_short_B, size_B, T)
  cut = _draw_cut(sentences.starts(chunk_BT), size_B, words_B4[:, 2])
  is_wanted_B = tf.cast(words_B4[:, 3], tf.int64) < round(random_next * 2**32)
  is_replaced_B = (is_wanted_B | (size_B < 2)) & (other_size_B > 0)
  if shares_row:
    drawn_B = tf.minimum(drawn_B, tf.maximum(other_size_B - (room_B - cut.position_B), 0))
  begins_BU = _sentence_begins(sentences, other_BU, other_size_B, is_whole_B)
  other_start_B = _other_start(begins_BU, drawn_B, other_size_B, cut.total_B)
  other_end_B = other_size_B
  end_B = size_B
  a_start_B = tf.zeros_like(cut.position_B)
  if single:
    a_start_B = tf.where(cut.sentence_B > 1, cut.sentence_position(cut.sentence_B - 1), 0)
    other_end_B = _next_begin(begins_BU, other_start_B, other_size_B[:, None])
    next_B = cut.sentence_position(cut.sentence_B + 1)
    end_B = tf.where(cut.total_B > cut.sentence_B, next_B, size_B)
  a_size_B = cut.position_B - a_start_B
  b_start_B = tf.where(is_replaced_B, 0, cut.position_B)
  b_size_B = tf.where(is_replaced_B, other_end_B - other_start_B, end_B - cut.position_B)
  b_size_B = tf.clip_by_value(b_size_B, 0, room_B - a_size_B)
  b_BT = tf.where(is_replaced_B[:, None], take_tokens(other_BU, other_start_B, T), chunk_BT)
  label_B = is_replaced_B
  if swapped:
    draw_B = tf.cast(random.bits(random.row_keys(9, key_B), 1)[:, 0], tf.int64)
    swaps_B = (draw_B < round(swapped * 2**32)) & ~is_replaced_B
    a_start_B, b_start_B = _swap(swaps_B, a_start_B, b_start_B)
    a_size_B, b_size_B = _swap(swaps_B, a_size_B, b_size_B)
    label_B = is_replaced_B | swaps_B
  return a_start_B, a_size_B, b_BT, b_start_B, b_size_B, tf.cast(label_B, tf.int32)


class _Cut(NamedTuple):
  """The cuts of chunks before a sentence, or before any token of a single sentence.

  Attributes:
    position_B: the first token after the cut.
    sentence_B: the number of the sentence after the cut, from 1, not counting the first.
    total_B: the number of sentences that begin within the chunk.
    count_BT: the sentences that begin up to each token but the first.
  """

  position_B: tf.Tensor
  sentence_B: tf.Tensor
  total_B: tf.Tensor
  count_BT: tf.Tensor

  def sentence_position(self, number_B: tf.Tensor) -> tf.Tensor:
    """Return the position of each row's sentence of this number."""
    return _sentence_position(self.count_BT, number_B)


def _sentence_position(count_BT: tf.Tensor, number_B: tf.Tensor) -> tf.Tensor:
  """Return a sentence's position from the counts of sentences up to each token but the first."""
  is_before_BT = count_BT < number_B[:, None]
  return 1 + tf.reduce_sum(tf.cast(is_before_BT, tf.int32), axis=1)


def _draw_cut(starts_BT: tf.Tensor, size_B: tf.Tensor, word_B: tf.Tensor) -> _Cut:
  """Draw a cut.

  Args:
    starts_BT: bool [B, T - 1], whether a sentence begins at each token but the first.
    size_B: int32 [B], tokens of the chunks.
    word_B: uint32 [B], a random word per row.
  """

  def draw(n_B: tf.Tensor) -> tf.Tensor:
    scaled_B = tf.cast(word_B, tf.int64) * tf.cast(n_B, tf.int64)
    return tf.cast(tf.bitwise.right_shift(scaled_B, 32), tf.int32)

  position = tf.range(1, tf.shape(starts_BT)[1] + 1)[None]
  starts_BT &= position < size_B[:, None]
  count_BT = tf.cumsum(tf.cast(starts_BT, tf.int32), axis=1)
  total_B = count_BT[:, -1]
  sentence_B = draw(total_B) + 1
  any_position_B = tf.minimum(1 + draw(tf.maximum(size_B - 1, 1)), size_B)
  position_B = tf.where(total_B > 0, _sentence_position(count_BT, sentence_B), any_position_B)
  return _Cut(position_B, sentence_B, total_B, count_BT)


def _sentence_begins(
  sentences: Sentences, other_BU: tf.Tensor, other_size_B: tf.Tensor, is_whole_B: tf.Tensor
) -> tf.Tensor:
  """Return whether a sentence begins at each token of stretches of other documents, bool [B, U].

  `is_whole_B` is 1 for stretches that begin their document.
  """
  begins_BU = tf.concat([is_whole_B[:, None] > 0, sentences.starts(other_BU)], axis=1)
  return begins_BU & (tf.range(tf.shape(other_BU)[1]) < other_size_B[:, None])


def _next_begin(begins_BU: tf.Tensor, position_B: tf.Tensor, default: tf.Tensor | int) -> tf.Tensor:
  """Return the first beginning of a sentence after a position, or `default`."""
  position_U = tf.range(tf.shape(begins_BU)[1])
  is_next_BU = begins_BU & (position_U > position_B[:, None])
  return tf.reduce_min(tf.where(is_next_BU, position_U, default), axis=1)


def _other_start(
  begins_BU: tf.Tensor, drawn_B: tf.Tensor, other_size_B: tf.Tensor, total_B: tf.Tensor
) -> tf.Tensor:
  """Return the first token of a replaced B, so that both kinds of B begin in the same way.

  Args:
    begins_BU: whether a sentence begins at each token of the other document.
    drawn_B: the drawn token of it.
    other_size_B: its tokens.
    total_B: the number of sentences that begin within the chunk.
  """
  U = tf.shape(begins_BU)[1]
  position_U = tf.range(U)
  is_before_BU = begins_BU & (position_U <= drawn_B[:, None])
  before_B = tf.reduce_max(tf.where(is_before_BU, position_U, -1), axis=1)
  next_B = _next_begin(begins_BU, drawn_B, U)
  sentence_B = tf.where(before_B >= 0, before_B, tf.where(next_B < U, next_B, drawn_B))
  # For chunks of one sentence: never where a sentence begins.
  token_B = drawn_B + tf.gather(tf.cast(begins_BU, tf.int32), drawn_B, batch_dims=1)
  return tf.where(total_B > 0, sentence_B, tf.clip_by_value(token_B, 0, other_size_B - 1))


def _swap(
  swaps_B: tf.Tensor, first_B: tf.Tensor, second_B: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Exchange two values in the rows where `swaps_B`."""
  return tf.where(swaps_B, second_B, first_B), tf.where(swaps_B, first_B, second_B)
