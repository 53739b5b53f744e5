"""A bound on the text that a tokenizer's file may make of one character.

A few lines of a file can replace a character by thousands, each of these by thousands, and so on:
the memory for a text would have no relation to the sizes of the text and the file.
"""

import base64
import math
from collections.abc import Iterator
from typing import Any

from t5x_like.errors import UserError

MAX_CHARACTERS = 100  # characters from one; published tokenizers stay below 40
_LENGTH_BYTES = 4  # the length of a charsmap's table takes these bytes before it


def check_normalizers(tokenizer: dict[str, Any], where: str) -> None:
  """Check the normaliser and the decoder of a parsed `tokenizer.json`.

  Raises:
    UserError: a chain of replacements may make more than `MAX_CHARACTERS` characters from one.
  """
  for key in ("normalizer", "decoder"):
    factor = math.prod(_factor(step) for step in _steps(tokenizer.get(key)))
    if factor > MAX_CHARACTERS:
      raise UserError(
        f"{where}: found a {key} that may make {factor:.3g} characters of one, expected at most "
        f"{MAX_CHARACTERS}; it is no tokenizer of a published model, use another"
      )


def check_charsmap(charsmap: bytes, where: str) -> None:
  """Check SentencePiece's table of replacements.

  Raises:
    UserError: a replacement has more than `MAX_CHARACTERS` characters.
  """
  length = longest_replacement(charsmap)
  if length > MAX_CHARACTERS:
    raise UserError(
      f"{where}: found a normaliser that may make {length} characters of one, expected at most "
      f"{MAX_CHARACTERS}; it is no tokenizer of a published model, use another"
    )


def longest_replacement(charsmap: bytes) -> int:
  """Return the number of characters of the longest replacement in a table.

  The replacements stand after the table's trie, each ended by a zero byte.
  """
  start = _LENGTH_BYTES + int.from_bytes(charsmap[:_LENGTH_BYTES], "little")
  texts = charsmap[start:].split(b"\0")
  return max(len(text.decode(errors="replace")) for text in texts)


def _steps(part: Any) -> Iterator[dict[str, Any]]:
  """Yield the steps of a normaliser or decoder, including the steps of nested sequences."""
  pending = [part]
  while pending:
    step = pending.pop()
    if not isinstance(step, dict):
      continue
    yield step
    for key in ("normalizers", "decoders"):
      if isinstance(step.get(key), list):
        pending.extend(step[key])


def _factor(step: dict[str, Any]) -> float:
  """Return a bound on the characters that a step makes of one; 1 without text of its own."""
  if step.get("type") == "Precompiled":
    try:
      return max(1, longest_replacement(base64.b64decode(step["precompiled_charsmap"])))
    except (KeyError, TypeError, ValueError):  # the library refuses it
      return 1
  content = step.get("content")
  if step.get("type") != "Replace" or not isinstance(content, str):
    return 1
  pattern = step.get("pattern")
  text = pattern.get("String") if isinstance(pattern, dict) else None
  if isinstance(text, str) and text:
    return max(1.0, len(content) / len(text))
  return 1 + len(content)  # an expression may match between characters, and leave them
