"""Words and sentences of text in any script.

Masking, cleaning, decontamination and cutting share these rules. They rest on properties of the
Unicode character database (in the sense of UAX #14 and #29), not on lists of languages.

- A **word** is text up to the next white space, punctuation included. In scripts that put no spaces
  between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese, Tibetan, ...) each letter with its
  marks is a word, since no dictionary is used. A letter of another script after such a letter
  begins a word, too. Korean has spaces.
- A **sentence** ends at a terminator (`Sentence_Terminal`, or an ellipsis), with the closing quotes
  and brackets that follow it, where the next word begins. Only `.`, `!`, `?` and the like need the
  next word, because they occur within words (`3.14`); `。`, `！`, `？`, `؟`, `।` and `።` always end
  one.
- A **quote after a terminator** closes if it is a final one (`”`, `»`), a straight one or a closing
  bracket. An initial one (`“`, `«`) closes only before a space, as in German („Geh.“ Er), and
  otherwise opens the next sentence, as in Chinese (他说。“走吧！”). A final quote between spaces
  closes, too, as in French (« Va ! » Il).

Worked example: `我爱Python。真的` has the words 我, 爱, Python。, 真, 的 and the sentences
我爱Python。 and 真的.
"""

import enum
import functools
import re
from collections.abc import Iterator

import numpy as np
import regex


class Kind(enum.IntEnum):
  """The kinds of characters that the rules distinguish.

  Attributes:
    OTHER: punctuation, symbols, controls.
    SPACE: white space.
    LETTER: letters and numbers of scripts with spaces between words.
    UNSPACED: letters of scripts without spaces between words.
    EXTENDING: marks, joiners and others that belong to the letter before.
    CLOSING: final quotes and closing brackets.
    TERMINATOR: ends a sentence if the next word begins after it.
    STRONG_TERMINATOR: ends a sentence.
    OPENING: initial quotes and opening brackets.
    STRAIGHT: quotes without a direction.
  """

  OTHER = 0
  SPACE = 1
  LETTER = 2
  UNSPACED = 3
  EXTENDING = 4
  CLOSING = 5
  TERMINATOR = 6
  STRONG_TERMINATOR = 7
  OPENING = 8
  STRAIGHT = 9


_SPACE = r"\s\x1c-\x1f"
_EXTENDING = r"[\p{M}\p{GCB=Extend}\p{GCB=SpacingMark}\p{GCB=ZWJ}]"
# Line-breaking classes (UAX #14) of scripts in which lines may break between letters.
_BREAKS = "".join(rf"\p{{Line_Break={value}}}" for value in ("SA", "ID", "CJ", "NS", "AK", "AS"))
_UNSPACED = (
  rf"[[\p{{L}}\p{{Nl}}\p{{No}}]&&[{_BREAKS}\p{{Script=Tibetan}}\p{{Script=Yi}}]]"
  rf"--[\p{{Script=Hangul}}\p{{Script=Latin}}]--{_EXTENDING}"
)
_LETTER = rf"[\p{{L}}\p{{N}}]--[{_UNSPACED}]--{_EXTENDING}"
_CLOSING = r"\p{Pe}\p{Pf}"
_OPENING = r"\p{Ps}\p{Pi}"
_STRAIGHT = r"\"'\u05f3\u05f4\uff02\uff07"
_TERMINATOR = r".!?\u2024\u2026\ufe52\uff0e"
_STRONG_TERMINATOR = rf"[\p{{Sentence_Terminal}}\u037e\u0f0d\u0f0e]--[{_TERMINATOR}]"
_CLASSES = {  # a later class overrides an earlier one
  Kind.SPACE: _SPACE,
  Kind.LETTER: _LETTER,
  Kind.UNSPACED: _UNSPACED,
  Kind.EXTENDING: _EXTENDING,
  Kind.CLOSING: _CLOSING,
  Kind.OPENING: _OPENING,
  Kind.STRAIGHT: _STRAIGHT,
  Kind.TERMINATOR: _TERMINATOR,
  Kind.STRONG_TERMINATOR: _STRONG_TERMINATOR,
}
CONTINUATION = bytes(range(0x80, 0xC0))  # UTF-8 bytes after the first of a character
_NUM_CODES = 0x110000
# Ranges of codes outside of which all characters are OTHER.
_ASSIGNED = ((0, 0x34000), (0xE0000, 0xE1000))

# The patterns below write a set of kinds as capitals in braces: {WT} is any terminator.
_LETTERS = {
  "U": Kind.UNSPACED,
  "L": Kind.LETTER,
  "E": Kind.EXTENDING,
  "C": Kind.CLOSING,
  "O": Kind.OPENING,
  "Q": Kind.STRAIGHT,
  "S": Kind.SPACE,
  "W": Kind.TERMINATOR,
  "T": Kind.STRONG_TERMINATOR,
}
# Matching starts at the first of a run of terminators only, so that long runs take linear time. A
# run with a strong terminator ends a sentence; one without needs space, the end or an unspaced
# letter after it.
_CLOSED = r"(?:{CQOE}*(?={S}|\Z)|{CQE}*)(?:{S}+{C}+(?={S}|\Z))?{S}*"
_SPACED = r"{CQOE}*(?:{S}+{C}+(?={S}|\Z))?(?:{S}+|\Z)"
_END = (
  r"{WT}(?<!{WT}{WT})"
  rf"(?:(?:(?<={{T}})|{{W}}*{{T}}){{WT}}*{_CLOSED}|{{W}}*(?:{_SPACED}|{{CQE}}*(?={{O}}*{{U}})))"
)
_PATTERNS = {
  "unspaced": "{U}",
  "word": "{U}[^LUS]*|[^US]+",
  "term": "{U}{E}*|{L}{LE}*",
  "end": _END,
  "at_end": r"{WT}{CQOES}*\Z",
}


@functools.cache
def _pattern(name: str) -> re.Pattern:
  """Compile one of the patterns for the standard library, which matches sets faster."""
  sets = {letter: _ranges(kind) for letter, kind in _LETTERS.items()}
  bracketed = re.sub(r"\{([A-Z]+)\}", r"[\1]", _PATTERNS[name])

  def expand(match: re.Match) -> str:
    return match[1] + "".join(sets[letter] for letter in match[2])

  return re.compile(re.sub(r"(?<=\[)(\^?)([A-Z]+)(?=\])", expand, bracketed))


@functools.cache
def _ranges(kind: Kind) -> str:
  """Return the code points of a kind as ranges of a regular expression's set."""
  codes = np.flatnonzero(kinds() == kind)
  runs = np.split(codes, np.flatnonzero(np.diff(codes) != 1) + 1)
  return "".join(f"\\U{run[0]:08x}-\\U{run[-1]:08x}" for run in runs)


def words(text: str) -> list[str]:
  """Return the words of a text, punctuation included.

  Text of scripts with spaces is split at white space.
  """
  if not has_unspaced(text):
    return text.split()
  return _pattern("word").findall(text)


def terms(text: str) -> list[str]:
  """Return the words of a text without punctuation, of letters, numbers and their marks."""
  return _pattern("term").findall(text)


def has_unspaced(text: str) -> bool:
  """Return whether a text has a letter of a script without spaces between words."""
  return not text.isascii() and _pattern("unspaced").search(text) is not None


def is_unspaced(term: str) -> bool:
  """Return whether a word of `terms` is a letter of a script without spaces between words."""
  return kind(term[:1]) == Kind.UNSPACED


def sentences(text: str) -> Iterator[str]:
  """Yield sentences with the space after each; they end at line ends, too."""
  for line in text.splitlines(keepends=True):
    start = 0
    for match in _pattern("end").finditer(line):
      sentence = line[start : match.end()]
      if not sentence.isspace():
        yield sentence
      start = match.end()
    if line[start:].strip():
      yield line[start:]


def ends_sentence(text: str) -> bool:
  """Return whether a text ends with a terminator.

  Closing quotes, brackets and spaces may follow it.
  """
  return _pattern("at_end").search(text) is not None


def sentence_ends(text: str, start: int, end: int) -> Iterator[int]:
  """Return an iterator over the ends of sentences from `start` to `end`, after their spaces."""
  return (match.end() for match in _pattern("end").finditer(text, start, end))


def kind(character: str) -> Kind:
  """Return the kind of a character; OTHER for an empty text."""
  if not character:
    return Kind.OTHER
  return Kind(int(kinds()[ord(character)]))


def count_unfinished(data: bytes) -> int:
  """Return the number of bytes of an incomplete character at the end of UTF-8 bytes."""
  for count in range(1, min(len(data), 3) + 1):
    byte = data[-count]
    if byte < 0x80:
      return 0
    if byte >= 0xC0:
      return count if _letter_length(byte) > count else 0
  return 0


def _letter_length(lead: int) -> int:
  """Return the number of bytes of a UTF-8 character from its first byte, which is above 0xBF."""
  if lead >= 0xF0:
    return 4
  if lead >= 0xE0:
    return 3
  return 2


def begins_word(data: bytes) -> bool:
  """Return whether the bytes of an id begin a word in any text.

  They do if their first character is white space or an unspaced letter. An incomplete character
  begins a word if every letter that completes it is unspaced.
  """
  if not data or data[0] in CONTINUATION:
    return False
  first = data[:4].decode(errors="ignore")[:1]
  if first and first.encode() == data[: len(first.encode())]:
    return kind(first) in (Kind.SPACE, Kind.UNSPACED)
  lead = data[0]
  if not 0xE0 <= lead < 0xF5:
    return False
  length = _letter_length(lead)
  low = data[:length].ljust(length, b"\x80")
  high = data[:length].ljust(length, b"\xbf")
  completions = kinds()[_code(low) : _code(high) + 1]
  is_letter = np.isin(completions, (Kind.LETTER, Kind.UNSPACED, Kind.EXTENDING))
  return bool(is_letter.any() and (completions[is_letter] == Kind.UNSPACED).all())


def _code(data: bytes) -> int:
  """Return the code point of a UTF-8 character of three or four bytes, well-formed or not."""
  code = data[0] & (0x0F if len(data) == 3 else 0x07)
  for byte in data[1:]:
    code = code << 6 | (byte & 0x3F)
  return min(code, _NUM_CODES - 1)


@functools.cache
def kinds() -> np.ndarray:
  """Return the kind of every code point: read-only uint8 [0x110000]."""
  table = np.zeros(_NUM_CODES, np.uint8)
  for first, end in _ASSIGNED:
    text = np.arange(first, end, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    for kind_of_run, pattern in _CLASSES.items():
      for match in regex.finditer(f"[{pattern}]+", text, regex.V1):
        table[first + match.start() : first + match.end()] = kind_of_run
  table.flags.writeable = False
  return table
