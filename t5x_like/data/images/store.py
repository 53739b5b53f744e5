"""Encoded images and their labels, prepared once from a source and read by index.

A store (see `data/prepared.py`) whose items are images, with the arrays

    image     uint8, the bytes of the encoded image
    label     int32, the number of its class; absent where images have none
    …         the notes of a task about each image, such as its captions

Every `_SHARD` of the source's records make a shard; the shards of a killed preparation are kept.
"""

import concurrent.futures
import dataclasses
import functools
import itertools
import json
import os
import pathlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from t5x_like.corpora import progress_files
from t5x_like.corpora.sources import Record, Skip, value
from t5x_like.data import prepared
from t5x_like.data.images.checking import checked
from t5x_like.data.prepared import Request, skips
from t5x_like.data.supervised.labels import number_of, numbered
from t5x_like.errors import UserError
from t5x_like.files import file_names
from t5x_like.files.places import is_remote, place
from t5x_like.store.manifest import Array
from t5x_like.store.reader import Store, Verify
from t5x_like.store.writer import Shard, ShardWriter, described, publish

_SHARD = 8192  # records
_AT_ONCE = 256  # images in memory
_IMAGE, _LABEL = "image", "label"


class ImageStore:
  """Prepared images, opened by `open_store`.

  Attributes:
    path: the directory.
    name: the name of the corpus.
    classes: the names of the classes.
    labels: the number of each image's class, int32 [N]; 0 where they have none.
    skipped: number of skipped records, by reason.
    fingerprint: SHA-256 of images, labels, classes and notes.
    notes: by name, the concatenated values [M, …] of all images, and the number of values of each image, int64 [N].

  Raises:
    UserError: the store holds no images, or not one label for each.
  """

  def __init__(self, store: Store):
    self._store, self.path, self.name, self.fingerprint = store, store.path, store.name, store.fingerprint
    self.classes, self.skipped = tuple(store.manifest.facts["classes"]), store.manifest.skipped
    arrays = {array.name: array for array in store.manifest.arrays}
    labels = arrays.pop(_LABEL, Array(_LABEL, "int32", 1, 0 if self.classes else store.num_items))
    found = arrays.pop(_IMAGE, None)
    if not found or (found.dtype, found.width) != ("uint8", 1) or labels.num_values != store.num_items:
      raise UserError(
        f"{self.path}: found no images, or not one label for each of {store.num_items}; delete {self.path} and it is "
        "made again"
      )
    self._ends = store.ends(_IMAGE)
    self.labels = store.values(_LABEL) if self.classes else np.zeros(store.num_items, np.int32)
    self.notes = {name: (store.values(name), np.diff(store.ends(name), prepend=0)) for name in arrays}
    of = f" of {len(self.classes)} classes" if self.classes else ""
    print(f"data: {self.path}: {self.num_images:,} images{of}{skips(self.skipped)}; {store.verification}", flush=True)

  @property
  def num_images(self) -> int:
    return self._store.num_items

  def read(self, index_B: np.ndarray) -> np.ndarray:
    """Return the encoded images of some indices, in their order: an array of bytes objects [B]."""
    starts_B = np.where(index_B > 0, self._ends[index_B - 1], 0)
    sizes_B, images_B = self._ends[index_B] - starts_B, np.empty(len(index_B), object)
    data = self._store.stretches(_IMAGE, starts_B, sizes_B)
    for row, image in enumerate(np.split(data, np.cumsum(sizes_B)[:-1])):
      images_B[row] = image.tobytes()
    return images_B


@dataclasses.dataclass(frozen=True)
class Notes:
  """Data kept of each record besides its image.

  Attributes:
    fields: the fields of the source.
    facts: all that the notes depend on besides the records; JSON.
    of: `(record, where) -> arrays by name`, each with a leading axis of any length; or the reason for having none.
    joined: `(records, image field) -> records`, merges records of a source that belong to one image.
  """

  fields: tuple[str, ...]
  facts: dict[str, Any]
  of: Callable[[Record, str], dict[str, np.ndarray] | Skip]
  joined: Callable[[Iterator, str], Iterator] = lambda records, _: records


def open_store(
  source: str,
  split: str,
  *,
  image_field: str = "image",
  label_field: str | None = "label",
  folder: str = "",
  notes: Notes | None = None,
  cache: str,
  data_dir: str | None = None,
  verify: Verify = "auto",
) -> ImageStore:
  """Open the images of a source's split, preparing them first if necessary.

  Args:
    source, split, data_dir: see `corpora/sources/__init__.py`; the source knows the classes of its labels.
      `train[:1000]` is the first 1,000 records.
    image_field, label_field: the fields of encoded images, or of their paths, and of labels; None for no labels.
    folder: the directory of relative image paths.
    notes: further data to keep; None for none.
    cache: the local directory of all prepared data.
    verify: the checks on opening, see `Store.open`.

  Raises:
    UserError, DamageError: see `prepared.opened`.
  """
  notes = notes or Notes((), {}, lambda record, where: {})
  opened = prepared.source(source, (image_field, *filter(None, [label_field]), *notes.fields), data_dir)
  classes = list(opened.classes(label_field)) if label_field else []
  arguments = {"fields": [image_field, label_field], "folder": folder, "notes": notes.facts}
  request = Request(opened, split, cache, {"classes": classes}, arguments)
  return ImageStore(prepared.opened(request, functools.partial(_prepare, notes=notes), verify))


def _prepare(request: Request, notes: Notes) -> None:
  """Write the missing shards and join all of them."""
  work, made = request.progress, []
  records = notes.joined(request.records(), request.arguments["fields"][0])
  while True:
    record = place(work) / "records" / f"{len(made):08d}"
    if content := progress_files.load(record):
      made.append(json.loads(content))
      for _ in itertools.islice(records, made[-1]["records"]):
        pass
      continue
    held = itertools.islice(records, _SHARD)
    if (first := next(held, None)) is None:
      break
    made.append(_write_shard(work, len(made), itertools.chain([first], held), request, notes))
    progress_files.save(record, json.dumps(made[-1]).encode())
  skipped = sum((Counter(one["skipped"]) for one in made), Counter())
  shards = [Shard(**one["shard"]) for one in made if one["shard"]]
  if not shards:
    raise UserError(
      f"{request.source.name}, split {request.split!r}: found 0 images{skips(skipped)}, expected at least one"
    )
  arrays = next([Array(**array) for array in one["arrays"]] for one in made if one["shard"])
  (place(work) / "records").rmtree()
  publish(work, request.path, described(shards, arrays=arrays, skipped=skipped, **request.about), None)
  converted, images = (sum(numbers) for numbers in ((one["converted"] for one in made), (s.items for s in shards)))
  changed = f", {converted:,} converted to PNG" if converted else ""
  print(f"data: {request.path}: prepared {images:,} images{changed}{skips(skipped)}", flush=True)


def _write_shard(work: pathlib.Path, number: int, records: Iterator, request: Request, notes: Notes) -> dict[str, Any]:
  """Write the shard of some records, and return its record."""
  image_field, label_field = request.arguments["fields"]
  numbers = numbered(request.facts["classes"], "label_field") if label_field else {}
  skipped, converted, read, arrays, writer = Counter(), 0, 0, [], None
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
    while some := list(itertools.islice(records, _AT_ONCE)):
      images = [_bytes(record, image_field, where, request.arguments["folder"]) for where, record in some]
      usable, items = threads.map(lambda data: data if isinstance(data, Skip) else checked(data), images), []
      read += len(some)
      for (where, record), kept in zip(some, usable):
        note = kept if isinstance(kept, Skip) else notes.of(record, where)
        if isinstance(note, Skip):
          skipped[note.reason] += 1
          continue
        item = {_IMAGE: np.frombuffer(kept[0], np.uint8)}
        if label_field:
          label = number_of(str(value(record, label_field, where)), numbers, label_field, where)
          item[_LABEL] = np.array([label], np.int32)
        items.append(item | note)
        converted += kept[1]
      if items and not writer:
        arrays = [Array(name, found.dtype.name, *found.shape[1:]) for name, found in items[0].items()]
        writer = ShardWriter(work, f"{number:08d}", arrays)
      if items:
        parts = {name: [item[name] for item in items] for name in items[0]}
        writer.add({name: (np.concatenate(part), [len(one) for one in part]) for name, part in parts.items()})
  return {
    "records": read,
    "converted": converted,
    "skipped": skipped,
    "arrays": [dataclasses.asdict(array) for array in arrays],
    "shard": dataclasses.asdict(writer.close()) if writer else None,
  }


def _bytes(record: Record | Skip, field: str, where: str, folder: str) -> bytes | Skip:
  """Return the encoded image of a record."""
  if isinstance(record, Skip):
    return record
  found = value(record, field, where)
  if isinstance(found, str):
    if folder and not file_names.is_inside(found):
      raise UserError(
        f"{where}: found {file_names.shown(found)} in field {field!r}, expected a path below {folder}; without"
        " config.task.folder, paths are taken as they are"
      )
    path = found if is_remote(found) else os.path.join(folder, found)
    try:
      with place(path).open("rb") as file:
        return file.read()
    except (OSError, UserError):
      return Skip("image file not found")
  if not isinstance(found, bytes):
    raise UserError(f"{where}: found {type(found).__name__} in field {field!r}, expected an image or its path")
  return found
