"""Answers in a context: the tokens that cover an answer (SQuAD, Rajpurkar et al. 2016)."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from t5x_like.data.supervised.words import Words, character_spans
from t5x_like.errors import UserError
from t5x_like.vocabularies import Vocabulary


class Context(NamedTuple):
  """The tokens of a text, and the characters of each token and of its word."""

  tokens: np.ndarray  # int32 [n]
  spans: np.ndarray  # int64 [n, 2], (begin, end) of each token
  words: np.ndarray  # int64 [n, 2], (begin, end) of the word of each token


class Contexts:
  """A tokenizer of contexts; it caches the last one and the characters of every word."""

  def __init__(self, vocabulary: Vocabulary):
    self._vocabulary = vocabulary
    self.split_words = Words(vocabulary)
    self._word_spans: dict[tuple, list[tuple[int, int]]] = {}
    self._last: tuple[str, Context] | None = None

  def __call__(self, text: str) -> Context:
    if self._last is None or self._last[0] != text:
      self._last = text, self._tokenize(text)
    return self._last[1]

  def _tokenize(self, text: str) -> Context:
    position = 0
    tokens = []
    spans = []
    word_spans = []
    for word, ids in zip(text.split(), self.split_words(text.split())):
      position = text.index(word, position)
      key = (word, *ids)
      if key not in self._word_spans:
        self._word_spans[key] = character_spans(word, ids, self._vocabulary)
      tokens += ids
      spans += [(position + begin, position + end) for begin, end in self._word_spans[key]]
      word_spans += [(position, position + len(word))] * len(ids)
      position += len(word)
    return Context(
      np.array(tokens, np.int32),
      np.array(spans, np.int64).reshape(-1, 2),
      np.array(word_spans, np.int64).reshape(-1, 2),
    )

  def locate(self, text: str, answer: str, begin: int, where: str) -> tuple[int, int]:
    """Return the first and the last token of an answer in a context.

    Some positions in SQuAD are those of the same letters within another word, such as the "20" of
    "2015" for the answer "20" in "set 20 years after". If the tokens there do not begin and end
    with the answer, the nearest occurrence of the answer as whole words is used, if there is one.

    Args:
      text: the context.
      answer: the answer.
      begin: the position of its first character in the context.
      where: the record, for messages.

    Raises:
      UserError: the answer is not at its position, or is empty.
    """
    begin += len(answer) - len(answer.lstrip())
    answer = answer.strip()
    end = begin + len(answer)
    text_at_position = text[begin:end] if begin >= 0 else ""
    if not answer or text_at_position != answer:
      raise UserError(
        f"{where}: found {text_at_position!r} at position {begin} of the context, expected the "
        f"answer {answer!r}"
      )
    context = self(text)
    first, last = _covering_tokens(context, begin, end)
    is_exact = (context.spans[first, 0], context.spans[last, 1]) == (begin, end)
    if not is_exact and _splits_word(text, begin, end):
      positions = _whole_word_positions(text, answer)
      if positions:
        begin = min(positions, key=lambda position: _distance(text, answer, position, begin))
        first, last = _covering_tokens(context, begin, begin + len(answer))
    return first, last


def _distance(text: str, answer: str, position: int, begin: int) -> tuple[bool, int]:
  """Return the sort key of an occurrence: the same capitals come first, then the nearest."""
  return text[position : position + len(answer)] != answer, abs(position - begin)


def _covering_tokens(context: Context, begin: int, end: int) -> tuple[int, int]:
  """Return the first and the last token of the characters from `begin` to `end`."""
  # If the vocabulary drops all of the characters, the tokens of their word are returned.
  for parts_n2 in (context.spans, context.words):
    first = int((parts_n2[:, 1] <= begin).sum())
    last = int((parts_n2[:, 0] < end).sum()) - 1
    if first <= last:
      return first, last
  first = min(first, len(context.tokens) - 1)  # a word without tokens: take the next word
  return first, first


def _splits_word(text: str, begin: int, end: int) -> bool:
  """Return whether a part of a text begins or ends within a word."""
  for position in (begin, end):
    if text[position - 1 : position].isalnum() and text[position : position + 1].isalnum():
      return True
  return False


def _whole_word_positions(text: str, answer: str) -> list[int]:
  """Return the positions where an answer stands as whole words, in capitals or not."""
  positions = []
  for match in re.finditer(f"(?={re.escape(answer)})", text, re.IGNORECASE):
    position = match.start()
    if not _splits_word(text, position, position + len(answer)):
      positions.append(position)
  return positions


def parse_answers(answers: Any, where: str) -> list[tuple[str, int]]:
  """Return the answers' texts and positions in the context.

  Args:
    answers: a list of objects with `text` and `answer_start`, or TFDS's dictionary of lists.
    where: the record, for messages.

  Raises:
    UserError: an answer lacks its text or its position.
  """
  answer = answers
  try:
    if isinstance(answers, dict):
      pairs = zip(answers["text"], answers["answer_start"])
      answers = [{"text": text, "answer_start": position} for text, position in pairs]
    parsed = []
    for answer in answers or ():
      text = answer["text"]
      parsed.append((text, int(answer["answer_start"])))
      if not isinstance(text, str):
        raise TypeError
  except (KeyError, OverflowError, TypeError, ValueError):
    raise UserError(
      f"{where}: found {str(answer)[:80]!r} in field 'answers', expected {{text, answer_start}}: "
      "the text and its position in the context"
    ) from None
  return parsed


def window_with_most_context(windows: Sequence[slice], tokens: int) -> np.ndarray:
  """Return the window that has most context around each token of a text, int [tokens].

  A token's context is the smaller number of tokens on its two sides (Devlin et al. 2019,
  `run_squad.py`). Of several windows with equally much context, the longest is returned, and of
  these the first.
  """
  score_WN = np.full((len(windows), tokens), -1.0)
  for number, window in enumerate(windows):
    position_n = np.arange(tokens)[window]
    context_n = np.minimum(position_n - position_n[0], position_n[-1] - position_n)
    score_WN[number, window] = context_n + 0.01 * position_n.size
  return score_WN.argmax(axis=0)
