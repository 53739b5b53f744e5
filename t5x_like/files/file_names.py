"""Checks of file names: every name read from a file is checked before a path is built from it.

Stores, manifests, configs and checkpoints may come from anybody. A name with a separator, or `..`,
could escape its directory.
"""

import unicodedata
from collections.abc import Iterable
from typing import Any

from t5x_like.errors import UserError

LONGEST = 200  # bytes of UTF-8; file systems allow 255, and suffixes and steps need some of these
RULE = f"a name of 1 to {LONGEST} bytes without separators and control characters"


def is_name(text: Any) -> bool:
  """Return whether a value may name a file: a single path component, not `.` or `..`."""
  if not isinstance(text, str) or text in ("", ".", "..") or "/" in text or "\\" in text:
    return False
  has_controls_or_surrogates = any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text)
  return not has_controls_or_surrogates and len(text.encode()) <= LONGEST


def is_inside(path: Any) -> bool:
  """Return whether a value is a relative path of valid names that stays in its directory.

  A URL is not, even below a directory: `images/gs://bucket/file` would be opened as a URL.
  """
  if not isinstance(path, str) or path.startswith("/") or "://" in path:
    return False
  parts = [part for part in path.split("/") if part not in ("", ".")]
  return bool(parts) and all(map(is_name, parts))


def check_name(where: str, text: Any, remedy: str = "give it another name") -> str:
  """Return a name after checking that it may name a file.

  Args:
    where: the file and key that contain it, for messages.
    remedy: the advice in the message.

  Raises:
    UserError: it is no valid name.
  """
  if not is_name(text):
    raise UserError(f"{where}: found {quote_name(text)}, expected {RULE}; {remedy}")
  return text


def check_names(where: str, texts: Iterable[Any], remedy: str = "give it another name") -> None:
  """Check several names; raise UserError for the first invalid name."""
  for text in texts:
    check_name(where, text, remedy)


def quote_name(value: Any) -> str:
  """Format a value for a message, shortened to fit on one line."""
  text = ascii(value)
  return text if len(text) <= 120 else f"{text[:100]}..."
