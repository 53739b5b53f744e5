"""Detect files, programs and requests that hostile input must not reach."""

import contextlib
import os
import pathlib
import platform
import socket
import sys
from collections.abc import Iterator

from t5x_like.errors import UserError
from t5x_like.files import clients, remote

_PROGRAM_EVENTS = (
  "os.system",
  "os.exec",
  "os.posix_spawn",
  "subprocess.Popen",
  "os.fork",
  "os.spawn",
  "pty.spawn",
)
_OPEN_EVENTS = ("open", "os.listdir", "os.scandir")
_REQUEST_EVENTS = ("socket.connect", "socket.getaddrinfo", "socket.sendto")
MODULE = "module_from_elsewhere"  # a module that no case may import
LINE = "a secret line of words that nobody may read\n"
# The program that prepares the built-in corpus; starting it is allowed.
_ALLOWED_PROGRAM = "t5x_like.corpora.sources._docstrings.extract"
_watches: list["Sentinels"] = []
_hooks: list[str] = []


class Sentinels:
  """A directory of files that no case may open, and a record of all forbidden events.

  Args:
    folder: an empty directory.

  Attributes:
    folder: holds `secret.txt`, `rows.jsonl`, `tokens/` with files of a store's names, and a Python
      module.
    events: descriptions of the events since `watching` began: "opened …", "program …", "request …".
  """

  def __init__(self, folder: pathlib.Path):
    platform.processor()  # starts `uname`, once in a process: done before a case is watched
    self.folder = folder
    self.events: list[str] = []
    (folder / "tokens" / "validation").mkdir(parents=True)
    (folder / "secret.txt").write_text(LINE * 4)
    (folder / "rows.jsonl").write_text(f'{{"text": "{LINE.strip()}", "label": "a"}}\n' * 4)
    (folder / "tokens" / "validation" / "manifest.json").write_text("{}")
    (folder / "vocabulary").mkdir()
    (folder / "vocabulary" / "vocabulary.json").write_text("{}")
    (folder / f"{MODULE}.py").write_text(
      "def function(*arguments, **options):\n  raise AssertionError\n"
    )
    (folder / "references.json").write_text('{"version": 1, "refs": {}}')

  @contextlib.contextmanager
  def watching(self) -> Iterator[list[str]]:
    """Collect forbidden events; requests of every client fail instead of being sent."""
    if not _hooks:
      sys.addaudithook(_audit)
      _hooks.append("audit")
    self.events = []
    connect = socket.socket.connect
    open_client = clients._open
    socket.socket.connect = self._connect
    clients._open = self._open_client
    remote.reset()
    sys.path.insert(0, str(self.folder))
    _watches.append(self)
    try:
      yield self.events
    finally:
      _watches.pop()
      sys.path.remove(str(self.folder))
      socket.socket.connect = connect
      clients._open = open_client
      remote.reset()
      if sys.modules.pop(MODULE, None):
        self.events.append(f"imported {MODULE}")

  def _connect(self, target, *arguments):
    """Stand in for `socket.connect`."""
    self.events.append(f"request {arguments}")
    raise OSError("no network in a test")

  def _open_client(self, root: str, kind: type):
    """Stand in for the function that opens a client of remote files."""
    self.events.append(f"request {root}")
    raise UserError(f"{root}: no network in a test")


def _audit(event: str, arguments: tuple) -> None:
  """Record a forbidden audit event in the sentinels that are being watched."""
  if not _watches:
    return
  watch = _watches[-1]
  if event in _PROGRAM_EVENTS and _ALLOWED_PROGRAM not in str(arguments):
    watch.events.append(f"program {str(arguments)[:200]}")
  elif event in _REQUEST_EVENTS:
    watch.events.append(f"request {str(arguments)[:200]}")
  elif event in _OPEN_EVENTS and isinstance(arguments[0], str | bytes | os.PathLike):
    path = os.path.realpath(os.fsdecode(arguments[0]))
    if path.startswith(f"{watch.folder.resolve()}/") or path in ("/etc/passwd", "/dev/zero"):
      watch.events.append(f"opened {path}")
