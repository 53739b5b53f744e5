"""ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum, by rouge-score."""

import unicodedata
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from t5x_like.errors import UserError
from t5x_like.metrics.metric import Metric, percent

_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
# the blocks of Latin letters with marks; Latin Extended Additional has others, such as Vietnamese
_LAST_LATIN = 0x24F
_LATIN_ADDITIONAL = range(0x1E00, 0x1F00)
# Scripts that do not separate words: Thai, Lao, Tibetan, Burmese, Khmer, Japanese and Chinese, and
# further ideographs.
_WITHOUT_SPACES = (
  range(0x0E00, 0x1000),
  range(0x1000, 0x10A0),
  range(0x1780, 0x1800),
  range(0x3040, 0x3100),
  range(0x31F0, 0x3200),
  range(0x3400, 0xA000),
  range(0xF900, 0xFB00),
  range(0xFF66, 0xFF9E),
  range(0x20000, 0x32000),
)


def split_sentences(summary: str) -> str:
  """Start a new line after each " . ", as T5 does for ROUGE-Lsum, whose sentences are lines."""
  return summary.replace(" . ", " .\n")


class UnicodeWords:
  """A tokenizer for rouge-score that knows the letters of all scripts.

  Words are runs of letters, digits and their marks in lower case; of scripts that do not separate
  words, each character with its marks is one.
  """

  def tokenize(self, text: str) -> list[str]:
    words: list[str] = []
    is_open = False  # whether the next character can belong to the last word
    for character in unicodedata.normalize("NFC", text).lower():
      category = unicodedata.category(character)[0]
      if category == "M" and words:
        words[-1] += character
      elif category not in "LN":
        is_open = False
      elif any(ord(character) in script for script in _WITHOUT_SPACES):
        words.append(character)
        is_open = False
      elif is_open:
        words[-1] += character
      else:
        words.append(character)
        is_open = True
    return words


class Rouge(Metric):
  """F-measures, averaged over examples.

  ROUGE-Lsum treats lines as sentences, so `split_sentences` is applied to both sides, as in T5.

  Args:
    use_stemmer: whether to use Porter's stemmer, as ROUGE-1.5.5 with `-m` in most papers; T5 does
      not.
    one_reference: whether of several references the one with the highest ROUGE-1 counts, as in
      SciTLDR's `evaluate.py`; otherwise each type of ROUGE takes its highest (rouge-score's
      `score_multi`).
    tokenize: `ascii` is rouge-score's, whose words are runs of the letters a to z and digits;
      `unicode` knows all scripts (`UnicodeWords`) and has no stemmer.
  """

  names = _TYPES

  def __init__(
    self,
    use_stemmer: bool = True,
    one_reference: bool = False,
    tokenize: Literal["ascii", "unicode"] = "ascii",
  ):
    from rouge_score.rouge_scorer import RougeScorer

    if tokenize not in ("ascii", "unicode"):
      raise UserError(f"rouge: tokenize={tokenize}: expected ascii or unicode")
    self._is_ascii = tokenize == "ascii"
    tokenizer = None if self._is_ascii else UnicodeWords()
    self._scorer = RougeScorer(_TYPES, use_stemmer=use_stemmer, tokenizer=tokenizer)
    self._one_reference = one_reference

  def check_references(self, references: Sequence[Sequence[str]]) -> None:
    """Raise UserError if most references are in scripts of which rouge-score counts no word."""
    count = self._count_other_scripts(references)
    if 2 * count > len(references):
      raise UserError(
        f"rouge: {count} of {len(references)} references are mostly in other scripts than Latin, "
        "of which rouge-score counts no word; set tokenize=unicode (tools.score: "
        "--tokenize=unicode)"
      )

  def _count_other_scripts(self, references: Sequence[Sequence[str]]) -> int:
    """Return the number of references of which rouge-score's own tokenizer counts no word."""
    if not self._is_ascii:
      return 0
    return sum(all(map(_is_other_script, texts)) for texts in references)

  def rows(self, references: Sequence[Sequence[str]], predictions: Sequence[str]) -> np.ndarray:
    rows = []
    for texts, prediction in zip(references, predictions):
      predicted = split_sentences(prediction)
      scores_RT = []
      for text in texts:
        scores = self._scorer.score(split_sentences(text), predicted)
        scores_RT.append([scores[name].fmeasure for name in _TYPES])
      if self._one_reference:
        rows.append(max(scores_RT, key=lambda scores_T: scores_T[0]))
      else:
        rows.append(np.max(scores_RT, axis=0))
    return np.array(rows, np.float64)

  def scores(self, rows_NC: np.ndarray) -> dict[str, float]:
    return {name: percent(mean) for name, mean in zip(_TYPES, rows_NC.mean(0))}

  def details(self, rows_NC: np.ndarray, references, predictions) -> dict[str, Any]:
    """Return the number of references, if any, that are in other scripts than Latin."""
    count = self._count_other_scripts(references)
    return {"other_scripts": count} if count else {}


def _is_other_script(text: str) -> bool:
  """Return whether most letters of a text are not Latin."""
  letters = [character for character in text if character.isalpha()]
  latin = sum(ord(letter) <= _LAST_LATIN or ord(letter) in _LATIN_ADDITIONAL for letter in letters)
  return 2 * latin < len(letters)
