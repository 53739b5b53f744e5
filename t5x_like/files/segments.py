"""A long file of lines that grows at a URL, as objects of bounded size.

Objects cannot be appended to, so a file that grows would be uploaded as a whole for each new line.
The lines of `name.jsonl` are therefore kept in `name/POSITION.jsonl`, segments of at most
`SEGMENT_BYTES` that end with a line and are named by the position of their first byte. Only the
last one is uploaded again. `name.jsonl`, if it is there, holds the bytes before the first segment.

A copy of such a directory on a disk can be read and continued likewise.
"""

import pathlib
import shutil
from collections.abc import Callable, Iterator

from t5x_like.files.local import LocalPath, check_regular, replace_atomically
from t5x_like.files.paths import AnyPath

SEGMENT_BYTES = 2**20  # a segment is longer only if a line is


def segment_at(directory: AnyPath, name: str, position: int) -> AnyPath:
  """Return the path of the segment that begins at a position of a file, whether it exists or not.

  Args:
    directory: of the file.
    name: of the file.
  """
  return directory / name.removesuffix(".jsonl") / f"{position:012d}.jsonl"


def read_segments(directory: AnyPath, name: str, position: int) -> Iterator[bytes]:
  """Yield the content of each segment of a file, from the one that begins at a position."""
  while content := segment_at(directory, name, position).read():
    yield content
    position += len(content)


def merge_segments(directory: pathlib.Path, name: str) -> None:
  """Append segments that were copied to a local directory to their file, all or none.

  Afterwards the file is longer than the position of any segment, so that none is read again.

  Raises:
    OSError: the file cannot be read or written.
  """
  path = directory / name
  size = path.stat().st_size if path.exists() else 0
  segments = read_segments(LocalPath(directory), name, size)
  first = next(segments, None)
  if first is None:
    return
  with replace_atomically(path) as merged:
    if size:
      check_regular(path)
      with open(path, "rb") as file:
        shutil.copyfileobj(file, merged)
    merged.write(first)
    for content in segments:
      merged.write(content)


class SegmentedFile:
  """A local file of lines whose content is also at a URL, in segments.

  Args:
    directory: at the URL.
    local: a local directory.
    name: of the file in both.
  """

  def __init__(self, directory: AnyPath, local: pathlib.Path, name: str):
    self._directory = directory
    self._path = local / name
    self._name = name
    self._begin = 0  # of the last segment
    self._end = 0  # of what is at the URL

  def pull(self) -> None:
    """Make the local file equal to the one at the URL; make none if there is none."""
    before = (self._directory / self._name).read()
    self._begin = self._end = len(before or b"")
    with open(self._path, "wb") as file:
      file.write(before or b"")
      for content in read_segments(self._directory, self._name, self._end):
        file.write(content)
        self._begin = self._end
        self._end += len(content)
    if not self._end:
      self._path.unlink()

  def push(self, check: Callable[[], None]) -> None:
    """Upload the lines that were added to the local file; all must be complete.

    Args:
      check: called before each upload; raises if the file at the URL is another run's now.
    """
    if not self._path.exists():
      return
    size = self._path.stat().st_size
    if size < self._end:
      self._shorten(size, check)
    with open(self._path, "rb") as file:
      while self._end < size:
        content = self._read_segment(file, size)
        check()
        segment_at(self._directory, self._name, self._begin).write_bytes(content)
        self._end = self._begin + len(content)
        if self._end < size:
          self._begin = self._end

  def _read_segment(self, file, size: int) -> bytes:
    """Return the content of the last segment, up to a line end and to `SEGMENT_BYTES`."""
    file.seek(self._begin)
    content = file.read(min(SEGMENT_BYTES, size - self._begin))
    if self._begin + len(content) == size:
      return content
    complete, line_end, _ = content.rpartition(b"\n")
    return complete + line_end or content + file.readline()

  def _shorten(self, size: int, check: Callable[[], None]) -> None:
    """Follow a local file that was cut."""
    if size > self._begin:
      self._end = self._begin  # the last segment is uploaded again
      return
    check()
    (self._directory / self._name).write_bytes(self._path.read_bytes())
    segment_at(self._directory, self._name, 0).parent.rmtree(missing_ok=True)
    self._begin = self._end = size
