"""Encoded images and their labels, prepared once from a source and read by index.

A store (see `data/prepared.py`) whose items are images, with the arrays

    image     uint8, the bytes of the encoded image
    label     int32, the number of its class; absent where images have none
    …         the notes of a task about each image, such as its captions

"""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from t5x_like import data, trust
from t5x_like.corpora.engines import processes
from t5x_like.corpora.image_files import ANNOTATED_SIZE
from t5x_like.corpora.job import ItemBatch, StoredBatch, describe_skipped
from t5x_like.corpora.sources import Record, Skip, Source, field_value
from t5x_like.corpora.sources._files import FileSource, irregular_kind
from t5x_like.data import prepared
from t5x_like.data.images.checking import check_image
from t5x_like.data.supervised.labels import label_number, number_labels
from t5x_like.errors import UserError, one_line
from t5x_like.files import checked_json, file_names, globs
from t5x_like.files.local import IrregularFile
from t5x_like.files.paths import as_path, is_remote
from t5x_like.store.manifest import Array
from t5x_like.store.reader import Store, Verify

_CHARACTERS = 2**11  # what one image counts as, so that a batch has 256 (`job.BATCH_CHARACTERS`)
_IMAGE = "image"
_LABEL = "label"


class ImageStore:
  """Prepared images, opened by `open_store`.

  Attributes:
    path: the directory.
    name: the name of the corpus.
    classes: the names of the classes.
    labels: the number of each image's class, int32 [N]; 0 where they have none.
    skipped: number of skipped records, by reason.
    fingerprint: SHA-256 of images, labels, classes and notes.
    notes: by name, the concatenated values [M, …] of all images, and the number of values of each
      image, int64 [N].

  Raises:
    UserError: the store holds no images, or not one label for each.
  """

  def __init__(self, store: Store):
    self._store = store
    self.path = store.path
    self.name = store.name
    self.fingerprint = store.fingerprint
    self.classes = tuple(store.manifest.facts["classes"])
    self.skipped = store.manifest.skipped
    arrays = {array.name: array for array in store.manifest.arrays}
    num_labels = 0 if self.classes else store.num_items
    labels = arrays.pop(_LABEL, Array(_LABEL, "int32", 1, num_labels))
    images = arrays.pop(_IMAGE, None)
    is_usable = images and (images.dtype, images.width) == ("uint8", 1)
    if not is_usable or labels.num_values != store.num_items:
      raise UserError(
        f"{self.path}: found no images, or not one label for each of {store.num_items}; delete "
        f"{self.path} and it is made again"
      )
    self._ends = store.read_ends(_IMAGE)
    if self.classes:
      self.labels = store.read_values(_LABEL)
    else:
      self.labels = np.zeros(store.num_items, np.int32)
    self.notes = {}
    for name in arrays:
      self.notes[name] = store.read_values(name), np.diff(store.read_ends(name), prepend=0)
    class_count = f" of {len(self.classes)} classes" if self.classes else ""
    data.announce(
      f"{self.path}: {self.num_images:,} images{class_count}{describe_skipped(self.skipped)}",
      f"; {store.verification}",
    )

  @property
  def num_images(self) -> int:
    return self._store.num_items

  def read(self, index_B: np.ndarray) -> np.ndarray:
    """Return the encoded images of some indices, in their order: an array of bytes objects [B]."""
    starts_B = np.where(index_B > 0, self._ends[index_B - 1], 0)
    sizes_B = self._ends[index_B] - starts_B
    images_B = np.empty(len(index_B), object)
    data = self._store.read_ranges(_IMAGE, starts_B, sizes_B)
    for row, image in enumerate(np.split(data, np.cumsum(sizes_B)[:-1])):
      images_B[row] = image.tobytes()
    return images_B


@dataclasses.dataclass(frozen=True)
class ImageNotes:
  """Data that a store keeps of each record besides its image.

  Attributes:
    fields: the fields of the source that the notes need.
    facts: all that the notes depend on besides the records; JSON.
    make: `(record, where) -> arrays by name`, each with a leading axis of any length; or the reason
      for skipping the record.
    merge: `(records, image field) -> records`, merges records of a source that belong to one image.
  """

  fields: tuple[str, ...]
  facts: dict[str, Any]
  make: Callable[[Record, str], dict[str, np.ndarray] | Skip]
  merge: Callable[[Iterator, str], Iterator] = lambda records, _: records


def open_store(
  source: str,
  split: str,
  *,
  image_field: str = "image",
  label_field: str | None = "label",
  classes: tuple[str, ...] = (),
  folder: str = "",
  notes: ImageNotes | None = None,
  cache: str,
  data_dir: str | None = None,
  verify: Verify = "auto",
) -> ImageStore:
  """Open the images of a source's split, preparing them first if necessary.

  Args:
    source, split, data_dir: see `corpora/sources/__init__.py`; the source knows the classes of its
      labels. `train[:1000]` is the first 1,000 records.
    image_field, label_field: the fields of encoded images, or of their paths, and of labels; None
      for no labels.
    classes: the names of the classes, in the order of their numbers; if empty, the source's.
    folder: the directory of relative image paths.
    notes: further data to keep; None for none.
    cache: the local directory of all prepared data.
    verify: the checks on opening, see `Store.open`.

  Raises:
    UserError, DamageError: see `prepared.open_store`.
  """
  notes = notes or ImageNotes((), {}, lambda record, where: {})
  fields = (image_field, *notes.fields)
  if label_field:
    fields = (image_field, label_field, *notes.fields)
  records = prepared.open_source_fields(source, fields, data_dir)
  class_names = []
  if label_field:
    class_names = list(classes) or _classes(records, label_field, cache)
  images = PreparedImages(
    source=records,
    split=split,
    cache=cache,
    store_facts={"classes": class_names},
    arguments={"fields": [image_field, label_field], "folder": folder, "notes": notes.facts},
    vocabulary=None,
    notes=notes,
    directories=_directories(records),
  )
  return ImageStore(prepared.open_store(images, processes.Engine(1), verify))


def _directories(source: Source) -> tuple[str, ...]:
  """Return the directories of a source's files; none if it is made from another source."""
  if not isinstance(source, FileSource):
    return ()
  paths = (path for split in source.splits for path in source.paths(split))
  return tuple(dict.fromkeys(os.path.dirname(globs.absolute_path(path)) for path in paths))


def _classes(source: Source, field: str, cache: str) -> list[str]:
  """Return the class names of a source.

  Names that a source finds by reading its files are kept in the cache.
  """
  if not isinstance(source, FileSource):
    return list(source.classes(field))
  facts = [field, *(source.split_facts(split) for split in source.splits)]
  key = checked_json.digest(facts)[:16]
  path = pathlib.Path(cache) / f".{source.name}-classes-{key}.json"
  if path.exists():
    return checked_json.parse_json(
      path.read_bytes(), list, str(path), "class names; delete it and it is made again"
    )
  names = list(source.classes(field))
  as_path(path).write_text(json.dumps(names))
  return names


@dataclasses.dataclass(frozen=True)
class PreparedImages(prepared.PreparedStore):
  """The images of a source, with notes.

  Attributes:
    notes: further data of each record.
    directories: the directories of the source's files. Records may name images below them by
      absolute paths.
  """

  notes: ImageNotes
  directories: tuple[str, ...] = ()

  items = "images"
  advice = "check the source and its fields"
  unit = _IMAGE
  shard_values = 2**27  # bytes

  def read(self, number: int) -> Iterator[tuple[str, Record | Skip]]:
    return self.notes.merge(super().read(number), self.arguments["fields"][0])

  def characters(self, item: tuple[str, Record | Skip], /) -> int:
    return _CHARACTERS

  def make(self, batch: ItemBatch) -> StoredBatch:
    """Check images in threads; items are made in the order of the records."""
    label_field = self.arguments["fields"][1]
    class_numbers = {}
    if label_field:
      class_numbers = number_labels(self.store_facts["classes"], "classes")
    items = []
    reasons: list[str | None] = []
    changes: list[Counter | None] = []
    for (where, record), image in zip(batch.items, self._checked_images(batch)):
      item = self._item(record, image, where, class_numbers)
      if isinstance(item, Skip):
        reasons.append(item.reason)
        changes.append(None)
        continue
      _, change = image
      items.append(item)
      reasons.append(None)
      changes.append(Counter({change: 1}) if change else None)
    return StoredBatch(_concatenate(items, reasons), reasons, changes)

  def _checked_images(self, batch: ItemBatch) -> list[tuple[bytes, str] | Skip]:
    """Return `check_image` of each record's image."""
    image_field = self.arguments["fields"][0]
    folder = self.arguments["folder"]
    files = []
    for where, record in batch.items:
      files.append(_bytes(record, image_field, where, folder, self.directories))
    records = [record for _, record in batch.items]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
      return list(threads.map(_check, files, records))

  def _item(
    self,
    record: Record | Skip,
    image: tuple[bytes, str] | Skip,
    where: str,
    class_numbers: dict[str, int],
  ) -> dict[str, np.ndarray] | Skip:
    """Return the arrays of a record, or the reason for skipping it."""
    if isinstance(image, Skip):
      return image
    image_field, label_field = self.arguments["fields"]
    data, _ = image
    notes = self.notes.make(record | {image_field: data}, where)
    if isinstance(notes, Skip):
      return notes
    item = {_IMAGE: np.frombuffer(data, np.uint8)}
    if label_field:
      name = str(field_value(record, label_field, where))
      item[_LABEL] = np.array([label_number(name, class_numbers, label_field, where)], np.int32)
    return item | notes


def _concatenate(
  items: list[dict[str, np.ndarray]], reasons: list[str | None]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Return (values, values of each record) of every array; skipped records have no values."""
  arrays = {}
  if not items:
    return arrays
  is_kept_D = np.array([reason is None for reason in reasons])
  for name in items[0]:
    lengths_D = np.zeros(is_kept_D.size, np.int64)
    lengths_D[is_kept_D] = [len(item[name]) for item in items]
    arrays[name] = np.concatenate([item[name] for item in items]), lengths_D
  return arrays


def _path(name: str, field: str, where: str, folder: str, directories: tuple[str, ...]) -> str:
  """Return the path or URL of a record's image.

  Raises:
    UserError: the path is not below `folder` or, without one, below the current directory or a
      directory of the records.
  """
  if file_names.is_inside(name):
    return os.path.join(folder, name)
  roots = (folder,) if folder else (os.getcwd(), *directories)
  if any(trust.is_inside(name, root, links=False) for root in roots):
    return name
  if trust.allows_everything() and not is_remote(name):
    return name
  expected = "a path below the current directory or that of the records"
  if folder:
    expected = f"a path below {folder}"
  raise UserError(
    f"{where}: found {file_names.quote_name(name)} in field {field!r}, expected {expected}; name "
    f"its directory in config.task.folder, or add {trust.FLAG} for any path of this machine"
  )


def _check(data: bytes | Skip, record: Record | Skip) -> tuple[bytes, str] | Skip:
  """Check the image of a record; see `check_image`."""
  if isinstance(data, Skip):
    return data
  return check_image(data, record.get(ANNOTATED_SIZE))


def _bytes(
  record: Record | Skip, field: str, where: str, folder: str, directories: tuple[str, ...]
) -> bytes | Skip:
  """Return the encoded image of a record; `directories` hold the files of the source."""
  if isinstance(record, Skip):
    return record
  image = field_value(record, field, where)
  if isinstance(image, str):
    path = _path(image, field, where, folder, directories)
    try:
      kind = irregular_kind(path)
      if kind:
        return Skip(f"{kind} instead of an image")
      with as_path(path).open("rb") as file:
        return file.read()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, UserError):
      return Skip("image file not found")
    except IrregularFile as error:
      raise UserError(
        f"{where}: {path!r:.99} cannot be read: {error.strerror}; correct the record"
      ) from error
    except (OSError, ValueError) as error:
      raise UserError(
        f"{where}: {path!r:.99} cannot be read ({one_line(error)}); run the same command again"
      ) from error
  if not isinstance(image, bytes):
    raise UserError(
      f"{where}: found {type(image).__name__} in field {field!r}, expected an image or its path"
    )
  return image
