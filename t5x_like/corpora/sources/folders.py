"""`folders:DIR` or `folders:train=DIR,validation=DIR`: images in one folder per class.

A DIR with a folder for each split (`train`, `val`, `test`, …), each with one folder per class, has
these splits. It may be a zip archive, or a folder in a zip archive (`photos.zip/pets`).

The field `image` is a file's bytes. The field `label` is the name of the class's folder, which may
have subfolders. Files are read by class, then by name; hidden files are left out. Preparation skips
and counts files that are not images.
"""

import glob
import hashlib
import mimetypes
import os
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

from t5x_like.corpora.sources import Record, Skip, _archives
from t5x_like.corpora.sources import Source as Base
from t5x_like.corpora.sources._files import SPLIT_WORDS, _patterns, read_bytes
from t5x_like.errors import UserError
from t5x_like.files import globs
from t5x_like.files.paths import as_path


class Source(Base):
  """Images and the names of their folders, from local or remote directories."""

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    del fields, data_dir
    patterns = _patterns("folders", spec)
    folders = {}
    for split, paths in patterns.items():
      folders[split] = [_only_folder(path.rstrip("/")) for path in paths]
    is_single_folder = patterns == {"train": [spec]}
    if is_single_folder:
      folders = _splits_inside(folders["train"][0]) or folders
    # The path below the split's folder, by split and path.
    self._files: dict[str, dict[str, str]] = {}
    for split, paths in folders.items():
      self._files[split] = {}
      for path in paths:
        self._files[split] |= _images(path)
    if is_single_folder and tuple(folders) == ("train",):
      _check_classes(folders["train"][0], self._files["train"].values())
    classes = set()
    for files in self._files.values():
      classes.update(map(_class, files.values()))
    self._classes = tuple(sorted(classes))
    self.splits = tuple(self._files)
    first_folder = next(iter(folders.values()))[0]
    self.name = _name(globs.absolute_path(first_folder))

  def classes(self, field: str) -> tuple[str, ...]:
    return self._classes

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record | Skip]]:
    files = list(self._files[split].items())
    if part:
      files = files[slice(*part)]
    for path, name in files:
      data = _read(path)
      if data is None:
        yield path, Skip("a file that is too long")
      else:
        yield path, {"image": data, "label": _class(name)}

  def modification_times(self, split: str) -> list[int | None]:
    return [as_path(path).modified_time() for path in self._files_on_disk(split)]

  def _files_on_disk(self, split: str) -> list[str]:
    """Return the files of a split on disk: an archive, once, instead of the files in it."""
    paths = {}
    for path in self._files[split]:
      archive_and_path = _archives.split(path)
      paths[archive_and_path[0] if archive_and_path else path] = None
    return list(paths)

  def split_facts(self, split: str) -> dict[str, Any]:
    files = []
    for path, name in self._files[split].items():
      files.append((*name.split("/", 1), *_size_and_version(path)))
    return {
      "form": "folders",
      "files": len(files),
      "content": hashlib.sha256(repr(files).encode()).hexdigest(),
    }


def _name(folder: str) -> str:
  """Return the name of a folder, or of its parent if the folder is named after a split."""
  parts = [part for part in folder.split("/") if part]
  if len(parts) > 1 and parts[-1] in SPLIT_WORDS:
    return parts[-2]
  return parts[-1]


def _splits_inside(folder: str) -> dict[str, list[str]]:
  """Return the folders of each split in a folder that has only splits; {} if it has classes.

  A split `test` without classes, as in competitions, is left out.
  """
  if _archives.split(folder):
    names = {name.split("/")[0] for name in _below(folder) if "/" in name}
  else:
    paths = globs.find_matches(f"{glob.escape(folder)}/*")
    names = {os.path.basename(path) for path in paths if globs.file_kind(path) == "directory"}
  if not {name.lower() for name in names} <= SPLIT_WORDS.keys():
    return {}
  with_classes = {name for name in names if _has_folders(f"{folder}/{name}")}
  if not with_classes:
    return {}
  paths_by_name = {}
  for name in names:
    if name in with_classes or SPLIT_WORDS[name.lower()] != "test":
      paths_by_name[name] = f"{folder}/{name}"
  return _by_split(paths_by_name)


def _has_folders(folder: str) -> bool:
  """Return whether a folder, or one in an archive, has subfolders."""
  if _archives.split(folder):
    return any("/" in name for name in _below(folder))
  paths = globs.find_matches(f"{glob.escape(folder)}/*")
  return any(globs.file_kind(path) == "directory" for path in paths)


def _by_split(paths_by_name: dict[str, str]) -> dict[str, list[str]]:
  """Group folders by the splits that their names mean, such as `val` and `dev` validation."""
  folders: dict[str, list[str]] = {}
  for split in ("train", "validation", "test"):
    for name, path in sorted(paths_by_name.items()):
      if SPLIT_WORDS[name.lower()] == split:
        folders.setdefault(split, []).append(path)
  return folders


def _class(name: str) -> str:
  """Return the class of a file, with the same spelling on all systems.

  macOS separates accents from their letters.
  """
  return unicodedata.normalize("NFC", name.partition("/")[0])


def _check_classes(folder: str, names: Iterable[str]) -> None:
  """Raise UserError if a class is probably the folder of a split.

  Such a folder has the name of a split and contains only folders.
  """
  with_images = {_class(name) for name in names if name.count("/") == 1}
  named_as_splits = {_class(name) for name in names if _class(name).lower() in SPLIT_WORDS}
  splits = sorted(named_as_splits - with_images)
  if splits:
    correction = ",".join(f"{SPLIT_WORDS[name.lower()]}={folder}/{name}" for name in splits)
    raise UserError(
      f"source folders:{folder}: found {', '.join(splits)} next to other folders; name the folders "
      f"of the splits, as folders:{correction}, or write folders:train={folder} if they are classes"
    )


def _below(folder: str) -> list[str]:
  """Return the paths of the files below a folder of an archive, relative to the folder."""
  archive, inner = _archives.split(folder)
  start = f"{inner}/" if inner else ""
  return [name.removeprefix(start) for name in _archives.members(archive) if name.startswith(start)]


def _only_folder(folder: str) -> str:
  """Return the only folder of an archive if all images are in its subfolders, else `folder`."""
  archive_and_path = _archives.split(folder)
  if not archive_and_path or archive_and_path[1]:
    return folder
  # A README next to the folders does not count.
  names = [name for name in _below(folder) if name.count("/") > 1 or _is_image(name)]
  top_folders = {name.split("/")[0] for name in names}
  if len(top_folders) == 1 and all(name.count("/") > 1 for name in names):
    return f"{folder}/{top_folders.pop()}"
  return folder


def _is_image(name: str) -> bool:
  """Return whether the suffix of a file is of an image."""
  return (mimetypes.guess_type(name, strict=False)[0] or "").startswith("image/")


def _read(path: str) -> bytes | None:
  """Return the content of a file, on disk or in an archive; None if it is too long."""
  archive_and_path = _archives.split(path)
  if archive_and_path:
    return _archives.read(*archive_and_path)
  return read_bytes(path)


def _size_and_version(path: str) -> tuple[int, int | None]:
  """Return a file's size and its modification time, or its checksum in an archive."""
  archive_and_path = _archives.split(path)
  if archive_and_path:
    archive, inner_path = archive_and_path
    member = _archives.members(archive)[inner_path]
    return member.file_size, member.CRC
  return as_path(path).size(), as_path(path).modified_time()


def _images(folder: str) -> dict[str, str]:
  """Return the files in the subfolders of a folder or an archive, with their relative paths."""
  if _archives.split(folder):
    names_by_path = {f"{folder}/{name}": name for name in _below(folder) if "/" in name}
    if not names_by_path:
      raise UserError(
        f"source folders:{folder}: found no files below its folders, expected ZIP/CLASS/IMAGE in it"
      )
    return names_by_path
  if not as_path(folder).exists():
    raise UserError(
      f"source folders:{folder}: found nothing there, expected a directory; check the path"
    )
  depth = str(as_path(f"{folder}/*")).count("/")
  names_by_path = {}
  for path in globs.find_matches(f"{glob.escape(folder)}/*/**"):
    name = "/".join(path.split("/")[depth:])
    if "/" in name and globs.file_kind(path) == "file":
      names_by_path[path] = name
  if not names_by_path:
    raise UserError(
      f"source folders:{folder}: found no files below its folders, expected FOLDER/CLASS/IMAGE"
    )
  return names_by_path
