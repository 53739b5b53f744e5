"""Strings that end a generated text: `predict`, `chat` and lm_eval's `until` share them."""

import dataclasses
import functools
import re
from collections.abc import Sequence

from t5x_like.decoding.stops import StopStrings
from t5x_like.errors import UserError
from t5x_like.vocabularies import Vocabulary

_UNFINISHED = "\ufffd"  # in a text whose characters lack bytes
_BYTE = re.compile("<0x([0-9A-F]{2})>")


@dataclasses.dataclass(frozen=True)
class Stops:
  """Strings that end a text and are no part of it; raises UserError for an empty one."""

  strings: tuple[str, ...] = ()

  def __post_init__(self):
    if not all(self.strings):
      raise UserError("--stop: found an empty string, expected text that ends a prediction")

  def cut(self, text: str) -> str:
    """Return the text before the string that is complete first; if several are complete at once,
    before the longest."""
    found = [
      (start + len(string), start) for string in self.strings if (start := text.find(string)) >= 0
    ]
    return text[: min(found)[1]] if found else text

  def stable_prefix(self, text: str) -> str:
    """Return the part of a growing text, without a string so far, that `cut` keeps whatever
    follows."""
    prefix_lengths = (
      n
      for string in self.strings
      for n in range(min(len(string) - 1, len(text)), 0, -1)
      if text.endswith(string[:n])
    )
    return text[: len(text) - max(prefix_lengths, default=0)]

  def on_device(self, vocabulary: Vocabulary) -> StopStrings | None:
    """Return the test that ends rows at these strings; None if there are none."""
    return _on_device(self.strings, vocabulary) if self.strings else None


NO_STOPS = Stops()


@functools.lru_cache(8)
def _on_device(strings: tuple[str, ...], vocabulary: Vocabulary) -> StopStrings:
  return StopStrings([string.encode() for string in strings], token_bytes(vocabulary))


@functools.lru_cache(2)
def token_bytes(vocabulary: Vocabulary) -> list[bytes]:
  """Return the bytes that each id adds to a text, none for special ids; a word's first piece adds
  its space too."""
  decode = vocabulary.decode
  special = vocabulary.special_ids
  texts = (i for i in range(vocabulary.size) if i not in special and i != vocabulary.unk_id)
  first = next(
    (i for i in texts if (text := decode([i])).strip() == text != "" and _UNFINISHED not in text),
    None,
  )
  before = [] if first is None else [first]  # alone, an id might lose its space
  start = len(decode(before))
  found = []
  for i in range(vocabulary.size):
    text = "" if i in special and i not in vocabulary.sentinels else decode([*before, i])[start:]
    found.append(_raw(vocabulary.pieces_of([i])[0], text) if _UNFINISHED in text else text.encode())
  return found


def _raw(piece: str, text: str) -> bytes:
  """Return the bytes of a piece whose characters are not complete: `<0xE2>`, or spelled as
  GPT-2's."""
  if byte := _BYTE.fullmatch(piece):
    return bytes([int(byte[1], 16)])
  byte_of = _byte_level()
  return (
    bytes(byte_of[char] for char in piece)
    if all(char in byte_of for char in piece)
    else text.encode()
  )


@functools.cache
def _byte_level() -> dict[str, int]:
  """Return the byte of each character of GPT-2's pieces (Radford et al. 2019): printable ones stand
  for themselves."""
  plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
  remaining = [byte for byte in range(256) if byte not in plain]
  return {chr(byte): byte for byte in plain} | {
    chr(256 + n): byte for n, byte in enumerate(remaining)
  }


def as_strings(value: str | Sequence[str]) -> tuple[str, ...]:
  """Return the strings of an option, one or several."""
  return (value,) if isinstance(value, str) else tuple(value)
