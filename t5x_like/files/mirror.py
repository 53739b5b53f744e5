"""Local copies of directories at a URL."""

import functools
import pathlib
import shutil
import tempfile
from collections.abc import Callable

from t5x_like.errors import UserError
from t5x_like.files import file_names
from t5x_like.files.local import LocalPath
from t5x_like.files.paths import as_path
from t5x_like.files.segments import SegmentedFile

_CERTIFICATE = "certificate.jsonl"  # grows with each step
# The other files that a resumed run needs.
_RESUME_FILES = (
  "config.json",
  "environment.json",
  "history.jsonl",
  "metrics.jsonl",
  "trackers.json",
  "goodput.json",
  "plan_comparison.json",
)
_copies: list[tempfile.TemporaryDirectory] = []  # removed when the program ends


@functools.cache
def fetch(path: str) -> LocalPath:
  """Return a directory itself if it is local, or a copy of a URL that the program keeps.

  Raises:
    UserError: there is no file at the URL.
  """
  source = as_path(path)
  if isinstance(source, LocalPath):
    return source
  names = [name for name in source.sizes() if file_names.is_name(name)]
  if not names:
    raise UserError(f"{path}: found no file there, expected a directory; check the address")
  _copies.append(tempfile.TemporaryDirectory(prefix="t5x_like-"))
  for name in names:
    with (source / name).open("rb") as remote, open(f"{_copies[-1].name}/{name}", "wb") as copy:
      shutil.copyfileobj(remote, copy, 2**23)
  return LocalPath(_copies[-1].name)


def copy_small_files(path: str, with_certificate: bool = False) -> pathlib.Path:
  """Return a local directory with the small files of a run as they are now.

  It is the run's workdir itself or, for a URL, a copy.

  Args:
    with_certificate: whether to copy the certificate too, which is long.
  """
  source = as_path(path)
  if isinstance(source, LocalPath):
    return source
  mirror = _mirror(path)
  mirror.pull()
  if with_certificate:
    mirror.pull_certificate()
  return mirror.local


class WorkdirMirror:
  """A local directory that stands for a run's workdir at a URL.

  Unlike files at a URL, its small files can be appended to. Only the first process of a job
  may use it.

  Attributes:
    local: the directory, removed when the program ends.
  """

  def __init__(self, url: str):
    self._remote = as_path(url)
    self._directory = tempfile.TemporaryDirectory(prefix="t5x_like-")
    self.local = pathlib.Path(self._directory.name)
    self._pushed = {}
    self._certificate = SegmentedFile(self._remote, self.local, _CERTIFICATE)

  def pull(self) -> None:
    """Fetch the files that a resumed run needs, except the certificate."""
    for name in _RESUME_FILES:
      data = (self._remote / name).read()
      if data is not None:
        (self.local / name).write_bytes(data)
    self._pushed = self._file_versions()

  def pull_certificate(self) -> None:
    """Fetch the certificate, if there is one."""
    self._certificate.pull()

  def push(self, check: Callable[[], None]) -> None:
    """Upload the files that have changed, and the new records of the certificate.

    Args:
      check: the function to call before each file; it raises if the files are another run's now.
    """
    for name, version in self._file_versions().items():
      if self._pushed.get(name) != version:
        check()
        (self._remote / name).write_bytes((self.local / name).read_bytes())
        self._pushed[name] = version
    self._certificate.push(check)

  def _file_versions(self) -> dict[str, tuple[int, int]]:
    """Return the modification time and the size of each local file, by its relative path.

    The certificate is left out.
    """
    versions = {}
    for path in self.local.rglob("*"):
      if path.is_file() and path.suffix != ".tmp" and path.name != _CERTIFICATE:
        name = path.relative_to(self.local).as_posix()
        versions[name] = path.stat().st_mtime_ns, path.stat().st_size
    return versions


_mirror = functools.cache(WorkdirMirror)
