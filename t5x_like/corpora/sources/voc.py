"""`voc:DIR` or `voc:train=PART,validation=PART`: images with boxes in Pascal VOC's layout; fields
`image`, `objects`.

DIR holds Annotations/*.xml and JPEGImages, or images. ImageSets/Main/*.txt list its splits, with
`val` renamed to `validation`; without lists, everything is `train`. A PART is such a list, or a
directory to take whole. The names of the folders may have other letter cases. `objects` are as in
TensorFlow datasets: `bbox` (ymin, xmin, ymax, xmax, as shares of the image), `label`, `area` in
pixels, `is_difficult`: VOC neither asks for nor punishes the detection of such an object.
"""

import functools
import glob
import hashlib
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import Any

from t5x_like.corpora.sources import Record, Skip
from t5x_like.corpora.sources import Source as Base
from t5x_like.corpora.sources._files import _name, _patterns, decode, read_bytes
from t5x_like.data.images.pictures import ANNOTATED_SIZE
from t5x_like.errors import UserError, one_line
from t5x_like.files import file_names, globs
from t5x_like.files.paths import as_path

_SPLITS = {"train": "train", "val": "validation", "trainval": "trainval", "test": "test"}
_PICTURES = ("images", "JPEGImages")


class Source(Base):
  """Images and their boxes, from local or remote directories."""

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    del fields, data_dir
    parts = _patterns("voc", spec)
    if list(parts) == ["train"] and parts["train"] == [spec] and not spec.endswith(".txt"):
      main = _inside(_inside(spec.rstrip("/"), "ImageSets"), "Main")
      lists = {name: f"{main}/{file}.txt" for file, name in _SPLITS.items()}
      parts = {name: [path] for name, path in lists.items() if as_path(path).exists()} or parts
    self._files = {
      split: [pair for part in paths for pair in _pairs(part)] for split, paths in parts.items()
    }
    self.splits = tuple(self._files)
    folder = os.path.dirname(os.path.dirname(next(iter(self._files.values()))[0][0]))
    self.name = _name("voc", [folder or "."])

  def classes(self, field: str) -> tuple[str, ...]:
    files = dict.fromkeys(path for pairs in self._files.values() for path, _ in pairs)
    return tuple(sorted({name for path in files for name in _annotation(path)["objects"]["label"]}))

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record | Skip]]:
    for path, image in self._files[split][slice(*part) if part else slice(None)]:
      if image is None:
        yield path, Skip(f"no image of that name in {_PICTURES[1]}")
        continue
      yield path, {"image": read_bytes(image)} | _annotation(path)

  def modification_times(self, split: str) -> list[int | None]:
    return [as_path(path).changed() for pair in self._files[split] for path in pair if path]

  def split_facts(self, split: str) -> dict[str, Any]:
    files = [path for pair in self._files[split] for path in pair if path]
    file_facts = [
      (os.path.basename(p), as_path(p).size(), when)
      for p, when in zip(files, self.modification_times(split), strict=True)
    ]
    content = hashlib.sha256(repr(file_facts).encode()).hexdigest()
    return {"form": "voc.v2", "files": len(self._files[split]), "content": content}


def _inside(folder: str, name: str) -> str:
  """Return the path of an entry of a folder, in the letter case that it has there."""
  if as_path(f"{folder}/{name}").exists():
    return f"{folder}/{name}"
  candidates = [
    path
    for path in globs.find_matches(f"{glob.escape(folder)}/*")
    if os.path.basename(path).lower() == name.lower()
  ]
  return candidates[0] if candidates else f"{folder}/{name}"


def _pairs(part: str) -> list[tuple[str, str | None]]:
  """Return (annotation, image or None) pairs of a list or of a whole directory."""
  if not as_path(part).exists():
    raise UserError(
      f"source voc:{part}: found nothing there, expected a directory or a list of names"
    )
  is_list = globs.file_kind(part) == "file"
  folder = os.path.dirname(os.path.dirname(os.path.dirname(part))) if is_list else part.rstrip("/")
  annotations = _inside(folder, "Annotations")
  names = sorted(
    map(os.path.basename, globs.find_matches(f"{glob.escape(annotations)}/*.[xX][mM][lL]"))
  )
  stems = [os.path.splitext(name)[0] for name in names]
  if is_list:  # names, which may have spaces; a list of one class has 1, 0 or -1 behind them
    stem_set = {*stems}
    lines = filter(None, map(str.strip, decode(read_bytes(part), part).splitlines()))
    stems = [line if line in stem_set else line.split()[0] for line in lines]
    stems = [file_names.check_name(part, stem, "list names without .xml") for stem in stems]
  if odd := [stem for stem in stems if not file_names.is_name(stem)]:
    raise UserError(
      f"{part}: found {file_names.quote_name(odd[0])}, expected names of annotations, "
      "without their directory"
    )
  if not stems:
    raise UserError(
      f"source voc:{part}: found no annotations, expected DIR/Annotations/*.xml or "
      "a list of their names"
    )
  pictures = [
    path
    for name in _PICTURES
    for path in globs.find_matches(f"{glob.escape(_inside(folder, name))}/*")
  ]
  images = {os.path.basename(path).rpartition(".")[0]: path for path in pictures}
  pairs = [(_inside(annotations, f"{stem}.xml"), images.get(stem)) for stem in stems]
  if missing := next((path for path, _ in pairs if not as_path(path).exists()), None):
    raise UserError(f"{part}: names {os.path.basename(missing)}, but found no file {missing}")
  return pairs


class _Builder(ElementTree.TreeBuilder):
  """An XML builder that refuses document types, whose entities may expand without end or refer to
  other files."""

  def doctype(self, name: str, public: str | None, system: str | None) -> None:
    raise ValueError("a document type, which annotations do not have")


def _annotation(path: str) -> Record:
  return _parsed(path, as_path(path).changed())


@functools.lru_cache(100_000)
def _parsed(path: str, changed: int | None) -> Record:
  """Parse the objects of an annotation; if it lacks the image's size, boxes are in `pixels`."""
  try:
    root = ElementTree.fromstring(read_bytes(path), ElementTree.XMLParser(target=_Builder()))
    height, width = (int(root.findtext(f"size/{side}") or 0) for side in ("height", "width"))
    has_size = height and width
    y, x = (height, width) if has_size else (1, 1)
    objects = {"bbox": [], "label": [], "area": [], "is_difficult": []}
    for element in root.iter("object"):
      y0, x0, y1, x1 = (
        float(element.findtext(f"bndbox/{side}")) for side in ("ymin", "xmin", "ymax", "xmax")
      )
      objects["bbox"].append([y0 / y, x0 / x, y1 / y, x1 / x])
      objects["label"].append(element.findtext("name").strip())
      objects["area"].append(max(y1 - y0, 0.0) * max(x1 - x0, 0.0))
      objects["is_difficult"].append((element.findtext("difficult") or "0").strip() == "1")
  except (
    ElementTree.ParseError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
  ) as error:
    raise UserError(
      f"{path}: cannot be read ({one_line(error)}), expected VOC's XML: size, and objects with "
      "name and bndbox"
    ) from error
  return {"objects": objects} | (
    {ANNOTATED_SIZE: (height, width)} if has_size else {"pixels": True}
  )
