"""Files on a disk, with the methods of `remote.RemotePath`, written whole and flushed."""

import contextlib
import errno
import os
import pathlib
import shutil
import stat
import uuid
from typing import IO, Any, NamedTuple

from t5x_like.errors import UserError, one_line, retry

# The errors of file systems without fsync.
_FSYNC_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EROFS)
_KINDS = {
  stat.S_IFIFO: "a pipe",
  stat.S_IFCHR: "a device",
  stat.S_IFBLK: "a device",
  stat.S_IFSOCK: "a socket",
}


class Versioned(NamedTuple):
  """The content of a file, with the version that conditional writes name.

  The version changes with every write.
  """

  content: bytes
  version: Any


class IrregularFile(OSError):
  """A pipe, a device, a socket or a link that leads to itself where a file is expected.

  Reading it could wait for ever.
  """


def irregular_kind(path) -> str | None:
  """Return "a pipe", "a device" or "a socket" if a path leads to one, else None.

  Raises:
    OSError: there is no file.
  """
  return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))


def check_regular(path) -> None:
  """Raise IrregularFile if a path leads to a pipe, device or socket, or to itself.

  Raises:
    OSError: it leads nowhere.
  """
  try:
    kind = irregular_kind(path)
  except OSError as error:
    if error.errno != errno.ELOOP:
      raise
    kind = "a link to itself"
  if kind:
    raise IrregularFile(errno.EINVAL, f"found {kind}, expected a file", os.fspath(path))


def check_link(path) -> None:
  """Raise IrregularFile if a path is a link out of its directory.

  A downloaded directory may hold a link to any file of this user, and a copy of the directory would
  then reveal its content. In the cache of the Hugging Face Hub, links within a repository are
  accepted.
  """
  folder = os.path.dirname(os.path.abspath(path))
  # In <repository>/snapshots/<revision>, files are links to <repository>/blobs.
  if os.path.basename(os.path.dirname(folder)) == "snapshots":
    folder = os.path.dirname(os.path.dirname(folder))
  target = os.path.realpath(path)
  if not f"{target}/".startswith(f"{os.path.realpath(folder).rstrip('/')}/"):
    raise IrregularFile(
      errno.EINVAL, f"found a link to {target}, expected a file of this directory", os.fspath(path)
    )


def check_owner(directory, *, allow_link: bool = False) -> None:
  """Raise IrregularFile if another user can replace the entries of a directory.

  The directory must belong to this user or to root. Others may write to it only if it has the
  sticky bit, as /dev/shm has: there, no user can replace the files of another.

  Args:
    allow_link: whether the path may be a link of this user or root to such a directory.
  """
  path = os.fspath(directory)
  trusted = (os.geteuid(), 0)
  link_status = os.lstat(path)
  status = os.stat(path) if allow_link else link_status
  if not stat.S_ISDIR(status.st_mode):
    raise IrregularFile(errno.ENOTDIR, "found a link or a file, expected a directory", path)
  if status.st_uid not in trusted or link_status.st_uid not in trusted:
    kind = "link" if stat.S_ISLNK(link_status.st_mode) else "directory"
    raise IrregularFile(errno.EPERM, f"found a {kind} of another user, expected one of yours", path)
  if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
    raise IrregularFile(
      errno.EPERM, f"found a directory that every user may change; chmod o-w {path}", path
    )


def check_below(folder) -> None:
  """Raise IrregularFile if a path below a directory is no regular file; see `check_regular`."""
  for parent, _, names in os.walk(folder):
    for name in names:
      try:
        check_regular(os.path.join(parent, name))
      except IrregularFile:
        raise
      except OSError:  # left to the reader, who knows what the file is for
        continue


def _version(file: int) -> tuple[int, int, int]:
  """Return the device, the inode and the time of modification of an open file."""
  status = os.fstat(file)
  return status.st_dev, status.st_ino, status.st_mtime_ns


def read_content(path) -> bytes | None:
  """Return the bytes of a run's file, or None if it does not exist.

  Raises:
    UserError: the path is no regular file, or cannot be read.
  """
  try:
    return LocalPath(path).read_bytes()
  except FileNotFoundError:
    return None
  except OSError as error:
    raise UserError(
      f"{path}: cannot be read: {error.strerror or one_line(error)}; restore the file, or move it "
      "away"
    ) from error


def sync(path) -> None:
  """Flush a file, or a directory's entries, to disk, so that they survive a power failure."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  except OSError as error:
    if error.errno not in _FSYNC_UNSUPPORTED:
      raise
  finally:
    os.close(descriptor)


@contextlib.contextmanager
def replace_atomically(path: pathlib.Path):
  """Open a temporary file in the folder of `path` for writing bytes, which then replaces `path`.

  The file replaces `path` once it is complete and flushed to disk.
  """
  temporary = path.with_name(f"{path.name[:40]}.{uuid.uuid4().hex[:8]}.tmp")
  try:
    with open(temporary, "xb") as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    if path.exists():
      os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
    os.replace(temporary, path)
    sync(path.parent)
  finally:
    temporary.unlink(missing_ok=True)


def replacement(path: pathlib.Path, file: IO) -> str | None:
  """Return whether the file at a path was `removed` or `replaced` since it was opened, or None."""
  try:
    is_same = os.path.samestat(os.stat(path), os.fstat(file.fileno()))
  except FileNotFoundError:
    return "removed"
  return None if is_same else "replaced"


def append_line(path: pathlib.Path, line: bytes) -> None:
  """Append a line to a file and flush it to disk; first end an incomplete last line."""
  is_new = not path.exists()
  with open(path, "ab+") as file:
    size = file.seek(0, os.SEEK_END)
    if size:
      file.seek(size - 1)
      if file.read(1) != b"\n":
        line = b"\n" + line
    file.write(line + b"\n")
    file.flush()
    os.fsync(file.fileno())
  if is_new:
    sync(path.parent)


class LocalPath(type(pathlib.Path())):
  """A file or directory on a disk, with the methods of `RemotePath`; it is written as a whole.

  Raises:
    OSError: of every method; transient errors, as of a network disk, only after
      `T5X_LIKE_RETRY_SECONDS`.
  """

  def read(self, part: slice | None = None) -> bytes | None:
    """Return the bytes of the file, or of a range that it has; None if there is no such file."""

    def call() -> bytes:
      check_regular(self)
      with open(self, "rb") as file:
        file.seek(part.start if part else 0)
        return file.read(part.stop - part.start if part else -1)

    try:
      return retry(call, self)
    except (FileNotFoundError, NotADirectoryError):
      return None

  def open(self, mode: str = "r", *arguments, **options):
    """Open the file; raise IrregularFile to read anything else."""
    if "r" in mode:
      check_regular(self)
    return super().open(mode, *arguments, **options)

  def read_bytes(self) -> bytes:
    def call() -> bytes:
      check_regular(self)
      with open(self, "rb") as file:
        return file.read()

    return retry(call, self)

  def read_text(self, encoding: str | None = "utf-8", errors: str | None = None) -> str:
    text = self.read_bytes().decode(encoding or "utf-8", errors or "strict")
    return text.replace("\r\n", "\n").replace("\r", "\n")  # as `open` reads it

  def write_bytes(self, data: bytes) -> None:
    """Write the file atomically: readers see the old or the complete new content."""

    def call() -> None:
      is_new_folder = not self.parent.exists()
      self.parent.mkdir(parents=True, exist_ok=True)
      with replace_atomically(self) as file:
        file.write(data)
      if is_new_folder:
        sync(self.parent.parent)

    retry(call, self)

  def write_text(self, text: str) -> None:
    self.write_bytes(text.encode())

  def create(self, data: bytes) -> bool:
    """Write the file unless it exists; return whether this call wrote it.

    `data` must be unique to the call: if the file has it already, an earlier attempt wrote it.
    """
    self.parent.mkdir(parents=True, exist_ok=True)
    try:
      with open(self, "xb") as file:
        file.write(data)
      return True
    except FileExistsError:
      return self.read() == data

  def read_version(self) -> Versioned | None:
    """Return the file's content with its version; None if there is no file."""

    def call() -> Versioned:
      check_regular(self)
      with open(self, "rb") as file:
        return Versioned(file.read(), _version(file.fileno()))

    try:
      return retry(call, self)
    except (FileNotFoundError, NotADirectoryError):
      return None

  def replace_version(self, data: bytes | None, version: Any) -> bool:
    """Write the file, or delete it if `data` is None, unless its version has changed.

    The comparison and the change are not atomic.

    Returns:
      False, without a change, if the file is no longer of this version.
    """
    current = self.read_version()
    if current is None or current.version != version:
      return False
    if data is None:
      self.unlink(missing_ok=True)
    else:
      self.write_bytes(data)
    return True

  def renew(self, data: bytes, version: Any) -> bool:
    """Set the file's modification time to now, which changes its version.

    A process that is paused between the comparison and the change touches only the file that it
    compared.

    Args:
      data: ignored; `RemotePath` writes it again.
      version: the version that the file must have.

    Returns:
      False, without a change, if the file has another version.
    """
    try:
      file = os.open(self, os.O_RDWR)
    except FileNotFoundError:
      return False
    try:
      if _version(file) != version:
        return False
      os.utime(file)
      return True
    finally:
      os.close(file)

  def sizes(self, prefix: str = "") -> dict[str, int]:
    """Return the files below this directory whose names begin with a prefix, with their sizes."""
    return retry(lambda: self._sizes(prefix), self)

  def names(self) -> list[str]:
    """Return the sorted names of the directory's entries; [] if there is no such directory."""
    try:
      return sorted(retry(lambda: os.listdir(self), self))
    except (FileNotFoundError, NotADirectoryError):
      return []

  def size(self) -> int:
    """Return the size of the file in bytes."""
    return retry(lambda: os.path.getsize(self), self)

  def modified_time(self) -> int:
    """Return when the file was last modified, in nanoseconds."""
    return retry(lambda: os.stat(self).st_mtime_ns, self)

  def rmtree(self, missing_ok: bool = False) -> None:
    """Delete the directory and everything below it."""
    try:
      shutil.rmtree(self)
    except FileNotFoundError:
      if not missing_ok:
        raise

  def _sizes(self, prefix: str) -> dict[str, int]:
    sizes = {}
    pending = [""]
    while pending:
      directory = pending.pop()
      with (
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        os.scandir(self / directory) as entries,
      ):
        for entry in entries:
          name = f"{directory}{entry.name}"
          if entry.is_dir():
            pending.append(f"{name}/")
          elif name.startswith(prefix):
            with contextlib.suppress(FileNotFoundError):  # a dangling link
              sizes[name] = entry.stat().st_size
    return sizes
