"""`sgm:PATTERN`: the segments of WMT's test sets; field `text`.

A segment is a line such as `<seg id="1">One sentence.</seg>`. Space at both ends of its text is
removed. Entities such as `&amp;` stay as they are, as in TensorFlow datasets.
"""

import re
from collections.abc import Iterator

from t5x_like.corpora.sources import Record, Skip, _files
from t5x_like.errors import UserError

_SEGMENT = re.compile(r'\s*<seg id="[^"]*">(.*)</seg>', re.IGNORECASE)


class Source(_files.FileSource):
  """One record per segment."""

  only_text = True

  def read(self, path: str) -> Iterator[tuple[str, Record | Skip]]:
    empty = True
    for number, line in _files.lines(path):
      segment = None if isinstance(line, Skip) else _SEGMENT.match(line)
      if isinstance(line, Skip) or segment:
        empty = False
        yield f"{path}:{number}", {"text": segment[1].strip()} if segment else line
    if empty:
      raise UserError(
        f'{path}: found no segment, expected lines such as <seg id="1">One sentence.</seg>'
      )
