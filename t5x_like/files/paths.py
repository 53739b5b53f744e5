"""Parse and check paths, and URLs that TensorStore or fsspec reads (`remote`)."""

import os
import pathlib
import re
import uuid
from collections.abc import Sequence
from typing import Union

from t5x_like.errors import UserError, one_line
from t5x_like.files.local import LocalPath

AnyPath = Union[LocalPath, "RemotePath"]  # noqa: F821 (`remote.RemotePath`, imported only when a URL is opened)

_DISK_SCHEMES = ("file", "local")  # fsspec's schemes for local paths
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/[^/].*|/?)")
_PROJECT = pathlib.Path(__file__).resolve().parents[2]


def is_remote(path) -> bool:
  """Return whether a path is a URL, except a `file://` one."""
  scheme, separator, _ = str(path).partition("://")
  return bool(separator) and scheme.lower() not in _DISK_SCHEMES


def as_path(path: str | os.PathLike) -> AnyPath:
  """Return the file or directory at a path or URL; `file:///path` is the path."""
  path = os.fspath(path)
  if is_remote(path):
    from t5x_like.files.remote import RemotePath

    return RemotePath(path)
  return LocalPath(path.partition("://")[2] if "://" in path else path)


def check_directory(text, flag: str = "--workdir") -> str:
  """Check the path or URL of a directory to write to; return it without trailing slashes.

  Refuse the root of a file system, the home directory and the project's own directory: a run is
  never meant to be written right into them, and they are typically the remains of a path with an
  unset variable. A home or project directory that already holds a run is accepted. `file:///path`
  becomes the path.

  Args:
    text: the path or URL as the user gave it.
    flag: the flag that gave it, for the message.

  Raises:
    UserError: the text is empty, is a scheme without a bucket, or is one of these directories.
  """
  address = str(text)
  remedy = "give a directory for the run, such as runs/small or gs://bucket/run"
  if not address.strip():
    raise UserError(f"{flag}={text}: found an empty address; is a variable unset? {remedy}")
  scheme, separator, rest = address.partition("://")
  if separator and scheme.lower() in _DISK_SCHEMES:
    return check_directory(rest, flag)
  if separator:
    bucket = rest.lstrip("/") if scheme == "memory" else rest.partition("/")[0]
    if not scheme or not bucket.strip():
      missing_part = "bucket" if scheme else "scheme"
      raise UserError(
        f"{flag}={text}: found no {missing_part} in the address; is a variable unset? {remedy}"
      )
    return address.rstrip("/")
  if match := _ONE_SLASH.fullmatch(address):
    path = match[2].strip("/") or "bucket/run"
    raise UserError(
      f"{flag}={text}: found a scheme without '//', expected {match[1]}://{path} or "
      f"./{address} for a directory"
    )
  if address == "~" or address.startswith("~/"):
    raise UserError(
      f"{flag}={text}: the shell has not replaced '~'; write {flag}=$HOME{address[1:]}"
    )
  path = pathlib.Path(address)
  where = pathlib.Path(os.path.realpath(path))
  home = pathlib.Path(os.path.realpath(os.path.expanduser("~")))
  name = {home: "the home directory", _PROJECT: "the project's own directory"}.get(where)
  if where == where.parent:
    name = "the root of the file system"
  elif name and (where / "config.json").exists():
    name = None
  if name:
    raise UserError(
      f"{flag}={text}: found {name}, expected a directory of its own; is a variable unset? {remedy}"
    )
  return address.rstrip("/")


def check_writable(flag: str, directory, folders: Sequence[str] = ()) -> None:
  """Check that a directory and its existing folders can be written, by a file in each.

  The directory is made if missing.

  Args:
    flag: the flag that names the directory, for messages.
    folders: folders relative to it.

  Raises:
    UserError: one cannot be written to, or is a file.
    TransientError: an object store stays out of reach.
  """
  subdirectories = [f"{directory}/{folder}" for folder in folders]
  existing = [path for path in subdirectories if os.path.lexists(path)]
  for where in (str(directory), *existing):
    file = as_path(where) / f".writable-{uuid.uuid4().hex[:8]}"
    try:
      file.write_bytes(b"")
      file.unlink()
    except OSError as error:
      if is_remote(where):
        raise
      raise UserError(
        f"{where}: cannot be written to: {_reason(where, error)}, or use another {flag}"
      ) from error


def _reason(where: str, error: OSError) -> str:
  """Return why a directory cannot be written to, and the remedy."""
  if os.path.islink(where) and not os.path.exists(where):
    return f"found a link to {os.readlink(where)}, which is not there; mount or restore it"
  if os.path.isfile(where):
    return "found a file, expected a directory; move it away"
  return f"{error.strerror or one_line(error)}; make it a directory of yours"
