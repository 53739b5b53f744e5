"""Normalise answers before comparison, score common words, and find final numbers.

SQuAD's rules, and T5's of the same name (`evaluation/qa_utils.py`), delete ASCII punctuation.
TriviaQA's rules replace it, and four more quotes, with spaces. MLQA's rules delete all Unicode
punctuation, and the articles of each language.
"""

import collections
import fractions
import functools
import re
import string
import sys
import unicodedata
from collections.abc import Callable

_ENGLISH_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_TO_SPACE = str.maketrans(dict.fromkeys(string.punctuation + "‘’´`", " "))


def normalize_squad(text: str) -> str:
  """Normalise an answer as SQuAD does (evaluate-v1.1.py): `"The U.S.-led  Army"` -> `"usled army"`.

  The text is lower-cased; ASCII punctuation and the words a, an, the are deleted; white space is
  collapsed.
  """
  return _collapse_space(_ENGLISH_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)))


def normalize_trivia_qa(text: str) -> str:
  """Normalise an answer as TriviaQA does (triviaqa_evaluation.py): `"U.S.-led"` -> `"u s led"`.

  Unlike in `normalize_squad`, punctuation becomes spaces.
  """
  return _collapse_space(_ENGLISH_ARTICLES.sub(" ", text.lower().translate(_TO_SPACE)))


def normalize_mlqa(text: str, language: str) -> str:
  """Normalise an answer as MLQA does (mlqa_evaluation_v1.py).

  The text is lower-cased; Unicode punctuation and the language's articles are deleted. Chinese is
  split into single ideographs. Languages that MLQA lacks are treated like its Hindi: no articles
  are removed, and words are split at spaces (so the "words" of Thai are whole phrases).
  """
  text = text.lower().translate(_unicode_punctuation())
  if language in _ARTICLES:
    text = _ARTICLES[language].sub(" ", text)
  if language == "zh":
    text = _IDEOGRAPH.sub(r" \1 ", text)
  return _collapse_space(text)


_ARTICLES = {
  "en": _ENGLISH_ARTICLES,
  "es": re.compile(r"\b(un|una|unos|unas|el|la|los|las)\b"),
  "vi": re.compile(r"\b(của|là|cái|chiếc|những)\b"),
  "de": re.compile(r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b"),
  # as in the script: everywhere, not only at the beginning of a word
  "ar": re.compile(r"\sال^|ال"),
}
_IDEOGRAPH = re.compile("([\u4e00-\u9fa5])")


@functools.cache
def _unicode_punctuation() -> dict[int, None]:
  """Return a table for `str.translate` that deletes punctuation: category P, and $+<=>^`|~ ."""
  codes = list(map(ord, string.punctuation))
  for code in range(sys.maxunicode):
    if unicodedata.category(chr(code)).startswith("P"):
      codes.append(code)
  return dict.fromkeys(codes)


def _collapse_space(text: str) -> str:
  """Return a text's words with one space between them."""
  return " ".join(text.split())


_DETERMINERS = frozenset(
  (
    "a an few her his each every many much my our some that the their these this those which whose "
    "your"
  ).split()
)


def names_referent(text: str, referent: str) -> bool | None:
  """Return whether a text names a referent of WSC, as T5 judges.

  Case and determiners are ignored, and either may have more words than the other; but "Bob" is not
  "Bob's hat". The result is None if the text has only determiners.
  """
  text = _remove_determiners(text)
  referent = _remove_determiners(referent)
  if not text:
    return None
  if ("'" in text) != ("'" in referent):
    return False
  text_words = set(text.split(" "))
  referent_words = set(referent.split(" "))
  return text_words <= referent_words or referent_words <= text_words


def _remove_determiners(text: str) -> str:
  """Return a text in lower case without its determiners."""
  words = text.strip().lower().split(" ")
  return " ".join(word for word in words if word not in _DETERMINERS)


def token_f1(gold: str, predicted: str) -> float:
  """Return the F1 of two normalised texts' words (SQuAD 1.1); 0 if they share no word."""
  gold_words = gold.split()
  predicted_words = predicted.split()
  common = collections.Counter(gold_words) & collections.Counter(predicted_words)
  num_common = common.total()
  if not num_common:
    return 0.0
  precision = num_common / len(predicted_words)
  recall = num_common / len(gold_words)
  return 2 * precision * recall / (precision + recall)


def token_f1_or_empty(gold: str, predicted: str) -> float:
  """Return `token_f1`, but 1 for two empty texts, as SQuAD 2.0 allows empty answers."""
  if not gold or not predicted:
    return float(gold == predicted)
  return token_f1(gold, predicted)


def best_score(score: Callable[[str, str], float], golds: list[str], predicted: str) -> float:
  """Return the maximum score over several correct answers."""
  return max(float(score(gold, predicted)) for gold in golds)


# Numbers as countries and LaTeX write them: groups of three digits, then a fraction.
_SPACED = r"[0-9]{1,3}(?:[ \u00a0][0-9]{3})+(?![0-9])(?:[.,][0-9]+)?"
_QUOTED = r"[0-9]{1,3}(?:['\u2019_][0-9]{3})+(?![0-9])(?:\.[0-9]+)?"
_DOTTED = r"[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]{1,2}(?![0-9])"
_COMMAS = r"[0-9]+(?:,[0-9]{2,3})*,[0-9]{3}(?![0-9])(?:\.[0-9]+)?"  # Indian groups have two digits
_DECIMAL_COMMA = r"[0-9]+,[0-9]{1,2}(?![0-9,])"
_PLAIN = r"[0-9]+(?:\.[0-9]+)?"
_POINT = r"(?<![\w.])\.[0-9]+"
_EXPONENT = r"(?:[eE](?P<exponent>[+-]?[0-9]{1,3})(?![\w]))?"
_FRACTION = (
  r"(?:(?P<units>[0-9]{1,15}) )?(?P<numerator>[0-9]{1,15}) ?/ "
  r"?(?P<denominator>0*[1-9][0-9]{0,14})(?![0-9/]|[.,][0-9])"
)
_NUMBER = re.compile(
  r"(?P<sign>(?<![\w)])-)?"  # the minus of "16-3" is not a sign
  r"(?:[$\u00a3\u00a5\u20ac\u20b9\u20a9] ?(?P<inner>-)?)?"
  rf"(?:(?<![\w.,/]){_FRACTION}"
  rf"|(?<![0-9.,])(?:(?P<spaced>{_SPACED})|(?P<quoted>{_QUOTED})|(?P<dotted>{_DOTTED})|(?P<commas>{_COMMAS})"
  rf"|(?P<comma>{_DECIMAL_COMMA}))"
  rf"|(?P<plain>{_PLAIN}|{_POINT}){_EXPONENT})"
)
_MARK = re.compile(r"####\s*")
_MINUS_BEFORE_SPACE = re.compile(r"((?:=|####)\s*)-\s+(?=[$.0-9])")
_LATEX_FRACTION = re.compile(r"\\[dt]?frac\{([0-9]+)\}\{([0-9]+)\}")
# 6.02 × 10^{23}, as people and LaTeX write it, and the exponent of a unit, as in m^2
_POWER = r"10(?:\^|\*\*)\{?([+-]?[0-9]{1,3})\}?(?!\w|\.[0-9])"
_SCIENTIFIC = re.compile(rf"(?<=[0-9])\s?(?:[x*\u00d7\u00b7]|\\times|\\cdot)\s?{_POWER}")
_POWER_OF_TEN = re.compile(rf"(?<![\w.^]){_POWER}")
_UNIT_EXPONENT = re.compile(r"(?<=[^\W\d])\^\{?-?[0-9]\}?")
_SUPERSCRIPTS = re.compile(
  "(?<![0-9.])10([\u207a\u207b]?[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]{1,3})"
)
_LATEX_GROUPS = re.compile(r"(?<=[0-9])(?:\{,\}|\\[,;: ])(?=[0-9]{3})")
_SPELLINGS = str.maketrans(
  {
    **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d", "-"),
    **dict.fromkeys("\u2007\u2008\u2009\u200a\u202f\u205f", "\u00a0"),
    "\u066b": ".",
    "\u066c": ",",
    "\uff0e": ".",
    "\uff0c": ",",
    "\uff0f": "/",
    "\uff04": "$",
  }
)


def final_number(text: str) -> str | None:
  """Return the number after the first `####`, as GSM8K's `dataset.py`, else the last number.

  Currency signs, separators of thousands and redundant zeros are removed: `"… it is $1,050.00."` ->
  `"1050"`. Digits, signs and spaces of other scripts and of typesetting are read as those of ASCII.
  A fraction becomes a decimal if that is finite, `"2/5"` -> `"0.4"`, `"1/3"` -> `"1/3"`. A percent
  sign is left out. `6.02 × 10^23` is one number; other powers are not computed. The result is None
  without a number.
  """
  text = _to_ascii_numbers(text)
  for mark in _MARK.finditer(text):
    number = _NUMBER.match(text, mark.end())
    if number:
      return _canonical(number)
  numbers = list(_NUMBER.finditer(text))
  return _canonical(numbers[-1]) if numbers else None


def is_number(text: str) -> bool:
  """Return whether a text is a number and nothing else, but for a percent sign or a full stop."""
  text = _to_ascii_numbers(text).strip().removesuffix(".").removesuffix("%").rstrip()
  return _NUMBER.fullmatch(text) is not None


def _to_ascii_numbers(text: str) -> str:
  """Spell the digits, signs, fractions and spaces of a text's numbers in ASCII and U+00A0."""
  if not text.isascii():
    text = _SUPERSCRIPTS.sub(lambda match: f"10^{unicodedata.normalize('NFKC', match[1])}", text)
    characters = []
    for character in text:
      if character.isdecimal():
        character = str(unicodedata.decimal(character))
      elif unicodedata.decomposition(character).startswith("<fraction>"):
        fraction = unicodedata.normalize("NFKC", character).replace("\u2044", "/")
        character = fraction if characters and characters[-1].isspace() else f" {fraction}"
      characters.append(character)
    text = "".join(characters).replace("\u2044", "/").translate(_SPELLINGS)
  text = text.replace("\\$", "$")
  text = _LATEX_FRACTION.sub(r"\1/\2", text)
  text = _SCIENTIFIC.sub(r"e\1", text)
  text = _POWER_OF_TEN.sub(r"1e\1", text)
  text = _UNIT_EXPONENT.sub("", text)
  text = _LATEX_GROUPS.sub(",", text)
  return _MINUS_BEFORE_SPACE.sub(r"\1-", text)


def _canonical(number: re.Match) -> str:
  """Return a matched number as a decimal without redundant zeros.

  A fraction that has no finite decimal stays one, in lowest terms.
  """
  digits = _unsigned_digits(number)
  if "/" not in digits:
    integer, _, decimals = digits.partition(".")
    integer = integer.lstrip("0") or "0"
    decimals = decimals.rstrip("0")
    digits = f"{integer}.{decimals}" if decimals else integer
  is_negative = bool(number["sign"] or number["inner"])
  return f"-{digits}" if is_negative and digits != "0" else digits


def _unsigned_digits(number: re.Match) -> str:
  """Return a matched number without its sign and separators of thousands."""
  if number["denominator"]:
    units = int(number["units"] or 0)
    return _format_fraction(units, int(number["numerator"]), int(number["denominator"]))
  if number["exponent"]:
    return _shift_point(number["plain"], int(number["exponent"]))
  if number["plain"]:
    return number["plain"]
  if number["dotted"] or number["comma"]:
    return (number["dotted"] or number["comma"]).replace(".", "").replace(",", ".")
  if number["spaced"]:
    return re.sub(r"[ \u00a0]", "", number["spaced"]).replace(",", ".")
  return re.sub(r"[,'\u2019_]", "", number["quoted"] or number["commas"])


def _shift_point(digits: str, exponent: int) -> str:
  """Return a decimal number times 10 to the power of `exponent`."""
  mantissa, _, decimals = digits.partition(".")
  trailing_zeros = "0" * (exponent - len(decimals))
  padded = f"{mantissa}{decimals}".zfill(1 - exponent + len(decimals)) + trailing_zeros
  point = len(padded) - max(len(decimals) - exponent, 0)
  return f"{padded[:point]}.{padded[point:]}"


def _format_fraction(units: int, numerator: int, denominator: int) -> str:
  """Return a fraction, or a mixed number with whole units, as a finite decimal if it has one."""
  value = fractions.Fraction(numerator, denominator)
  if numerator < denominator:
    value += units
  remainder = value.denominator
  decimals = 0
  for prime in (2, 5):
    power = 0
    while remainder % prime == 0:
      remainder //= prime
      power += 1
    decimals = max(decimals, power)
  if remainder > 1:
    return f"{value.numerator}/{value.denominator}"
  digits = str(value.numerator * 10**decimals // value.denominator).zfill(decimals + 1)
  return f"{digits[:-decimals]}.{digits[-decimals:]}" if decimals else digits
