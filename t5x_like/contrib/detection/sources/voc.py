"""`voc:DIR` or `voc:train=PART,…`: images with boxes in Pascal VOC's layout.

The fields are `image` and `objects`.

DIR holds Annotations/*.xml, and JPEGImages or images. ImageSets/Main/*.txt list its splits, with
`val` renamed to `validation`; without lists, everything is `train`. A PART is such a list, or a
directory to take whole. The names of the folders may have other letter cases. `objects` are as in
TensorFlow datasets: `bbox` (ymin, xmin, ymax, xmax, as shares of the image), `label`, `area` in
pixels, `is_difficult`: VOC neither requires nor penalises the detection of such an object.
"""

import functools
import glob
import hashlib
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import Any

from t5x_like.corpora.image_files import ANNOTATED_SIZE
from t5x_like.corpora.sources import Record, Skip
from t5x_like.corpora.sources import Source as Base
from t5x_like.corpora.sources._files import _name, _patterns, decode, read_bytes
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
    if parts == {"train": [spec]} and not spec.endswith(".txt"):
      parts = _listed_splits(spec) or parts
    self._files = {}
    for split, paths in parts.items():
      self._files[split] = [pair for path in paths for pair in _list_pairs(path)]
    self.splits = tuple(self._files)
    first_annotation = next(iter(self._files.values()))[0][0]
    folder = os.path.dirname(os.path.dirname(first_annotation))
    self.name = _name("voc", [folder or "."])

  def classes(self, field: str) -> tuple[str, ...]:
    names = set()
    for pairs in self._files.values():
      for path, _ in pairs:
        names.update(_read_annotation(path)["objects"]["label"])
    return tuple(sorted(names))

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record | Skip]]:
    pairs = self._files[split]
    if part:
      pairs = pairs[slice(*part)]
    for path, image in pairs:
      if image is None:
        yield path, Skip(f"no image of that name in {_PICTURES[1]}")
        continue
      yield path, {"image": read_bytes(image)} | _read_annotation(path)

  def modification_times(self, split: str) -> list[int | None]:
    return [as_path(path).modified_time() for pair in self._files[split] for path in pair if path]

  def split_facts(self, split: str) -> dict[str, Any]:
    paths = [path for pair in self._files[split] for path in pair if path]
    file_facts = []
    for path, time in zip(paths, self.modification_times(split), strict=True):
      file_facts.append((os.path.basename(path), as_path(path).size(), time))
    content = hashlib.sha256(repr(file_facts).encode()).hexdigest()
    return {"form": "voc.v2", "files": len(self._files[split]), "content": content}


def _listed_splits(folder: str) -> dict[str, list[str]]:
  """Return the lists of the splits in a directory; none if it has no lists."""
  main = _find_entry(_find_entry(folder.rstrip("/"), "ImageSets"), "Main")
  lists = {}
  for file, split in _SPLITS.items():
    path = f"{main}/{file}.txt"
    if as_path(path).exists():
      lists[split] = [path]
  return lists


def _find_entry(folder: str, name: str) -> str:
  """Return the path of an entry of a folder, in the letter case that it has there."""
  if as_path(f"{folder}/{name}").exists():
    return f"{folder}/{name}"
  for path in globs.find_matches(f"{glob.escape(folder)}/*"):
    if os.path.basename(path).lower() == name.lower():
      return path
  return f"{folder}/{name}"


def _list_pairs(part: str) -> list[tuple[str, str | None]]:
  """Return (annotation, image or None) pairs of a list or of a whole directory."""
  if not as_path(part).exists():
    raise UserError(
      f"source voc:{part}: found nothing there, expected a directory or a list of names"
    )
  is_list = globs.file_kind(part) == "file"
  folder = part.rstrip("/")
  if is_list:
    folder = os.path.dirname(os.path.dirname(os.path.dirname(part)))
  annotations = _find_entry(folder, "Annotations")
  paths = globs.find_matches(f"{glob.escape(annotations)}/*.[xX][mM][lL]")
  stems = [os.path.splitext(name)[0] for name in sorted(map(os.path.basename, paths))]
  if is_list:
    stems = _listed_stems(part, {*stems})
  for stem in stems:
    if not file_names.is_name(stem):
      raise UserError(
        f"{part}: found {file_names.quote_name(stem)}, expected names of annotations, "
        "without their directory"
      )
  if not stems:
    raise UserError(
      f"source voc:{part}: found no annotations, expected DIR/Annotations/*.xml or "
      "a list of their names"
    )
  images = {}
  for name in _PICTURES:
    for path in globs.find_matches(f"{glob.escape(_find_entry(folder, name))}/*"):
      images[os.path.basename(path).rpartition(".")[0]] = path
  pairs = []
  for stem in stems:
    path = _find_entry(annotations, f"{stem}.xml")
    if not as_path(path).exists():
      raise UserError(f"{part}: names {os.path.basename(path)}, but found no file {path}")
    pairs.append((path, images.get(stem)))
  return pairs


def _listed_stems(path: str, known_stems: set[str]) -> list[str]:
  """Read the names in a list.

  Names may have spaces; a list of one class has 1, 0 or -1 after them.
  """
  stems = []
  for line in decode(read_bytes(path), path).splitlines():
    line = line.strip()
    if line:
      stem = line if line in known_stems else line.split()[0]
      stems.append(file_names.check_name(path, stem, "list names without .xml"))
  return stems


class _Builder(ElementTree.TreeBuilder):
  """An XML builder that refuses document types.

  Their entities may expand without end or refer to other files.
  """

  def doctype(self, name: str, public: str | None, system: str | None) -> None:
    raise ValueError("a document type, which annotations do not have")


def _read_annotation(path: str) -> Record:
  return _parse_annotation(path, as_path(path).modified_time())


@functools.lru_cache(100_000)
def _parse_annotation(path: str, modified_time: int | None) -> Record:
  """Parse the objects of an annotation; if it lacks the image's size, boxes are in pixels."""
  try:
    root = ElementTree.fromstring(read_bytes(path), ElementTree.XMLParser(target=_Builder()))
    height = int(root.findtext("size/height") or 0)
    width = int(root.findtext("size/width") or 0)
    has_size = bool(height and width)
    y_unit = height if has_size else 1
    x_unit = width if has_size else 1
    objects = {"bbox": [], "label": [], "area": [], "is_difficult": []}
    for element in root.iter("object"):
      y0, x0, y1, x1 = (
        float(element.findtext(f"bndbox/{side}")) for side in ("ymin", "xmin", "ymax", "xmax")
      )
      objects["bbox"].append([y0 / y_unit, x0 / x_unit, y1 / y_unit, x1 / x_unit])
      objects["label"].append(element.findtext("name").strip())
      objects["area"].append(max(y1 - y0, 0.0) * max(x1 - x0, 0.0))
      is_difficult = (element.findtext("difficult") or "0").strip() == "1"
      objects["is_difficult"].append(is_difficult)
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
  if not has_size:
    return {"objects": objects, "pixels": True}
  return {"objects": objects, ANNOTATED_SIZE: (height, width)}
