"""Sentences of a text, for the steps that count or compare them."""

import re
from collections.abc import Iterator

_END = re.compile(r"(?<=[.!?])[\"'\u201d\u2019)]*(?:\s+|$)")


def sentences(text: str) -> Iterator[str]:
  """Yield sentences with the space after each; they end at . ! ? and closing quotes, and at line ends."""
  for line in text.splitlines(keepends=True):
    start = 0
    for match in _END.finditer(line):
      if not (sentence := line[start : match.end()]).isspace():
        yield sentence
      start = match.end()
    if line[start:].strip():
      yield line[start:]
