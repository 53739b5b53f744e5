"""Beginnings of words and sentences in batches of ids, by the rules of `segmentation`.

The rules apply to the text that ids stand for. A letter may be spread over several ids (bytes,
byte-level BPE, byte fallback), and whether an id begins a word may depend on the id before
(`Python` does in `我爱Python`). So the rules look at the ids around each. At the edges of a row,
where these are missing, a letter that is cut begins nothing.

In text without spaces each id that begins with a letter begins a word, so a piece of several
letters is one word.
"""

from __future__ import annotations

import itertools

import numpy as np

from t5x_like import segmentation
from t5x_like.quiet_tensorflow import tf
from t5x_like.segmentation import Kind
from t5x_like.vocabularies import Vocabulary

# Beginnings of ids, besides the kinds of characters:
SPECIAL = 16  # a special id
INSIDE = 17  # the rest of a letter that began in an id before
OPEN = 18  # a letter that continues in the next id
# Kinds of the characters after the first ones of an id, besides the kinds of characters:
NEXT = 19  # in the next id
# Ends of ids, which decide whether the next id begins a word:
SPACED = 0  # a letter of a script that separates words by spaces, or anything else
UNSPACED = 1  # a letter of a script that does not
AFTER_WORD = 2  # a space after a word
# Ends of ids, which decide whether the next id begins a sentence:
NO_END = 0
END = 1
STRONG_END = 2
KEEP = 3  # the kind of the id before: marks, quotes, brackets, and a part of a letter
COMPLETING = 4  # the last part of a letter

_MAX_BYTES = 4  # the longest letter in UTF-8
_LOG2_REACH = 3  # up to 2 ** _LOG2_REACH ids before an id are inspected


class Boundaries:
  """The beginnings of words and sentences.

  Args:
    vocabulary: vocabulary of the ids.
    ends: bool [size], the ids that may end a sentence, instead of the rule; None for the rule.
  """

  def __init__(self, vocabulary: Vocabulary, ends: np.ndarray | None = None):
    size = vocabulary.size
    self._first = np.full(size, SPECIAL, np.int32)
    self._second = np.full(size, NEXT, np.int32)  # after the first character and its equals
    self._third = np.full(size, NEXT, np.int32)  # after the second one and its equals
    self._last = np.full(size, SPACED, np.int32)
    self._ends = np.full(size, NO_END, np.int32)
    self._count = np.zeros(size, np.int64)  # bytes, at most `_MAX_BYTES`
    self._head = np.zeros(size, np.int64)  # the first bytes of each id, left-aligned in 32 bits
    self._tail = np.zeros(size, np.int64)  # the last bytes, right-aligned
    for i, data in enumerate(vocabulary.bytes_of(range(size))):
      if data:
        self._fill_tables(i, data)
    if ends is not None:
      self._ends = np.where(ends, END, NO_END).astype(np.int32)
    self._ends[list(vocabulary.special_ids)] = NO_END
    self._ends[vocabulary.unk_id] = NO_END
    self._ends[vocabulary.eos_id] = STRONG_END
    self._splits_letters = bool(((self._first == OPEN) | (self._last == COMPLETING)).any())

  def _fill_tables(self, i: int, data: bytes) -> None:
    """Fill in the tables for id `i`, which stands for the bytes `data`."""
    self._count[i] = min(len(data), _MAX_BYTES)
    self._head[i] = int.from_bytes(data[:_MAX_BYTES].ljust(_MAX_BYTES, b"\0"), "big")
    self._tail[i] = int.from_bytes(data[-_MAX_BYTES:], "big")
    new_letters = data.lstrip(segmentation.CONTINUATION)
    begins_inside = len(new_letters) < len(data)
    num_unfinished = segmentation.count_unfinished(new_letters)
    text = new_letters[: len(new_letters) - num_unfinished].decode(errors="replace")
    if begins_inside:
      self._first[i] = INSIDE
    elif text:
      self._first[i] = segmentation.kind(text[0])
    else:
      self._first[i] = OPEN
    if not text:
      completes = begins_inside and not num_unfinished
      self._last[i] = COMPLETING if completes else KEEP
      self._ends[i] = COMPLETING if completes else KEEP
      return
    if not begins_inside:
      self._second[i], self._third[i] = _kinds_after_first(text)
    self._last[i] = _end_for_word(text)
    self._ends[i] = _end_for_sentence(text)

  def word_starts(self, tokens_BL: tf.Tensor) -> tf.Tensor:
    """Mark the tokens that begin a word, special tokens included: int32 [B, L] -> bool [B, L]."""
    return self._word_starts(tokens_BL, self._beginnings(tokens_BL))

  def sentence_starts(self, tokens_BL: tf.Tensor) -> tf.Tensor:
    """Mark the tokens at which a sentence begins: int32 [B, L] -> bool [B, L].

    The first token of a row never does, as nothing is known before it.
    """
    first_BL = self._beginnings(tokens_BL)
    second_BL, third_BL = self._kinds_after_first(tokens_BL, first_BL)
    after_opening_BL = tf.where(second_BL == Kind.OPENING, third_BL, second_BL)
    is_gap_BL = _is_one_of(after_opening_BL, _GAPS)
    closes_BL = (first_BL == Kind.OPENING) & is_gap_BL
    closes_BL |= _is_one_of(first_BL, [Kind.CLOSING, Kind.STRAIGHT])
    spaced_closing_BL = (first_BL == Kind.SPACE) & (second_BL == Kind.CLOSING)
    spaced_closing_BL &= _is_one_of(third_BL, _GAPS)
    ends_BL = self._resolve_completing(
      tf.gather(tf.constant(self._ends), tokens_BL), tokens_BL, _END_OF_KIND
    )
    ends_BL = tf.where(spaced_closing_BL, KEEP, ends_BL)
    before_BL = _shift(_resolve_kept(ends_BL), 1, NO_END)

    # Quotes and brackets that begin a sentence, so that the letter after them does not.
    opens_BL = (before_BL == STRONG_END) & (first_BL == Kind.OPENING) & ~is_gap_BL
    is_unspaced_BL = after_opening_BL == Kind.UNSPACED
    opens_BL |= (before_BL == END) & (first_BL == Kind.OPENING) & is_unspaced_BL
    is_after_special_BL = _shift(first_BL, 1, Kind.OTHER) == SPECIAL
    opens_BL |= (before_BL == STRONG_END) & closes_BL & is_after_special_BL
    ends_BL = tf.where(opens_BL, NO_END, ends_BL)
    before_BL = _shift(_resolve_kept(ends_BL), 1, NO_END)

    continuing = [INSIDE, Kind.EXTENDING, Kind.TERMINATOR, Kind.STRONG_TERMINATOR]
    continues_BL = closes_BL | spaced_closing_BL | _is_one_of(first_BL, continuing)
    begins_BL = (before_BL == STRONG_END) & ~continues_BL
    begins_BL |= (before_BL == END) & ~spaced_closing_BL & self._word_starts(tokens_BL, first_BL)
    begins_BL |= opens_BL & (before_BL != NO_END)
    return begins_BL & (first_BL != SPECIAL)

  def _kinds_after_first(
    self, tokens_BL: tf.Tensor, first_BL: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the second and third kinds of the characters that begin with each id.

    Equal kinds within an id count once. `first_BL` are the first kinds.
    """
    following_BL = _next_outside(first_BL, first_BL)
    second_BL = tf.gather(tf.constant(self._second), tokens_BL)
    third_BL = tf.gather(tf.constant(self._third), tokens_BL)
    third_BL = tf.where(third_BL == NEXT, following_BL, third_BL)
    is_next_BL = second_BL == NEXT
    second_BL = tf.where(is_next_BL, following_BL, second_BL)
    third_BL = tf.where(is_next_BL, _next_outside(second_BL, first_BL), third_BL)
    return second_BL, third_BL

  def _word_starts(self, tokens_BL: tf.Tensor, first_BL: tf.Tensor) -> tf.Tensor:
    """Mark the tokens that begin a word, from the kinds of their first characters."""
    last_BL = tf.gather(tf.constant(self._last), tokens_BL)
    last_BL = _resolve_kept(self._resolve_completing(last_BL, tokens_BL, _LAST_OF_KIND))
    before_BL = _shift(last_BL, 1, SPACED)
    starts_BL = _is_one_of(first_BL, [SPECIAL, Kind.SPACE, Kind.UNSPACED])
    starts_BL |= (first_BL == Kind.LETTER) & (before_BL == UNSPACED)
    starts_BL |= (before_BL == AFTER_WORD) & ~_is_one_of(first_BL, [INSIDE, Kind.EXTENDING])
    return starts_BL

  def letter_starts(self, tokens_BL: tf.Tensor) -> tf.Tensor:
    """Mark the tokens that do not continue a letter of the token before.

    int32 [B, L] -> bool [B, L].
    """
    return ~_is_one_of(self._beginnings(tokens_BL), [INSIDE, Kind.EXTENDING])

  def _beginnings(self, tokens_BL: tf.Tensor) -> tf.Tensor:
    """Return the kind of the first character of each id."""
    first_BL = tf.gather(tf.constant(self._first), tokens_BL)
    if not self._splits_letters:
      return first_BL
    bytes_BL = self._join_bytes(tokens_BL, self._head, -1)
    b0, b1, b2, b3 = _split_bytes(bytes_BL)
    longer_BL = tf.where(b0 < 0xF0, _code(b0 & 0x0F, b1, b2), _code(b0 & 0x07, b1, b2, b3))
    code_BL = tf.where(b0 < 0xE0, _code(b0 & 0x1F, b1), longer_BL)
    second = _is_continuation(b1)
    third = _is_continuation(b2) | (b0 < 0xE0)
    fourth = _is_continuation(b3) | (b0 < 0xF0)
    kind_BL = tf.where(second & third & fourth, _kind(code_BL), int(Kind.OTHER))
    return tf.where(first_BL == OPEN, kind_BL, first_BL)

  def _resolve_completing(
    self, values_BL: tf.Tensor, tokens_BL: tf.Tensor, value_of_kind: list[int]
  ) -> tf.Tensor:
    """Replace COMPLETING with the value of the letter that an id completes."""
    if not self._splits_letters:
      return values_BL
    bytes_BL = self._join_bytes(tokens_BL, self._tail, 1)
    b3, b2, b1, b0 = _split_bytes(bytes_BL)
    longer_BL = tf.where(b2 >= 0xE0, _code(b2 & 0x0F, b1, b0), _code(b3 & 0x07, b2, b1, b0))
    code_BL = tf.where(b1 >= 0xC2, _code(b1 & 0x1F, b0), longer_BL)
    is_letter_BL = ((b1 >= 0xC2) & (b1 < 0xE0)) | ((b2 >= 0xE0) & (b2 < 0xF0)) | (b3 >= 0xF0)
    letter_BL = tf.where(is_letter_BL, tf.gather(tf.constant(value_of_kind), _kind(code_BL)), KEEP)
    return tf.where(values_BL == COMPLETING, letter_BL, values_BL)

  def _join_bytes(self, tokens_BL: tf.Tensor, parts: np.ndarray, step: int) -> tf.Tensor:
    """Join the bytes of each id with those of its neighbours, as 32 bits in int64.

    The neighbours are the ids before (`step` 1) or after (-1).
    """
    part_BL = tf.gather(tf.constant(parts), tokens_BL)
    count_BL = tf.gather(tf.constant(self._count), tokens_BL)
    joined_BL = part_BL
    bits_BL = tf.zeros_like(count_BL)
    shift = tf.bitwise.left_shift if step > 0 else tf.bitwise.right_shift
    for distance in range(1, _MAX_BYTES):
      bits_BL += 8 * _shift(count_BL, step * (distance - 1), 0)
      neighbour_BL = _shift(part_BL, step * distance, 0)
      joined_BL |= shift(neighbour_BL, tf.minimum(bits_BL, 32))
    return joined_BL & 0xFFFFFFFF


def _kinds_after_first(text: str) -> list[int]:
  """Return the second and third kinds of a text in which equal kinds count once, else NEXT."""
  kinds = [int(kind) for kind, _ in itertools.groupby(text, segmentation.kind)]
  return [*kinds[1:3], NEXT, NEXT][:2]


def _end_for_word(text: str) -> int:
  """Return the end of a text that decides whether a word begins after it."""
  if text[-1].isspace():
    return SPACED if text.isspace() else AFTER_WORD
  for character in reversed(text):
    value = _LAST_OF_KIND[segmentation.kind(character)]
    if value != KEEP:
      return value
  return KEEP


def _end_for_sentence(text: str) -> int:
  """Return the end of a text that decides whether a sentence begins after it."""
  for character in reversed(text.rstrip() or text):
    value = _END_OF_KIND[segmentation.kind(character)]
    if value != KEEP:
      return value
  return KEEP


def _value_of_each_kind(default: int, values: dict[Kind, int]) -> list[int]:
  """Return the value of each kind of character."""
  return [values.get(kind, default) for kind in Kind]


_GAPS = [Kind.SPACE, SPECIAL]  # kinds after a quote that closes
_LAST_OF_KIND = _value_of_each_kind(SPACED, {Kind.UNSPACED: UNSPACED, Kind.EXTENDING: KEEP})
_END_OF_KIND = _value_of_each_kind(
  NO_END,
  {
    Kind.TERMINATOR: END,
    Kind.STRONG_TERMINATOR: STRONG_END,
    Kind.CLOSING: KEEP,
    Kind.OPENING: KEEP,
    Kind.STRAIGHT: KEEP,
    Kind.EXTENDING: KEEP,
  },
)


def _resolve_kept(values_BL: tf.Tensor) -> tf.Tensor:
  """Replace KEEP with the value before; the beginning of a row is 0."""
  for step in range(_LOG2_REACH):
    values_BL = tf.where(values_BL == KEEP, _shift(values_BL, 2**step, 0), values_BL)
  return values_BL


def _next_outside(values_BL: tf.Tensor, first_BL: tf.Tensor) -> tf.Tensor:
  """Return the values of the next ids that do not begin inside a letter; SPACE at a row's end."""
  next_BL = _shift(tf.where(first_BL == INSIDE, INSIDE, values_BL), -1, int(Kind.SPACE))
  for step in range(_LOG2_REACH):
    next_BL = tf.where(next_BL == INSIDE, _shift(next_BL, -(2**step), int(Kind.SPACE)), next_BL)
  return next_BL


def _shift(values_BL: tf.Tensor, positions: int, fill: int) -> tf.Tensor:
  """Move values to the right by a number of positions, or to the left by a negative number."""
  length = tf.shape(values_BL)[1]
  padded = tf.pad(
    values_BL, [[0, 0], [max(positions, 0), max(-positions, 0)]], constant_values=fill
  )
  start = max(-positions, 0)
  return padded[:, start : start + length]


def _split_bytes(bytes_BL: tf.Tensor) -> list[tf.Tensor]:
  """Return the four bytes of 32 bits, int32 [B, L] each, from the highest."""
  parts = []
  for position in range(_MAX_BYTES):
    shifted_BL = tf.bitwise.right_shift(bytes_BL, tf.constant(24 - 8 * position, tf.int64))
    parts.append(tf.cast(shifted_BL & 0xFF, tf.int32))
  return parts


def _is_continuation(byte_BL: tf.Tensor) -> tf.Tensor:
  """Return whether a byte continues a letter of the byte before."""
  return (byte_BL & 0xC0) == 0x80


def _code(lead_BL: tf.Tensor, *continuations: tf.Tensor) -> tf.Tensor:
  """Return the code points of letters from the bits of their first byte and their further bytes."""
  code_BL = lead_BL
  for byte_BL in continuations:
    code_BL = code_BL * 64 + (byte_BL & 0x3F)
  return code_BL


def _kind(code_BL: tf.Tensor) -> tf.Tensor:
  """Return the kinds of code points, int32 [B, L]."""
  table = segmentation.kinds()
  index_BL = tf.clip_by_value(code_BL, 0, table.size - 1)
  return tf.cast(tf.gather(tf.constant(table), index_BL), tf.int32)


def _is_one_of(values_BL: tf.Tensor, values: list[int]) -> tf.Tensor:
  """Return whether each number is one of `values`."""
  is_BL = values_BL == int(values[0])
  for value in values[1:]:
    is_BL |= values_BL == int(value)
  return is_BL
