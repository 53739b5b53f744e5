"""Fill-in-the-middle: rearranged documents teach a decoder to infill (Bavarian et al. 2022, section
3).

A document is cut at two random places into prefix, middle and suffix, and written in one of two
orders:

    PSM   <PRE> prefix <SUF> suffix <MID> middle <EOS>
    SPM   <PRE> <SUF> suffix <MID> prefix middle <EOS>     (the paper's variant for training on both, section 3.1)

A document ends with EOS even if the window ends before it, because the model must learn that the
middle is complete. Worked example, tokens [5, 6, 7, 8, 1] with EOS 1, cut after 1 and 3 tokens,
sentinels P, S and M: [P, 5, S, 8, M, 6, 7, 1], or [P, S, 8, M, 5, 6, 7, 1].

Cuts between characters are uniform among the characters; a model that must continue inside a word
needs them (section
4.3). The paper retokenises each of the three parts. Here only a token that is cut in two is
respelled, each half by the longest pieces, so the parts always spell the document. If no pieces
spell a half, as within a multi-byte character, the cut moves to before the token.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from t5x_like.data.preprocessors.spellings import spellings
from t5x_like.data.supervised import bins
from t5x_like.errors import UserError
from t5x_like.vocabularies import Vocabulary

ROOM = 6  # three sentinels, an EOS, and one more token per cut
KNOWN_PIECES = (  # prefix, suffix and middle: StarCoder; CodeGemma and Qwen; Code Llama
  ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
  ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
  ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),
  ("<PRE>", "<SUF>", "<MID>"),
)
_WORDS = 4  # random words per document


def sentinels(vocabulary: Vocabulary, pieces: Sequence[str] = ()) -> tuple[int, int, int]:
  """Return the ids of prefix, suffix and middle: of `pieces`, else of the first of `KNOWN_PIECES`, else
  sentinels 0 to 2.

  Raises:
    UserError: the vocabulary lacks them all, or `pieces` are not three pieces of the vocabulary.
  """
  if pieces and len(pieces) != 3:
    raise UserError(
      f"config.task.sentinels: found {len(pieces)} pieces, expected three: prefix, "
      "suffix and middle"
    )
  ids = {piece: i for i, piece in enumerate(vocabulary.pieces_of(range(vocabulary.size)))}
  for names in [pieces] if pieces else KNOWN_PIECES:
    if all(name in ids for name in names):
      return tuple(ids[name] for name in names)
  if pieces:
    missing = next(name for name in pieces if name not in ids)
    raise UserError(
      f"config.task.sentinels: found no piece {missing!r} in the vocabulary of "
      f"{vocabulary.size} ids"
    )
  if vocabulary.extra_ids < 3:
    raise UserError(
      f"vocabulary of {vocabulary.size} ids: found neither {', '.join(KNOWN_PIECES[0])} nor three "
      "sentinels, expected pieces "
      "for prefix, suffix and middle: name them in config.task.sentinels"
    )
  return tuple(vocabulary.sentinels[:3])


class FillInTheMiddle:
  """Fill-in-the-middle on the documents of windows.

  Args:
    vocabulary: vocabulary of the ids.
    length: length of the result; longer rows are truncated.
    rate: share of documents to rearrange.
    spm_rate: share of rearranged documents in SPM order.
    characters: whether to cut between characters instead of tokens.
    pieces: see `sentinels`.
  """

  def __init__(
    self,
    vocabulary: Vocabulary,
    length: int,
    rate: float,
    spm_rate: float,
    characters: bool,
    pieces: Sequence[str] = (),
  ):
    self._length = length
    self._rate = rate
    self._spm_rate = spm_rate
    self.sentinels = sentinels(vocabulary, pieces)
    self._eos = vocabulary.eos_id
    self._pad = self._eos if vocabulary.pad_id is None else vocabulary.pad_id
    self._spellings = spellings(vocabulary) if characters else None
    if characters:
      self._sizes = np.array([len(spelling) for spelling in self._spellings], np.int64)
      text = sorted(
        set(range(vocabulary.size)) - vocabulary.special_ids - {vocabulary.unk_id}, reverse=True
      )
      self._pieces = {self._spellings[i]: i for i in text if self._spellings[i] not in ("", "\n")}

  def __call__(
    self, tokens_BW: np.ndarray, begins_BW: np.ndarray, key_B: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Rearrange a batch.

    Args:
      tokens_BW: int32 [B, W].
      begins_BW: bool [B, W], whether a document begins at each token.
      key_B: uint64 [B], one random key per row.

    Returns:
      (tokens, each token's document number from 1), both int32 [B, length]; padding and 0 after the
      end.
    """
    out_BT = np.full((len(tokens_BW), self._length), self._pad, np.int32)
    documents_BT = np.zeros_like(out_BT)
    for row, (tokens_W, begins_W) in enumerate(zip(tokens_BW, begins_BW, strict=True)):
      parts = np.split(tokens_W, np.flatnonzero(begins_W[1:]) + 1)
      words = (
        bins.random_words(int(key_B[row]), np.arange(_WORDS * len(parts))).reshape(-1, _WORDS)
        / 2.0**64
      )
      made = [self._document(part, *word) for part, word in zip(parts, words.tolist(), strict=True)]
      ids = np.concatenate(made)[: self._length]
      out_BT[row, : ids.size] = ids
      documents_BT[row, : ids.size] = np.repeat(
        np.arange(1, len(made) + 1), [len(one) for one in made]
      )[: ids.size]
    return out_BT, documents_BT

  def _document(
    self, tokens_N: np.ndarray, whether: float, order: float, one: float, other: float
  ) -> np.ndarray:
    if whether >= self._rate:
      return tokens_N
    text_N = tokens_N[:-1] if tokens_N[-1] == self._eos else tokens_N
    prefix, middle, suffix = self._cut(text_N, *sorted((one, other)))
    pre, suf, mid = ([i] for i in self.sentinels)
    spm = order < self._spm_rate
    parts = (
      (pre, suf, suffix, mid, prefix, middle) if spm else (pre, prefix, suf, suffix, mid, middle)
    )
    return np.concatenate([*parts, [self._eos]]).astype(np.int32)

  def _cut(self, text_N: np.ndarray, *shares: float) -> list[np.ndarray]:
    """Cut a text into three parts at two shares of its tokens or characters, ascending in 0..1."""
    if self._spellings is None:
      return np.split(text_N, [int(share * (text_N.size + 1)) for share in shares])
    ends_N = np.cumsum(self._sizes[text_N])
    first, last = (self._place(text_N, ends_N, share) for share in shares)
    if first[0] == last[0] and last[1] and self._between(text_N, first, last) is None:
      first = first[0], 0
    bounds = (0, 0), first, last, (text_N.size, 0)
    return [np.array(self._between(text_N, *pair), np.int32) for pair in itertools.pairwise(bounds)]

  def _place(self, text_N: np.ndarray, ends_N: np.ndarray, share: float) -> tuple[int, int]:
    """Return (the token at a cut, the number of its characters before the cut; 0 if it cannot be
    cut there)."""
    if not text_N.size:
      return 0, 0
    cut = int(share * (int(ends_N[-1]) + 1))
    place = int(np.searchsorted(ends_N, cut, side="right"))
    inside = cut - (int(ends_N[place - 1]) if place else 0)
    if place == text_N.size or not inside:
      return place, 0
    spelling = self._spellings[text_N[place]]
    halves = self._spelled(spelling[:inside]), self._spelled(spelling[inside:])
    return place, 0 if None in halves else inside

  def _between(
    self, text_N: np.ndarray, first: tuple[int, int], last: tuple[int, int]
  ) -> list[int] | None:
    """Return the ids of the text between two cuts; None if no pieces spell it."""
    (i, x), (j, y) = first, last
    if i == j:
      return self._spelled(self._spellings[text_N[i]][x:y]) if y else []
    head = self._spelled(self._spellings[text_N[i]][x:]) if x else text_N[i : i + 1].tolist()
    tail = self._spelled(self._spellings[text_N[j]][:y]) if y else []
    return [*head, *text_N[i + 1 : j].tolist(), *tail]

  def _spelled(self, text: str) -> list[int] | None:
    """Spell a text greedily by the longest pieces; return None if that fails."""
    ids = []
    start = 0
    while start < len(text):
      end = next(
        (end for end in range(len(text), start, -1) if text[start:end] in self._pieces), None
      )
      if end is None:
        return None
      ids.append(self._pieces[text[start:end]])
      start = end
    return ids
