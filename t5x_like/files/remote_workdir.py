"""The small files of a workdir on an object store: kept on a local disk, where they can be appended to."""

import pathlib
import tempfile

from t5x_like.files.storage import Storage

_READ = ("config.json", "environment.json", "history.jsonl", "metrics.jsonl")  # what a resumed run goes on from


class Mirror:
  """A local directory that stands for a remote one; only the first process of a job may use it.

  Attributes:
    local: the directory, removed when the program ends.
  """

  def __init__(self, url: str):
    self._storage, self._directory = Storage(url), tempfile.TemporaryDirectory(prefix="t5x_like-")
    self.local, self._pushed = pathlib.Path(self._directory.name), {}

  def pull(self) -> None:
    """Fetches what a run goes on from."""
    for name in _READ:
      data = self._storage.read(name)
      if data is not None:
        (self.local / name).write_bytes(data)
    self._pushed = self._found()

  def push(self) -> None:
    """Uploads the files that have changed."""
    for name, version in self._found().items():
      if self._pushed.get(name) != version:
        self._storage.upload(name, self.local / name)
        self._pushed[name] = version

  def _found(self) -> dict[str, tuple[int, int]]:
    files = [path for path in self.local.rglob("*") if path.is_file() and path.suffix != ".tmp"]
    return {path.relative_to(self.local).as_posix(): (path.stat().st_mtime_ns, path.stat().st_size) for path in files}
