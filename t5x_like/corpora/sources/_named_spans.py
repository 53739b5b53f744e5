"""Find salient spans with a file of names, so that no model runs during training.

Any model that recognises named entities can make the file. The file has one JSON object per line
(`.jsonl`, plain or compressed): a text, and its spans of characters under `spans`, `entities` or
`ents`, as pairs or as objects with `start` and `end` (as spaCy's `Doc.to_json` and the
token-classification pipeline of `transformers` write them), or as lists of `start` and `limit` in
bytes of UTF-8 (as in TFDS's `salient_span_wikipedia`):

    {"text": "Ada Lovelace was born in London.", "spans": [[0, 12], [25, 31]]}

The finder matches the text of these spans wherever it occurs as whole words. The longest match
counts, and spaces around punctuation are ignored, since some tokenizers add them. The texts may be
a sample of the corpus: a name that is marked once is matched everywhere.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any

from t5x_like import trust
from t5x_like.corpora.sources import Record, Skip, open_source
from t5x_like.errors import UserError

KEYS = ("spans", "entities", "ents")
_WORD = re.compile(r"\w+|[^\w\s]")
_MAX_WORDS = 24  # longer names are ignored

Finder = Callable[[str], list[tuple[int, int]]]


def load_finder(where: str, name: str) -> tuple[Finder, str]:
  """Return a finder, and its contribution to a fingerprint.

  Args:
    where: flag or key that names the finder, for messages.
    name: path of a file of names, or `module:function`.

  Raises:
    UserError: the function cannot be imported, the file cannot be read, or a line lacks a text and
      its spans.
  """
  if not re.search(r"\.jsonl(\.\w+)?$", name):
    return trust.import_function(where, name), name
  names = set()
  for text in _names(name):
    words = tuple(_WORD.findall(text))
    if 0 < len(words) <= _MAX_WORDS:
      names.add(words)
  if not names:
    raise UserError(
      f"{where}: {name}: found no spans, expected a line for each text with spans under {KEYS[0]!r}"
    )
  lines = sorted(" ".join(words) for words in names)
  digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
  return _finder(names), digest


def _names(path: str) -> Iterator[str]:
  """Yield the names that a file marks."""
  for where, record in open_source(f"jsonl:{path}").records("train"):
    if isinstance(record, Skip):
      continue
    for start, end in record_spans(record, where):
      yield record["text"][start:end]


def record_spans(record: Record, where: str) -> list[tuple[int, int]]:
  """Return the spans of a record's text, in characters.

  Raises:
    UserError: the record has no text, or spans that are not inside the text.
  """
  text = record.get("text")
  key = next((key for key in KEYS if key in record), None)
  spans_in_record = record.get(key)
  if isinstance(text, str) and isinstance(spans_in_record, dict):
    if {"start", "limit"} <= spans_in_record.keys():
      spans_in_record = _spans_in_characters(text, spans_in_record)
  if not isinstance(text, str) or not isinstance(spans_in_record, list):
    raise UserError(
      f"{where}: found keys {', '.join(record)}, expected 'text' and a list under "
      f"{' or '.join(KEYS)}"
    )
  spans = []
  for span in spans_in_record:
    start, end = _ends(span)
    if not (type(start) is int and type(end) is int and 0 <= start < end <= len(text)):
      raise UserError(
        f"{where}: found the span {span!r}, expected a start and an end in a text of {len(text)} "
        "characters"
      )
    spans.append((start, end))
  return spans


def _spans_in_characters(text: str, byte_spans: dict[str, Any]) -> list[list[int]]:
  """Convert the lists `start` and `limit` of positions in UTF-8 to pairs of characters."""
  encoded = text.encode()

  def to_characters(position):
    return len(encoded[: int(position)].decode(errors="ignore"))

  pairs = zip(byte_spans["start"], byte_spans["limit"])
  return [[to_characters(start), to_characters(limit)] for start, limit in pairs]


def _ends(span: Any) -> tuple[Any, Any]:
  """Return the start and the end of a span of either form; (None, None) for another form."""
  if isinstance(span, dict):
    return span.get("start"), span.get("end")
  return tuple(span[:2]) if isinstance(span, list) and len(span) >= 2 else (None, None)


def _finder(names: set[tuple[str, ...]]) -> Finder:
  """Return a function that finds the longest names in a text, from left to right."""
  max_sizes: dict[str, int] = {}  # by first word: the number of words of the longest name
  for words in names:
    max_sizes[words[0]] = max(len(words), max_sizes.get(words[0], 0))

  def find(text: str) -> list[tuple[int, int]]:
    matches = list(_WORD.finditer(text))
    words = [match[0] for match in matches]
    spans = []
    start = 0
    while start < len(words):
      max_size = min(max_sizes.get(words[start], 0), len(words) - start)
      for size in range(max_size, 0, -1):
        if tuple(words[start : start + size]) in names:
          spans.append((matches[start].start(), matches[start + size - 1].end()))
          start += size
          break
      else:
        start += 1
    return spans

  return find
