"""Define the interface of vocabularies, and find their special ids."""

import functools
import re
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from t5x_like import segmentation
from t5x_like.errors import UserError

PAD_ID = 0
EOS_ID = 1
UNK_ID = 2
# in the order of the sentinels that stand in for them, see `special_id`
SPECIAL_NAMES = ("mask", "cls", "sep", "bos")

_SENTINEL = re.compile(r"<extra_id_(0|[1-9][0-9]{0,8})>")


class Vocabulary(Protocol):
  """The interface of a vocabulary to the rest of the system; ids are 0..size-1.

  Attributes:
    size: the number of ids, sentinels included.
    sentinels: the id of each sentinel; `size - 1 - i` for sentinel i in vocabularies trained by
      this package.
    extra_ids: the number of sentinels.
    pad_id: the id of padding; None in published vocabularies without it, such as GPT-2's, whose id
      0 is a token.
    mask_id, cls_id, sep_id, bos_id: the ids of these pieces, None if the vocabulary lacks the
      piece; `special_id` then returns a sentinel.
    decoder_start_id: the first input of an encoder-decoder's decoder: padding in T5, EOS in BART.
    special_ids: the ids that never stand for text: pad, EOS, the existing pieces among the four
      above, and the sentinels. The unknown id stands for text, so it is not included.
    specials_in_text: whether text spelled like a special piece becomes that piece, as in
      `transformers`; never in vocabularies trained by this package.
    spaces_apart: whether the space before a word is always an id by itself, as in `bytes`, instead
      of a part of the word's first piece.
    starts_word: read-only bool [size], whether an id begins a new word in any text, by
      `segmentation`; True for every special id. If the answer depends on neighbouring ids, as for
      an id that is a part of a letter, use `data.preprocessors.boundaries`.
    fingerprint: SHA-256, hexadecimal, of everything that determines ids.
  """

  size: int
  extra_ids: int
  sentinels: tuple[int, ...]
  pad_id: int | None = PAD_ID
  eos_id: int = EOS_ID
  unk_id: int = UNK_ID
  mask_id: int | None
  cls_id: int | None
  sep_id: int | None
  bos_id: int | None
  decoder_start_id: int = PAD_ID
  specials_in_text: bool = False
  spaces_apart: bool = False
  special_ids: frozenset[int]
  fingerprint: str

  def encode(self, text: str) -> list[int]:
    """Encode plain text, without EOS; `<extra_id_0>` in the text is encoded like any other text."""

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """Encode each text as an int32 array [length]."""

  def for_targets(self) -> "Vocabulary":
    """Return the vocabulary that encodes the target texts of an encoder-decoder.

    It has the same ids. It is the vocabulary itself, unless source and target texts are split by
    different models, as in Marian.
    """
    return self

  def decode(self, ids: Sequence[int]) -> str:
    """Return the text of ids.

    Pad, EOS, BOS, CLS and SEP are dropped. Sentinel i becomes `<extra_id_i>`, and the mask its
    piece. Ids at or above `size` are decoded as unknown, since a model's table may be padded beyond
    the vocabulary.

    Raises:
      UserError: an id is negative.
    """

  def pieces_of(self, ids: Sequence[int]) -> list[str]:
    """Return the spelling of each id, special ids included, for display."""

  def bytes_of(self, ids: Sequence[int]) -> list[bytes]:
    """Return the UTF-8 bytes of the text that each id stands for; empty for special ids.

    The bytes may be a part of a letter. They begin with a space if the id begins a word in any
    text. The unknown id stands for U+FFFD.
    """
    return [b"" if int(i) in self.special_ids else self._text_bytes(int(i)) for i in ids]

  def _text_bytes(self, i: int) -> bytes:
    """Return the UTF-8 bytes of an id that is not special."""
    return self.pieces_of([i])[0].encode()

  @functools.cached_property
  def starts_word(self) -> np.ndarray:
    spellings = self.bytes_of(range(self.size))
    begins = (not spelling or segmentation.begins_word(spelling) for spelling in spellings)
    table = np.fromiter(begins, bool, self.size)
    table[list(self.special_ids)] = True
    table.flags.writeable = False
    return table

  def save(self, directory) -> None:
    """Write a directory for `load`; saving the same vocabulary again writes the same bytes."""

  def export_files(self) -> dict[str, bytes]:
    """Return the files that `transformers` needs to open the vocabulary, by name; may be empty."""
    return {}

  def enclosing_ids(self) -> tuple[list[int], list[int]] | None:
    """Return the ids that `transformers` puts before and after a text by default.

    Returns:
      (ids before, ids after); None for a vocabulary trained by this package.
    """


def special_id(vocabulary: Vocabulary, name: str) -> int:
  """Return the id of a special piece: `mask`, `cls`, `sep` or `bos`.

  In a vocabulary without the piece a sentinel stands in for it: sentinel 0 for the mask, 1 for CLS,
  2 for SEP, 3 for BOS. Objectives that use both sentinels and these pieces need a vocabulary with
  the pieces.

  Raises:
    UserError: the name is unknown, or the vocabulary has neither the piece nor enough sentinels.
  """
  if name not in SPECIAL_NAMES:
    raise UserError(f"special id: found name {name!r}, expected one of {', '.join(SPECIAL_NAMES)}")
  piece_id = getattr(vocabulary, f"{name}_id", None)
  if piece_id is not None:
    return piece_id
  sentinel = SPECIAL_NAMES.index(name)
  if sentinel < vocabulary.extra_ids:
    return vocabulary.sentinels[sentinel]
  raise UserError(
    f"vocabulary of {vocabulary.size} ids: found no {name} piece and {vocabulary.extra_ids} "
    f"sentinels, expected the piece or at least {sentinel + 1} sentinels; python -m "
    "tools.train_vocabulary --with_mask makes one with the piece, and python -m tools.convert_hf "
    "--sentinels takes unused pieces of a published one"
  )


def padding_id(vocabulary: Vocabulary) -> int:
  """Return the id that pads rows.

  It is -1 for a vocabulary without a padding id; `data.padding` replaces these -1s.
  """
  return -1 if vocabulary.pad_id is None else vocabulary.pad_id


def describe_invalid_id(vocabulary: Vocabulary, tokens_N: np.ndarray) -> str | None:
  """Describe an invalid id among the tokens of documents; return None if all are valid.

  Padding is invalid, unless text can produce it.
  """
  smallest = int(tokens_N.min())
  largest = int(tokens_N.max())
  zero_is_padding = vocabulary.pad_id == 0 and not vocabulary.specials_in_text
  first_valid = 1 if zero_is_padding else 0
  if first_valid <= smallest and largest < vocabulary.size:
    return None
  invalid = smallest if smallest < first_valid else largest
  note = " (0 is padding)" if zero_is_padding else ""
  return f"found id {invalid} in a document, expected {first_valid} to {vocabulary.size - 1}{note}"


def opening_ids(vocabulary: Vocabulary) -> list[int]:
  """Return the ids that begin an encoder-decoder's sequences.

  This is BOS for vocabularies published with BART, whose decoder starts with EOS and restores
  `<s> text </s>`. For others the list is empty.
  """
  starts_with_eos = vocabulary.decoder_start_id == vocabulary.eos_id
  if vocabulary.bos_id is None or not starts_with_eos:
    return []
  return [vocabulary.bos_id]


def start_id(vocabulary: Vocabulary) -> int:
  """Return the decoder's first input: the vocabulary's `bos_id`, or EOS if there is none.

  It is never padding, which a decoder would not see. In a token stream a document follows the
  previous one's EOS, so EOS marks its start (as GPT-2's only special token does).
  """
  return vocabulary.eos_id if vocabulary.bos_id is None else vocabulary.bos_id


def encode_sentinels(vocabulary: Vocabulary, text: str) -> list[int]:
  """Encode text with each `<extra_id_N>`, N < extra_ids, as its sentinel; add no EOS.

  The text between sentinels is encoded separately. A sentinel that the vocabulary lacks is plain
  text.
  """
  return encode_sentinels_batch(vocabulary, [text])[0].tolist()


def encode_sentinels_batch(vocabulary: Vocabulary, texts: Sequence[str]) -> list[np.ndarray]:
  """Encode many texts as `encode_sentinels` does."""
  # Collect the parts between sentinels of all texts, to encode them in one batch.
  plain_texts = []
  sentinels_by_text = []
  for text in texts:
    start = 0
    sentinels = []
    for match in _SENTINEL.finditer(text):
      if int(match[1]) < vocabulary.extra_ids:
        plain_texts.append(text[start : match.start()])
        sentinels.append(vocabulary.sentinels[int(match[1])])
        start = match.end()
    plain_texts.append(text[start:])
    sentinels_by_text.append(sentinels)
  encoded = iter(vocabulary.encode_batch(plain_texts))
  rows = []
  for sentinels in sentinels_by_text:
    parts = [next(encoded)]
    for sentinel in sentinels:
      parts += [[sentinel], next(encoded)]
    rows.append(np.concatenate(parts).astype(np.int32))
  return rows
