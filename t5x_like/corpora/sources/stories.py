"""`stories:PATTERN`: CNN/Daily Mail, not anonymised (See et al. 2017).

The fields are `article` and `highlights`.

The files are lists of URLs, such as `all_train.txt`. The folders `cnn/stories` and
`dailymail/stories` of the archives are in the same folder as the lists or one folder above. The
name of a story is the SHA-1 hash of its URL. A full stop is added to a line that does not end in
punctuation, and each highlight is a line, as in TensorFlow datasets from 3.2.0. A story without an
article or highlights is skipped.
"""

import hashlib
import os
from collections.abc import Iterator

from t5x_like.corpora.sources import Record, Skip, _files
from t5x_like.errors import UserError
from t5x_like.files import globs
from t5x_like.files.paths import as_path

_ENDS = tuple(".!?'`\")\u2019\u201d")
_HIGHLIGHT = "@highlight"
_PUBLISHERS = ("cnn", "dailymail")


class Source(_files.FileSource):
  """A source with one record for each URL of a list."""

  def read(self, path: str) -> Iterator[tuple[str, Record | Skip]]:
    root = _find_stories(os.path.dirname(globs.absolute_path(path)))
    if root is None:
      raise UserError(
        f"{path}: found no folder cnn/stories beside it or one folder above, "
        "expected the stories there"
      )
    for number, line in _files.lines(path):
      where = f"{path}:{number}"
      if isinstance(line, Skip):
        yield where, line
        continue
      url = line.strip()
      publisher = next((name for name in _PUBLISHERS if f"{name}." in url), _PUBLISHERS[0])
      story = f"{root}/{publisher}/stories/{hashlib.sha1(url.encode()).hexdigest()}.story"
      if url and not as_path(story).exists():
        raise UserError(
          f"{where}: found no story of {url[:80]}, expected the file {story}; unpack both archives"
        )
      if url:
        text = _files.read_text(story)
        yield where, text if isinstance(text, Skip) else _record(text)


def _find_stories(folder: str) -> str | None:
  """Return the folder of a list or the one above, whichever has the stories; None for neither."""
  for root in (folder, os.path.dirname(folder)):
    if any(as_path(f"{root}/{name}/stories").exists() for name in _PUBLISHERS):
      return root
  return None


def _record(text: str) -> Record | Skip:
  """Return the record of a story's file."""
  article = []
  highlights = []
  in_highlights = False
  for line in filter(None, map(str.strip, text.split("\n"))):
    if line.startswith(_HIGHLIGHT):
      in_highlights = True
      continue
    if not line.endswith(_ENDS) and _HIGHLIGHT not in line:
      line += "."
    if in_highlights:
      highlights.append(line)
    else:
      article.append(line)
  if not article or not highlights:
    return Skip("no article or no highlights")
  return {"article": " ".join(article), "highlights": "\n".join(highlights)}
