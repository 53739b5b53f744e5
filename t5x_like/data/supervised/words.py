"""Words of running text, the tokens of each, and the characters of each token."""

import unicodedata

from t5x_like.vocabularies import Vocabulary


class Words:
  """A splitter of single words into the tokens they have in running text; it caches results.

  A word of which the vocabulary drops every character, such as a zero-width space, has none.
  """

  def __init__(self, vocabulary: Vocabulary):
    self._vocabulary = vocabulary
    self._known = {}
    together = [int(i) for i in vocabulary.encode("a b")]
    alone = [int(i) for word in ("a", "b") for i in vocabulary.encode(word)]
    # bytes and byte-level BPE see the space before a word
    self._lead = "" if together == alone else " "

  def __call__(self, words: list[str]) -> list[list[int]]:
    """Return the ids of each word."""
    out = []
    for number, word in enumerate(words):
      text = (self._lead if number else "") + word
      if text not in self._known:
        self._known[text] = [int(i) for i in self._vocabulary.encode(text)]
      out.append(self._known[text])
    return out


def character_spans(word: str, ids: list[int], vocabulary: Vocabulary) -> list[tuple[int, int]]:
  """Return the characters of each token of a word, (begin, end).

  A vocabulary of the tokenizers library keeps these places itself. For any other, the decoded
  tokens are aligned with the word: cased and accented letters equal those to which a vocabulary
  folds them. If the ids do not spell the word, each token covers all of it.
  """
  if hasattr(vocabulary, "encode_with_offsets"):
    for lead in ("", " "):  # the ids may be those of the word after a space
      found, spans = vocabulary.encode_with_offsets(lead + word)
      if found == list(ids):
        spans = [(max(begin - len(lead), 0), past - len(lead)) for begin, past in spans]
        return _with_marks(word, spans)
  places = []
  letters = []
  for place, letter in enumerate(word):
    folded = _folded(letter)
    letters.append(folded)
    places += [place] * len(folded)
  ends = [len(_folded(vocabulary.decode(ids[: number + 1]))) for number in range(len(ids))]
  if _folded(vocabulary.decode(ids)) != "".join(letters) or sorted(ends) != ends or not places:
    return [(0, len(word))] * len(ids)
  begins = [min(begin, len(places) - 1) for begin in [0, *ends[:-1]]]
  return [(places[begin], places[max(begin, end - 1)] + 1) for begin, end in zip(begins, ends)]


def _with_marks(word: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
  """Return the spans, each up to the last visible character behind it that no token has: accents,
  vowel signs, jamo."""
  # not joiners, directions
  seen = [n for n, letter in enumerate(word) if unicodedata.category(letter)[0] != "C"]
  following = [begin for begin, _ in spans[1:]] + [len(word)]
  return [
    (begin, max([past, *(n + 1 for n in seen if past <= n < after)]))
    for (begin, past), after in zip(spans, following)
  ]


def _folded(text: str) -> str:
  letters = unicodedata.normalize("NFKD", text.lower())
  return "".join(
    x for x in letters if not (x.isspace() or unicodedata.combining(x) or x == "\ufffd")
  )
