"""`folders:DIR` or `folders:train=DIR,validation=DIR`: images in one folder per class; fields `image` and `label`.

A DIR that holds folders for splits (`train`, `val`, `test`, …), each with one folder per class, has these splits.

`image` is a file's bytes, `label` the name of its folder. Files are read by class, then by name. Preparation skips and
counts files that are not images.
"""

import hashlib
import os
from collections.abc import Iterator
from typing import Any

from t5x_like.corpora.sources import Record
from t5x_like.corpora.sources import Source as Base
from t5x_like.corpora.sources._files import _SPLIT_WORDS, _patterns
from t5x_like.errors import UserError, one_line
from t5x_like.files import globs
from t5x_like.files.places import place

_SPLITS = {"training": "train", "valid": "validation", "val": "validation", "dev": "validation"}


class Source(Base):
  """Images and the names of their folders, from local or remote directories."""

  def __init__(self, rest: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    del fields, data_dir
    folders = {split: [path.rstrip("/") for path in paths] for split, paths in _patterns("folders", rest).items()}
    if folders == {"train": [rest.rstrip("/")]}:
      folders = _splits_inside(rest.rstrip("/")) or folders
    self._files = {split: [file for path in paths for file in _images(path)] for split, paths in folders.items()}
    self._classes = tuple(sorted({_class(file) for files in self._files.values() for file in files}))
    self.splits = tuple(self._files)
    above = [part for part in globs.absolute(next(iter(folders.values()))[0]).split("/") if part]
    self.name = above[-2] if len(above) > 1 and above[-1] in _SPLIT_WORDS else above[-1]

  def classes(self, field: str) -> tuple[str, ...]:
    return self._classes

  def records(self, split: str, part: tuple[int, int] | None = None) -> Iterator[tuple[str, Record]]:
    for path in self._files[split][slice(*part) if part else slice(None)]:
      try:
        with place(path).open("rb") as file:
          yield path, {"image": file.read(), "label": _class(path)}
      except OSError as error:
        raise UserError(f"{path}: cannot be read ({one_line(error)})") from error

  def changed(self, split: str) -> list[int | None]:
    return [place(path).changed() for path in self._files[split]]

  def facts(self, field: str) -> dict[str, Any]:
    return {"form": "folders", "splits": {split: self.split_facts(split) for split in self.splits}}

  def split_facts(self, split: str) -> dict[str, Any]:
    files = [
      (_class(path), os.path.basename(path), place(path).size(), changed)
      for path, changed in zip(self._files[split], self.changed(split))
    ]
    return {"form": "folders", "files": len(files), "content": hashlib.sha256(repr(files).encode()).hexdigest()}


def _splits_inside(folder: str) -> dict[str, list[str]]:
  """Return the folders of splits in a folder that has nothing else; none if it holds classes."""
  inside = {os.path.basename(path): path for path in globs.matches(f"{folder}/*") if globs.kind(path) == "directory"}
  if not inside or not {name.lower() for name in inside} <= _SPLIT_WORDS:
    return {}
  if not any(globs.kind(path) == "directory" for path in globs.matches(f"{folder}/*/*")):
    return {}
  found: dict[str, list[str]] = {}
  for name, path in sorted(inside.items()):
    found.setdefault(_SPLITS.get(name.lower(), name.lower()), []).append(path)
  return dict(sorted(found.items(), key=lambda one: ["train", "validation", "test"].index(one[0])))


def _class(path: str) -> str:
  return os.path.basename(os.path.dirname(path))


def _images(folder: str) -> list[str]:
  if not place(folder).exists():
    raise UserError(f"source folders:{folder}: found nothing there, expected a directory; check the path")
  found = [path for path in globs.matches(f"{folder}/*/*") if globs.kind(path) == "file"]
  if not found:
    raise UserError(f"source folders:{folder}: found no files below its folders, expected FOLDER/CLASS/IMAGE")
  return found
