"""Cut generated texts at stop strings, for `predict`, `chat` and lm_eval's `until`."""

import dataclasses
import functools
import re
from collections.abc import Sequence

from t5x_like.decoding.stops import StopStrings
from t5x_like.errors import UserError
from t5x_like.vocabularies import Vocabulary

_UNFINISHED = "\ufffd"  # decoding writes it for an incomplete character
_BYTE = re.compile("<0x([0-9A-F]{2})>")


@dataclasses.dataclass(frozen=True)
class Stops:
  """Strings that end a text and are not part of it; an empty one is a UserError."""

  strings: tuple[str, ...] = ()

  def __post_init__(self):
    if not all(self.strings):
      raise UserError("--stop: found an empty string, expected text that ends a prediction")

  def cut(self, text: str) -> str:
    """Return the text before the string that is complete first.

    If several are complete at once, the longest counts.
    """
    matches = []
    for string in self.strings:
      start = text.find(string)
      if start >= 0:
        matches.append((start + len(string), start))
    if not matches:
      return text
    _, start = min(matches)
    return text[:start]

  def stable_prefix(self, text: str) -> str:
    """Return the part of a growing text that `cut` will keep, whatever text follows.

    The text contains no stop string so far.
    """
    longest_prefix = 0  # the length of the longest start of a stop string at the end of the text
    for string in self.strings:
      for n in range(1, min(len(string) - 1, len(text)) + 1):
        if text.endswith(string[:n]):
          longest_prefix = max(longest_prefix, n)
    return text[: len(text) - longest_prefix]

  def on_device(self, vocabulary: Vocabulary) -> StopStrings | None:
    """Return the test that ends rows at these strings; None if there are none."""
    return _on_device(self.strings, vocabulary) if self.strings else None


NO_STOPS = Stops()


@functools.lru_cache(8)
def _on_device(strings: tuple[str, ...], vocabulary: Vocabulary) -> StopStrings:
  return StopStrings([string.encode() for string in strings], token_bytes(vocabulary))


@functools.lru_cache(2)
def token_bytes(vocabulary: Vocabulary) -> list[bytes]:
  """Return the bytes that each id adds to a text, none for special ids.

  The first piece of a word adds its space too.
  """
  prefix = _find_prefix(vocabulary)
  start = len(vocabulary.decode(prefix))
  silent_ids = set(vocabulary.special_ids) - set(vocabulary.sentinels)
  bytes_of_ids = []
  for i in range(vocabulary.size):
    text = "" if i in silent_ids else vocabulary.decode([*prefix, i])[start:]
    if _UNFINISHED in text:
      bytes_of_ids.append(_piece_bytes(vocabulary.pieces_of([i])[0], text))
    else:
      bytes_of_ids.append(text.encode())
  return bytes_of_ids


def _find_prefix(vocabulary: Vocabulary) -> list[int]:
  """Return an id after which other ids keep their space; none if no id is a plain text."""
  for i in range(vocabulary.size):
    if i not in vocabulary.special_ids and i != vocabulary.unk_id:
      text = vocabulary.decode([i])
      if text and text == text.strip() and _UNFINISHED not in text:
        return [i]
  return []


def _piece_bytes(piece: str, text: str) -> bytes:
  """Return the bytes of a piece with incomplete characters, as `<0xE2>` or in GPT-2's spelling."""
  byte = _BYTE.fullmatch(piece)
  if byte:
    return bytes([int(byte[1], 16)])
  byte_of_character = _gpt2_bytes()
  if all(character in byte_of_character for character in piece):
    return bytes(byte_of_character[character] for character in piece)
  return text.encode()


@functools.cache
def _gpt2_bytes() -> dict[str, int]:
  """Return the byte of each character of GPT-2's pieces (Radford et al. 2019).

  Printable characters stand for themselves.
  """
  printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
  byte_of_character = {chr(byte): byte for byte in printable}
  unprintable = [byte for byte in range(256) if byte not in printable]
  for n, byte in enumerate(unprintable):
    byte_of_character[chr(256 + n)] = byte
  return byte_of_character


def as_strings(value: str | Sequence[str]) -> tuple[str, ...]:
  """Return the strings of an option, one or several."""
  return (value,) if isinstance(value, str) else tuple(value)
