"""Normalisation of answers before comparison, the overlap of their tokens, and the final number of a worked answer.

SQuAD's rules, and T5's of the same name (`evaluation/qa_utils.py`), delete ASCII punctuation. TriviaQA's rules replace
it, and four more quotes, with spaces. MLQA's rules delete all Unicode punctuation, and the articles of each language.
"""

import collections
import functools
import re
import string
import sys
import unicodedata
from collections.abc import Callable

_ENGLISH_ARTICLES = re.compile(r"\b(a|an|the)\b")
_DELETED = str.maketrans("", "", string.punctuation)
_TO_SPACE = str.maketrans(dict.fromkeys(string.punctuation + "‘’´`", " "))


def normalize_squad(text: str) -> str:
  """Lower-case, delete ASCII punctuation and the words a, an, the, and collapse white space (evaluate-v1.1.py).

  `"The U.S.-led  Army"` -> `"usled army"`
  """
  return _words(_ENGLISH_ARTICLES.sub(" ", text.lower().translate(_DELETED)))


def normalize_trivia_qa(text: str) -> str:
  """Like `normalize_squad`, but turn punctuation into spaces (triviaqa_evaluation.py): `"U.S.-led"` -> `"u s led"`."""
  return _words(_ENGLISH_ARTICLES.sub(" ", text.lower().translate(_TO_SPACE)))


def normalize_mlqa(text: str, language: str) -> str:
  """Apply MLQA's rules (mlqa_evaluation_v1.py): lower-case, delete Unicode punctuation and the language's articles.

  Chinese is split into single ideographs. Languages that MLQA lacks are treated like its Hindi: no articles are
  removed, and words are split at spaces (so the "words" of Thai are whole phrases).
  """
  text = text.lower().translate(_unicode_punctuation())
  if language in _ARTICLES:
    text = _ARTICLES[language].sub(" ", text)
  return _words(_IDEOGRAPH.sub(r" \1 ", text) if language == "zh" else text)


_ARTICLES = {
  "en": _ENGLISH_ARTICLES,
  "es": re.compile(r"\b(un|una|unos|unas|el|la|los|las)\b"),
  "vi": re.compile(r"\b(của|là|cái|chiếc|những)\b"),
  "de": re.compile(r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b"),
  "ar": re.compile(r"\sال^|ال"),  # as in the script: everywhere, not only at the beginning of a word
}
_IDEOGRAPH = re.compile("([\u4e00-\u9fa5])")


@functools.cache
def _unicode_punctuation() -> dict[int, None]:
  """Return characters of category P and ASCII punctuation (where $+<=>^`|~ are symbols), for `str.translate`."""
  named = filter(lambda i: unicodedata.category(chr(i)).startswith("P"), range(sys.maxunicode))
  return dict.fromkeys([*named, *map(ord, string.punctuation)])


def _words(text: str) -> str:
  return " ".join(text.split())


_DETERMINERS = frozenset(
  "a an few her his each every many much my our some that the their these this those which whose your".split()
)


def names_referent(text: str, referent: str) -> bool | None:
  """Return whether a text names a referent of WSC, as T5 judges; None if the text has no words but determiners.

  Case and determiners are ignored, and the words of either may be all of the other's; but "Bob" is not "Bob's hat".
  """
  given, right = (
    " ".join(word for word in one.strip().lower().split(" ") if word not in _DETERMINERS) for one in (text, referent)
  )
  if not given:
    return None
  if ("'" in given) != ("'" in right):
    return False
  first, second = set(given.split(" ")), set(right.split(" "))
  return first <= second or second <= first


def token_f1(gold: str, predicted: str) -> float:
  """Return the F1 of two normalised texts' word multisets; 0 without a common word, even if both are empty (v1.1)."""
  gold_words, predicted_words = gold.split(), predicted.split()
  same = sum((collections.Counter(gold_words) & collections.Counter(predicted_words)).values())
  if not same:
    return 0.0
  precision, recall = same / len(predicted_words), same / len(gold_words)
  return 2 * precision * recall / (precision + recall)


def token_f1_or_empty(gold: str, predicted: str) -> float:
  """Return `token_f1`, but 1 for two empty texts, as in SQuAD 2.0, where an empty answer can be right."""
  return float(gold == predicted) if not gold or not predicted else token_f1(gold, predicted)


def best(score: Callable[[str, str], float], golds: list[str], predicted: str) -> float:
  """Return the maximum score over several right answers."""
  return max(float(score(gold, predicted)) for gold in golds)


_MARKED = re.compile(r"####\s*(-?\$?[\d.,]*\d)")
_NUMBER = re.compile(r"(?:(?<![\w)])-)?\$?\d[\d,]*(?:\.\d+)?")  # the minus of "16-3" is not a sign


def final_number(text: str) -> str | None:
  """Return the number after the first `####`, as GSM8K's `dataset.py`, else the last number in the text, or None.

  Dollar signs, thousands separators and redundant zeros are removed: `"… so it is $1,050.00."` -> `"1050"`.
  """
  found = _MARKED.findall(text)[:1] or _NUMBER.findall(text)
  if not found:
    return None
  number = found[-1].replace(",", "").replace("$", "")
  sign, digits = ("-", number[1:]) if number.startswith("-") else ("", number)
  whole, _, fraction = digits.partition(".")
  fraction = fraction.rstrip("0")
  whole = whole.lstrip("0") or "0"
  number = f"{whole}.{fraction}" if fraction else whole
  return f"{sign}{number}" if number != "0" else number
