"""`folders:DIR` or `folders:train=DIR,validation=DIR`: images in one folder per class; fields
`image` and `label`.

A DIR that holds folders for splits (`train`, `val`, `test`, …), each with one folder per class, has
these splits. It may be a zip archive, or a folder in one (`photos.zip/pets`).

`image` is a file's bytes, `label` the name of its class's folder, which may hold folders too. Files
are read by class, then by name; hidden ones are left out. Preparation skips and counts files that
are not images.
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
    folders = {
      split: [_only_folder(path.rstrip("/")) for path in paths] for split, paths in patterns.items()
    }
    if patterns == {"train": [spec]}:
      folders = _splits_inside(folders["train"][0]) or folders
    # by split and path, the path below the split's folder
    self._files: dict[str, dict[str, str]] = {}
    for split, paths in folders.items():
      self._files[split] = {file: name for path in paths for file, name in _images(path).items()}
    if patterns == {"train": [spec]} and tuple(folders) == ("train",):
      _check_classes(folders["train"][0], self._files["train"].values())
    self._classes = tuple(
      sorted({_class(name) for files in self._files.values() for name in files.values()})
    )
    self.splits = tuple(self._files)
    above = [
      part for part in globs.absolute_path(next(iter(folders.values()))[0]).split("/") if part
    ]
    self.name = above[-2] if len(above) > 1 and above[-1] in SPLIT_WORDS else above[-1]

  def classes(self, field: str) -> tuple[str, ...]:
    return self._classes

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record | Skip]]:
    for path, name in list(self._files[split].items())[slice(*part) if part else slice(None)]:
      data = _read(path)
      yield (
        path,
        Skip("a file that is too long") if data is None else {"image": data, "label": _class(name)},
      )

  def modification_times(self, split: str) -> list[int | None]:
    return [as_path(path).modified_time() for path in self._on_disk(split)]

  def _on_disk(self, split: str) -> list[str]:
    """Return the files of a split, and each archive of others once."""
    archives = ((path, _archives.split(path)) for path in self._files[split])
    return list(dict.fromkeys(inside[0] if inside else path for path, inside in archives))

  def split_facts(self, split: str) -> dict[str, Any]:
    files = [
      (*name.split("/", 1), *_size_and_version(path)) for path, name in self._files[split].items()
    ]
    return {
      "form": "folders",
      "files": len(files),
      "content": hashlib.sha256(repr(files).encode()).hexdigest(),
    }


def _splits_inside(folder: str) -> dict[str, list[str]]:
  """Return the folders of splits in a folder that has nothing else; none if it holds classes.

  A test without classes, as competitions have it, is left out.
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
  if _archives.split(folder):
    return any("/" in name for name in _below(folder))
  return any(
    globs.file_kind(path) == "directory" for path in globs.find_matches(f"{glob.escape(folder)}/*")
  )


def _by_split(paths_by_name: dict[str, str]) -> dict[str, list[str]]:
  folders: dict[str, list[str]] = {}
  for split in ("train", "validation", "test"):
    for name, path in sorted(paths_by_name.items()):
      if SPLIT_WORDS[name.lower()] == split:
        folders.setdefault(split, []).append(path)
  return folders


def _class(name: str) -> str:
  """Return the class of a file, spelled alike from all systems.

  macOS takes accents off their letters.
  """
  return unicodedata.normalize("NFC", name.partition("/")[0])


def _check_classes(folder: str, names: Iterable[str]) -> None:
  """Refuse to take the folder of a split for a class.

  Such a folder has the name of a split, and holds folders alone.
  """
  with_images = {_class(name) for name in names if name.count("/") == 1}
  named_as_splits = {_class(name) for name in names if _class(name).lower() in SPLIT_WORDS}
  splits = sorted(named_as_splits - with_images)
  if splits:
    correction = ",".join(f"{SPLIT_WORDS[name.lower()]}={folder}/{name}" for name in splits)
    raise UserError(
      f"source folders:{folder}: found {', '.join(splits)} beside other folders; name the folders "
      f"of the splits, as folders:{correction}, or write folders:train={folder} if they are classes"
    )


def _below(folder: str) -> list[str]:
  """Return the files below a folder of an archive, by their paths from there on."""
  archive, inner = _archives.split(folder)
  start = f"{inner}/" if inner else ""
  return [name.removeprefix(start) for name in _archives.members(archive) if name.startswith(start)]


def _only_folder(folder: str) -> str:
  """Return the only folder of an archive in place of the archive, if all its images lie deeper."""
  archive_and_path = _archives.split(folder)
  if not archive_and_path or archive_and_path[1]:
    return folder
  # a README beside folders does not count
  below = [name for name in _below(folder) if name.count("/") > 1 or _is_image(name)]
  top_folders = {name.split("/")[0] for name in below}
  if len(top_folders) == 1 and all(name.count("/") > 1 for name in below):
    return f"{folder}/{top_folders.pop()}"
  return folder


def _is_image(name: str) -> bool:
  return (mimetypes.guess_type(name, strict=False)[0] or "").startswith("image/")


def _read(path: str) -> bytes | None:
  archive_and_path = _archives.split(path)
  if archive_and_path:
    return _archives.read(*archive_and_path)
  return read_bytes(path)


def _size_and_version(path: str) -> tuple[int, int | None]:
  """Return a file's size, and its time or, in an archive, its checksum."""
  archive_and_path = _archives.split(path)
  if archive_and_path:
    archive, inner_path = archive_and_path
    member = _archives.members(archive)[inner_path]
    return member.file_size, member.CRC
  return as_path(path).size(), as_path(path).modified_time()


def _images(folder: str) -> dict[str, str]:
  """Return the files in the folders of a folder or an archive, with their paths below it."""
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
