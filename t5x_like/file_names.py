"""Which strings may be names of files: asked of every name that is read, before a path is built from it.

Stores, manifests, configs and checkpoints may come from anybody. A name with a separator, or `..`, would lead out of
the directory that it belongs to.
"""

import unicodedata
from collections.abc import Iterable
from typing import Any

from t5x_like.errors import UserError

LONGEST = 200  # bytes of UTF-8; file systems take 255, of which suffixes and steps need some
RULE = f"a name of 1 to {LONGEST} bytes without separators and control characters"


def is_name(text: Any) -> bool:
  """Whether a value may be the name of one file or directory: a single path component, not `.` or `..`."""
  if not isinstance(text, str) or text in ("", ".", "..") or "/" in text or "\\" in text:
    return False
  try:
    size = len(text.encode())
  except UnicodeEncodeError:  # a lone surrogate
    return False
  return size <= LONGEST and not any(unicodedata.category(character) == "Cc" for character in text)


def is_inside(path: Any) -> bool:
  """Whether a value is a path that stays in the directory it is relative to: names with slashes between them."""
  if not isinstance(path, str) or path.startswith("/"):
    return False
  parts = [part for part in path.split("/") if part not in ("", ".")]
  return bool(parts) and all(map(is_name, parts))


def check(where: str, text: Any, remedy: str = "give it another name") -> str:
  """Returns a name that may be one of a file.

  Args:
    where: the file and key that it was read from, for messages.
    remedy: what to do about another.
  Raises:
    UserError: it may not.
  """
  if not is_name(text):
    raise UserError(f"{where}: found {shown(text)}, expected {RULE}; {remedy}")
  return text


def check_all(where: str, texts: Iterable[Any], remedy: str = "give it another name") -> None:
  """Checks several names; UserError for the first that may not be one."""
  for text in texts:
    check(where, text, remedy)


def shown(value: Any) -> str:
  """A value for a message: on one line, and not longer than one."""
  text = ascii(value)
  return text if len(text) <= 120 else f"{text[:100]}..."
