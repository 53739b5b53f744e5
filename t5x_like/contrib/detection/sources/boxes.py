"""`boxes:train=boxes.csv@pictures,…`: images with boxes from tables; `image`, `objects`.

A table has a header and one row per box, in cells separated by commas, or by tabs in a `.tsv` file:
the name of the image below the directory after the `@` (by default the table's own), which may lack
its `.jpg`, `.jpeg` or `.png`, the class, and the edges `xmin`, `ymin`, `xmax`, `ymax`. Edges are
pixels, or shares of the image if none in the table is above 2. An image whose row has no class has
no objects. `objects` are as in TensorFlow datasets.
"""

import csv
import hashlib
import os
from collections.abc import Iterator
from typing import Any

from t5x_like.corpora.sources import Record, Skip
from t5x_like.corpora.sources import Source as Base
from t5x_like.corpora.sources._files import _files, _name, _patterns, lines, read_bytes
from t5x_like.errors import UserError, one_line
from t5x_like.files import file_names
from t5x_like.files.paths import as_path

_EDGES = ("ymin", "xmin", "ymax", "xmax")
# The spellings of each column in the tables of annotation tools.
_NAMES = {
  "image": ("image", "filename", "file_name", "file", "path", "imageid", "image_id", "image_name"),
  "label": ("class", "label", "name", "category", "labelname", "class_name"),
  "ymin": ("ymin", "y_min", "bbox_ymin", "y1"),
  "xmin": ("xmin", "x_min", "bbox_xmin", "x1"),
  "ymax": ("ymax", "y_max", "bbox_ymax", "y2"),
  "xmax": ("xmax", "x_max", "bbox_xmax", "x2"),
}

# names may lack them, as in Open Images
_ENDINGS = ("", ".jpg", ".jpeg", ".png", ".JPG", ".JPEG", ".PNG")
_WIDEST = 2.0  # an edge that is a share of the image; some are a little beyond 1

Row = tuple[str, list[float]]  # class, edges


class Source(Base):
  """Images and their boxes, from one table per split."""

  form = "boxes"

  def __init__(self, spec: str, *, fields: tuple[str, ...] = (), data_dir: str | None = None):
    del fields, data_dir
    self._parts = {}
    for split, parts in _patterns(self.form, spec).items():
      path, _, folder = parts[0].partition("@")
      if len(parts) > 1 or len(_files(self.form, [path])) != 1:
        raise UserError(
          f"source {self.form}:{spec}: found several files for {split!r}, expected one"
        )
      self._parts[split] = (path, folder.rstrip("/") or self.default_image_folder(path))
    self.splits = tuple(self._parts)
    self.name = _name(self.form, [path for path, _ in self._parts.values()])

  def default_image_folder(self, path: str) -> str:
    """Return the directory of the images of a table without an `@`."""
    return os.path.dirname(path) or "."

  def classes(self, field: str) -> tuple[str, ...]:
    labels = set()
    for path, _ in self._parts.values():
      for rows in _table(path).values():
        labels.update(label for label, _ in rows)
    return tuple(sorted(labels))

  def records(
    self, split: str, part: tuple[int, int] | None = None
  ) -> Iterator[tuple[str, Record | Skip]]:
    path, folder = self._parts[split]
    table = _table(path)
    are_shares = _are_shares(table, path)
    for name, rows in list(table.items())[slice(*part) if part else slice(None)]:
      file = _find_image(folder, name)
      if file is None:
        yield f"{path}, image {name}", Skip(f"no such file in {folder}, which FILE@FOLDER names")
        continue
      objects = {"bbox": [edges for _, edges in rows], "label": [label for label, _ in rows]}
      record = {"image": read_bytes(file), "objects": objects}
      if not are_shares:
        record["pixels"] = True
      yield file, record

  def modification_times(self, split: str) -> list[int | None]:
    return [as_path(self._parts[split][0]).modified_time()]

  def split_facts(self, split: str) -> dict[str, Any]:
    path, folder = self._parts[split]
    content = hashlib.sha256(repr(_table(path)).encode()).hexdigest()
    return {"form": "boxes.v1", "content": content, "images": os.path.basename(folder.rstrip("/"))}


def _find_image(folder: str, name: str) -> str | None:
  """Return the file of an image, whose name in the table may lack its ending."""
  for ending in _ENDINGS:
    file = f"{folder}/{name}{ending}"
    if as_path(file).exists():
      return file
  return None


def _are_shares(table: dict[str, list[Row]], path: str) -> bool:
  """Return whether the edges of a table are shares of the image.

  Raises:
    UserError: some rows have pixels and others shares.
  """
  pixels = []
  fractions = []
  for name, rows in table.items():
    for _, edges in rows:
      if any(edge > _WIDEST for edge in edges):
        pixels.append((name, edges))
      elif not all(edge.is_integer() for edge in edges):
        fractions.append((name, edges))
  if pixels and fractions:
    raise UserError(
      f"{path}: found shares of the image ({len(fractions)} boxes, such as {fractions[0][1]} of "
      f"{fractions[0][0]}) beside pixels ({len(pixels)}, such as {pixels[0][1]} of "
      f"{pixels[0][0]}); write all edges in one unit"
    )
  return not pixels


def _table(path: str) -> dict[str, list[Row]]:
  """Read a table: the class and the edges, as in `_EDGES`, of each box, by image.

  Images are in the order of the rows.
  """

  def texts() -> Iterator[str]:
    for number, line in lines(path):
      if isinstance(line, Skip):
        raise UserError(f"{path}:{number}: found a {line.reason}, expected a table")
      yield line + "\n"

  rows = csv.reader(
    texts(), strict=True, delimiter="\t" if path.endswith((".tsv", ".tsv.gz")) else ","
  )
  columns = None
  boxes = {}
  try:
    for cells in rows:
      where = f"{path}:{rows.line_num}"
      if not cells:
        continue
      if columns is None:
        columns = _columns(cells, where)
        continue
      if len(cells) <= max(columns.values()):
        raise UserError(
          f"{where}: found {len(cells)} columns, expected at least {max(columns.values()) + 1}"
        )
      name, label = (cells[columns[column]].strip() for column in ("image", "label"))
      if not file_names.is_inside(name):
        raise UserError(
          f"{where}: found the image {file_names.quote_name(name)}, expected a path below its "
          "directory"
        )
      image_boxes = boxes.setdefault(name, [])
      if label:
        image_boxes.append((label, [float(cells[columns[edge]]) for edge in _EDGES]))
  except csv.Error as error:
    raise UserError(f"{path}:{rows.line_num}: found an invalid table ({one_line(error)})") from None
  except ValueError as error:
    raise UserError(
      f"{where}: found {one_line(error)}, expected numbers for {', '.join(_EDGES)}"
    ) from None
  if not boxes:
    raise UserError(f"{path}: found no rows, expected a header and a row for each box")
  return boxes


def _columns(cells: list[str], where: str) -> dict[str, int]:
  """Return the index of each column in a header."""
  names = [cell.strip().lower() for cell in cells]
  indices = {}
  for column, spellings in _NAMES.items():
    known = [spelling for spelling in spellings if spelling in names]
    if not known:
      raise UserError(
        f"{where}: found the columns {', '.join(names)[:200]}, expected one for the "
        f"{column}: {', '.join(spellings)}"
      )
    indices[column] = names.index(known[0])
  return indices
