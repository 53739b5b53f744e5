"""Make text from data safe to print: a terminal would execute its control characters."""

import re

# C0 and C1 controls without tab and line feed; line and paragraph separators; marks that reorder
# text; lone surrogates.
_CONTROLS = re.compile(
  "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escape_controls(text: str) -> str:
  """Replace each control character except tab and line feed by an escape, such as `\\x1b`."""
  return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)
