"""Answers in a context: the tokens that cover an answer's characters (SQuAD, Rajpurkar et al.
2016)."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from t5x_like.data.supervised.words import Words, character_spans
from t5x_like.errors import UserError
from t5x_like.vocabularies import Vocabulary


class Context(NamedTuple):
  """The tokens of a text, int32 [n]; the characters of each, (begin, end), and of its word, int64
  [n, 2]."""

  tokens: np.ndarray
  spans: np.ndarray
  words: np.ndarray


class Contexts:
  """A tokenizer of contexts; it caches the last one and the characters of every word."""

  def __init__(self, vocabulary: Vocabulary):
    self._vocabulary, self.cut = vocabulary, Words(vocabulary)
    self._known: dict[tuple, list[tuple[int, int]]] = {}
    self._last: tuple[str, Context] | None = None

  def __call__(self, text: str) -> Context:
    if self._last is None or self._last[0] != text:
      at = 0
      tokens = []
      spans = []
      words = []
      for word, ids in zip(text.split(), self.cut(text.split())):
        at = text.index(word, at)
        key = (word, *ids)
        if key not in self._known:
          self._known[key] = character_spans(word, ids, self._vocabulary)
        tokens += ids
        spans += [(at + begin, at + end) for begin, end in self._known[key]]
        words += [(at, at + len(word))] * len(ids)
        at += len(word)
      spans_n2, words_n2 = (np.array(x, np.int64).reshape(-1, 2) for x in (spans, words))
      self._last = text, Context(np.array(tokens, np.int32), spans_n2, words_n2)
    return self._last[1]

  def located(self, text: str, answer: str, begin: int, where: str) -> tuple[int, int]:
    """Return the first and the last token of an answer in a context.

    Some places in SQuAD are of the answer's letters within another word: the "20" of "2015" for
    "set 20 years after". If tokens cannot spell the answer there, its nearest occurrence as words
    of its own is taken, if there is one.

    Args:
      text: the context.
      answer: the answer.
      begin: the place of its first character in the context.
      where: the record, for messages.

    Raises:
      UserError: the answer is not at its place, or is empty.
    """
    begin += len(answer) - len(answer.lstrip())
    answer = answer.strip()
    end = begin + len(answer)
    found = text[begin:end] if begin >= 0 else ""
    if not answer or found != answer:
      raise UserError(
        f"{where}: found {found!r} at place {begin} of the context, expected the answer {answer!r}"
      )
    context = self(text)
    first, last = _covering(context, begin, end)
    if (context.spans[first, 0], context.spans[last, 1]) != (begin, end) and _cut(text, begin, end):
      if places := _elsewhere(text, answer):
        begin = min(
          places,
          key=lambda place: (text[place : place + len(answer)] != answer, abs(place - begin)),
        )
        first, last = _covering(context, begin, begin + len(answer))
    return first, last


def _covering(context: Context, begin: int, end: int) -> tuple[int, int]:
  """Return the first and the last token of the characters from `begin` to `end`."""
  # words where the vocabulary drops all of the characters
  for parts_n2 in (context.spans, context.words):
    first = int((parts_n2[:, 1] <= begin).sum())
    last = int((parts_n2[:, 0] < end).sum()) - 1
    if first <= last:
      return first, last
  first = min(first, len(context.tokens) - 1)  # a word without tokens: the next one
  return first, first


def _cut(text: str, begin: int, end: int) -> bool:
  """Return whether a part of a text begins or ends within a word."""
  return any(
    text[place - 1 : place].isalnum() and text[place : place + 1].isalnum()
    for place in (begin, end)
  )


def _elsewhere(text: str, answer: str) -> list[int]:
  """Return the places where an answer stands as words of its own, in any case."""
  found = re.finditer(f"(?={re.escape(answer)})", text, re.IGNORECASE)
  places = [match.start() for match in found]
  return [place for place in places if not _cut(text, place, place + len(answer))]


def answers_of(found: Any, where: str) -> list[tuple[str, int]]:
  """Return the answers' texts and places in the context, from a list of them or from TFDS's
  dictionary of lists.

  Raises:
    UserError: an answer lacks its text or its place.
  """
  one = found
  try:
    if isinstance(found, dict):
      found = [
        {"text": text, "answer_start": place}
        for text, place in zip(found["text"], found["answer_start"])
      ]
    out = []
    for one in found or ():
      out.append((one["text"], int(one["answer_start"])))
      if not isinstance(out[-1][0], str):
        raise TypeError
  except (KeyError, OverflowError, TypeError, ValueError):
    raise UserError(
      f"{where}: found {str(one)[:80]!r} in field 'answers', expected {{text, answer_start}}: the "
      "text and its place in the context"
    ) from None
  return out


def most_context(windows: Sequence[slice], tokens: int) -> np.ndarray:
  """Return the window that has most context around each token of a text, int [tokens].

  A token's context is the smaller number of tokens on its two sides (Devlin et al. 2019,
  `run_squad.py`). Of several windows with equally much the longest counts, and of these the first.
  """
  score_WN = np.full((len(windows), tokens), -1.0)
  for number, part in enumerate(windows):
    place_n = np.arange(tokens)[part]
    score_WN[number, part] = (
      np.minimum(place_n - place_n[0], place_n[-1] - place_n) + 0.01 * place_n.size
    )
  return score_WN.argmax(axis=0)
