"""Fill-in-the-middle: rearranged documents, from which a decoder learns to infill.

The method is that of Bavarian et al. 2022, section 3. A document is cut at two random positions
into prefix, middle and suffix, and written in one of two orders:

    PSM   <PRE> prefix <SUF> suffix <MID> middle <EOS>
    SPM   <PRE> <SUF> suffix <MID> prefix middle <EOS>

SPM is the paper's variant for training on both (section 3.1).

A document ends with EOS even if the window ends before it, because the model must learn that the
middle is complete. Worked example, tokens [5, 6, 7, 8, 1] with EOS 1, cut after 1 and 3 tokens,
sentinels P, S and M: [P, 5, S, 8, M, 6, 7, 1], or [P, S, 8, M, 5, 6, 7, 1].

Cuts between characters are uniform among the characters; a model that must continue inside a word
needs them (section 4.3). The paper retokenises each of the three parts. Here only a token that is
cut in two is respelled, each half by the longest pieces, so the parts always spell the document. If
no pieces spell a half, as within a multi-byte character, the cut moves to before the token.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from t5x_like.data.preprocessors.spellings import spell_ids
from t5x_like.data.supervised import bins
from t5x_like.errors import UserError
from t5x_like.vocabularies import Vocabulary

ROOM = 6  # three sentinels, an EOS, and one more token per cut
# The pieces for prefix, suffix and middle of StarCoder, of CodeGemma and Qwen, and of Code Llama.
KNOWN_PIECES = (
  ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
  ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
  ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),
  ("<PRE>", "<SUF>", "<MID>"),
)
_DRAWS = 4  # random numbers per document


def sentinels(vocabulary: Vocabulary, pieces: Sequence[str] = ()) -> tuple[int, int, int]:
  """Return the ids of prefix, suffix and middle.

  They are the ids of `pieces`, else of the first known of `KNOWN_PIECES`, else sentinels 0 to 2.

  Raises:
    UserError: the vocabulary lacks them all, or `pieces` are not three pieces of the vocabulary.
  """
  if pieces and len(pieces) != 3:
    raise UserError(
      f"config.task.sentinels: found {len(pieces)} pieces, expected three: prefix, "
      "suffix and middle"
    )
  ids = {piece: i for i, piece in enumerate(vocabulary.pieces_of(range(vocabulary.size)))}
  candidates = [pieces] if pieces else KNOWN_PIECES
  for names in candidates:
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
      "sentinels, expected pieces for prefix, suffix and middle: name them in config.task.sentinels"
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
    self._spellings = None
    if characters:
      self._spellings = spell_ids(vocabulary)
      self._sizes = np.array([len(spelling) for spelling in self._spellings], np.int64)
      self._pieces = self._find_pieces(vocabulary)

  def _find_pieces(self, vocabulary: Vocabulary) -> dict[str, int]:
    """Return the smallest id of each spelling."""
    ids = set(range(vocabulary.size)) - vocabulary.special_ids - {vocabulary.unk_id}
    pieces = {}
    for i in sorted(ids):
      if self._spellings[i] not in ("", "\n"):
        pieces.setdefault(self._spellings[i], i)
    return pieces

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
    tokens_BT = np.full((len(tokens_BW), self._length), self._pad, np.int32)
    documents_BT = np.zeros_like(tokens_BT)
    for row, (tokens_W, begins_W) in enumerate(zip(tokens_BW, begins_BW, strict=True)):
      documents = np.split(tokens_W, np.flatnonzero(begins_W[1:]) + 1)
      words = bins.random_words(int(key_B[row]), np.arange(_DRAWS * len(documents)))
      draws = (words.reshape(-1, _DRAWS) / 2.0**64).tolist()
      parts = [self._rearrange(ids_N, *u_4) for ids_N, u_4 in zip(documents, draws, strict=True)]
      numbers = np.repeat(np.arange(1, len(parts) + 1), [len(part) for part in parts])
      tokens = np.concatenate(parts)[: self._length]
      tokens_BT[row, : tokens.size] = tokens
      documents_BT[row, : tokens.size] = numbers[: tokens.size]
    return tokens_BT, documents_BT

  def _rearrange(
    self, tokens_N: np.ndarray, rate_u: float, order_u: float, cut_u: float, other_cut_u: float
  ) -> np.ndarray:
    """Rearrange a document by four random numbers in [0, 1)."""
    if rate_u >= self._rate:
      return tokens_N
    text_N = tokens_N[:-1] if tokens_N[-1] == self._eos else tokens_N
    first_share, last_share = sorted((cut_u, other_cut_u))
    prefix, middle, suffix = self._cut(text_N, first_share, last_share)
    prefix_id, suffix_id, middle_id = self.sentinels
    if order_u < self._spm_rate:
      parts = [[prefix_id, suffix_id], suffix, [middle_id], prefix, middle]
    else:
      parts = [[prefix_id], prefix, [suffix_id], suffix, [middle_id], middle]
    return np.concatenate([*parts, [self._eos]]).astype(np.int32)

  def _cut(self, text_N: np.ndarray, first_share: float, last_share: float) -> list[np.ndarray]:
    """Cut a text into three parts at two shares of its tokens or characters, ascending in 0..1."""
    if self._spellings is None:
      positions = [int(share * (text_N.size + 1)) for share in (first_share, last_share)]
      return np.split(text_N, positions)
    ends_N = np.cumsum(self._sizes[text_N])
    first = self._find_cut(text_N, ends_N, first_share)
    last = self._find_cut(text_N, ends_N, last_share)
    if first[0] == last[0] and last[1] and self._spell_between(text_N, first, last) is None:
      first = (first[0], 0)
    cuts = [(0, 0), first, last, (text_N.size, 0)]
    parts = []
    for begin, end in itertools.pairwise(cuts):
      parts.append(np.array(self._spell_between(text_N, begin, end), np.int32))
    return parts

  def _find_cut(self, text_N: np.ndarray, ends_N: np.ndarray, share: float) -> tuple[int, int]:
    """Return the cut at a share of a text's characters.

    Returns:
      (the token at the cut, the number of its characters before the cut; 0 if the token cannot be
      cut there).
    """
    if not text_N.size:
      return 0, 0
    character = int(share * (int(ends_N[-1]) + 1))
    position = int(np.searchsorted(ends_N, character, side="right"))
    inside = character - (int(ends_N[position - 1]) if position else 0)
    if position == text_N.size or not inside:
      return position, 0
    spelling = self._spellings[text_N[position]]
    if self._spell(spelling[:inside]) is None or self._spell(spelling[inside:]) is None:
      return position, 0
    return position, inside

  def _spell_between(
    self, text_N: np.ndarray, begin: tuple[int, int], end: tuple[int, int]
  ) -> list[int] | None:
    """Return the ids of the text between two cuts; None if no pieces spell it."""
    first, first_inside = begin
    last, last_inside = end
    if first == last:
      if not last_inside:
        return []
      return self._spell(self._spellings[text_N[first]][first_inside:last_inside])
    head = text_N[first : first + 1].tolist()
    if first_inside:
      head = self._spell(self._spellings[text_N[first]][first_inside:])
    tail = []
    if last_inside:
      tail = self._spell(self._spellings[text_N[last]][:last_inside])
    return [*head, *text_N[first + 1 : last].tolist(), *tail]

  def _spell(self, text: str) -> list[int] | None:
    """Spell a text greedily by the longest pieces; return None if that fails."""
    ids = []
    start = 0
    while start < len(text):
      end = len(text)
      while end > start and text[start:end] not in self._pieces:
        end -= 1
      if end == start:
        return None
      ids.append(self._pieces[text[start:end]])
      start = end
    return ids
