"""Words of running text, the tokens of each, and the characters of each token."""

import unicodedata

from t5x_like.vocabularies import Vocabulary


class Words:
  """A splitter of single words into the tokens they have in running text; it caches results.

  A word whose characters the vocabulary drops, such as a zero-width space, has no tokens.
  """

  def __init__(self, vocabulary: Vocabulary):
    self._vocabulary = vocabulary
    self._ids: dict[str, list[int]] = {}
    # Bytes and byte-level BPE encode the space before a word with it.
    together = list(vocabulary.encode("a b"))
    separate = [*vocabulary.encode("a"), *vocabulary.encode("b")]
    self._space_before = "" if together == separate else " "

  def __call__(self, words: list[str]) -> list[list[int]]:
    """Return the ids of each word."""
    ids = []
    for number, word in enumerate(words):
      text = self._space_before + word if number else word
      if text not in self._ids:
        self._ids[text] = [int(i) for i in self._vocabulary.encode(text)]
      ids.append(self._ids[text])
    return ids


def character_spans(word: str, ids: list[int], vocabulary: Vocabulary) -> list[tuple[int, int]]:
  """Return the characters of each token of a word, (begin, end).

  A vocabulary of the tokenizers library keeps these positions itself. For any other, the decoded
  tokens are aligned with the word, without regard to case and accents, which a vocabulary may fold.
  If the ids do not spell the word, each token covers all of it.
  """
  if hasattr(vocabulary, "encode_with_offsets"):
    for space in ("", " "):  # the ids may be of the word alone or of the word after a space
      encoded, spans = vocabulary.encode_with_offsets(space + word)
      if encoded == list(ids):
        spans = [(max(begin - len(space), 0), end - len(space)) for begin, end in spans]
        return _extend_over_marks(word, spans)
  # The character of the word that each folded letter comes from.
  positions = []
  letters = []
  for position, letter in enumerate(word):
    folded = _fold(letter)
    letters.append(folded)
    positions += [position] * len(folded)
  ends = [len(_fold(vocabulary.decode(ids[: number + 1]))) for number in range(len(ids))]
  spells_word = _fold(vocabulary.decode(ids)) == "".join(letters)
  if not spells_word or sorted(ends) != ends or not positions:
    return [(0, len(word))] * len(ids)
  spans = []
  for begin, end in zip([0, *ends[:-1]], ends):
    begin = min(begin, len(positions) - 1)
    spans.append((positions[begin], positions[max(begin, end - 1)] + 1))
  return spans


def _extend_over_marks(word: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
  """Extend each span over the visible characters after it that belong to no token.

  Visible are accents, vowel signs and jamo, but not joiners and marks of direction.
  """
  extended = []
  next_begins = [begin for begin, _ in spans[1:]] + [len(word)]
  for (begin, end), next_begin in zip(spans, next_begins):
    for position in range(end, next_begin):
      if unicodedata.category(word[position])[0] != "C":
        end = position + 1
    extended.append((begin, end))
  return extended


def _fold(text: str) -> str:
  """Return the letters of a text in lower case, without accents."""
  letters = []
  for letter in unicodedata.normalize("NFKD", text.lower()):
    if not (letter.isspace() or unicodedata.combining(letter) or letter == "\ufffd"):
      letters.append(letter)
  return "".join(letters)
