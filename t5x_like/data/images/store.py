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

from t5x_like import trust
from t5x_like.corpora.engines import processes
from t5x_like.corpora.job import ItemBatch, StoredBatch, describe_skipped
from t5x_like.corpora.sources import Record, Skip, Source, field_value
from t5x_like.corpora.sources._files import FileSource, irregular_kind
from t5x_like.data import prepared
from t5x_like.data.images.checking import checked
from t5x_like.data.images.pictures import ANNOTATED
from t5x_like.data.supervised.labels import number_of, numbered
from t5x_like.errors import UserError, one_line
from t5x_like.files import checked_json, file_names, globs
from t5x_like.files.local import IrregularFile
from t5x_like.files.paths import as_path, is_remote
from t5x_like.store.manifest import Array
from t5x_like.store.reader import Store, Verify

_CHARACTERS = 2**11  # of an image, so that a batch has 256
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
    labels = arrays.pop(_LABEL, Array(_LABEL, "int32", 1, 0 if self.classes else store.num_items))
    found = arrays.pop(_IMAGE, None)
    if (
      not found
      or (found.dtype, found.width) != ("uint8", 1)
      or labels.num_values != store.num_items
    ):
      raise UserError(
        f"{self.path}: found no images, or not one label for each of {store.num_items}; delete "
        f"{self.path} and it is made again"
      )
    self._ends = store.read_ends(_IMAGE)
    self.labels = store.read_values(_LABEL) if self.classes else np.zeros(store.num_items, np.int32)
    self.notes = {
      name: (store.read_values(name), np.diff(store.read_ends(name), prepend=0)) for name in arrays
    }
    of = f" of {len(self.classes)} classes" if self.classes else ""
    print(
      f"data: {self.path}: {self.num_images:,} images{of}{describe_skipped(self.skipped)}; "
      f"{store.verification}",
      flush=True,
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
class Notes:
  """Data kept of each record besides its image.

  Attributes:
    fields: the fields of the source.
    facts: all that the notes depend on besides the records; JSON.
    of: `(record, where) -> arrays by name`, each with a leading axis of any length; or the reason
      for having none.
    joined: `(records, image field) -> records`, merges records of a source that belong to one
      image.
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
  classes: tuple[str, ...] = (),
  folder: str = "",
  notes: Notes | None = None,
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
  notes = notes or Notes((), {}, lambda record, where: {})
  opened = prepared.open_source_fields(
    source, (image_field, *filter(None, [label_field]), *notes.fields), data_dir
  )
  names = list(classes) or _classes(opened, label_field, cache) if label_field else []
  arguments = {"fields": [image_field, label_field], "folder": folder, "notes": notes.facts}
  made = Images(
    opened, split, cache, {"classes": names}, arguments, None, notes, _directories(opened)
  )
  return ImageStore(prepared.open_store(made, processes.Engine(1), verify))


def _directories(source: Source) -> tuple[str, ...]:
  """Return the directories of a source's files; none of a source that is made of another one."""
  if not isinstance(source, FileSource):
    return ()
  paths = (path for split in source.splits for path in source.paths(split))
  return tuple(dict.fromkeys(os.path.dirname(globs.absolute_path(path)) for path in paths))


def _classes(source: Source, field: str, cache: str) -> list[str]:
  """Return the class names of a source; those that it finds by reading its files are kept in the
  cache."""
  if not isinstance(source, FileSource):
    return list(source.classes(field))
  facts = [field, *(source.split_facts(split) for split in source.splits)]
  key = checked_json.digest(facts)[:16]
  path = pathlib.Path(cache) / f".{source.name}-classes-{key}.json"
  if path.exists():
    return checked_json.parse_json(
      path.read_bytes(), list, str(path), "class names; delete it and it is made again"
    )
  found = list(source.classes(field))
  as_path(path).write_text(json.dumps(found))
  return found


@dataclasses.dataclass(frozen=True)
class Images(prepared.PreparedStore):
  """The images of a source, with notes.

  Attributes:
    directories: those of the source's files, below which records may name images by their whole
      paths.
  """

  notes: Notes
  directories: tuple[str, ...] = ()

  items = "images"
  advice = "check the source and its fields"
  unit = _IMAGE
  shard_values = 2**27  # bytes

  def read(self, number: int) -> Iterator[tuple[str, Record | Skip]]:
    return self.notes.joined(super().read(number), self.arguments["fields"][0])

  def characters(self, item: tuple[str, Record | Skip], /) -> int:
    return _CHARACTERS

  def make(self, batch: ItemBatch) -> StoredBatch:
    """Check images in threads; items are made in the order of the records."""
    image_field, label_field = self.arguments["fields"]
    numbers = numbered(self.store_facts["classes"], "classes") if label_field else {}
    folder = self.arguments["folder"]
    items = []
    reasons = []
    changed = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
      images = [
        _bytes(record, image_field, where, folder, self.directories)
        for where, record in batch.items
      ]
      usable = threads.map(_usable, images, (record for _, record in batch.items))
      for (where, record), kept in zip(batch.items, usable):
        note = (
          kept if isinstance(kept, Skip) else self.notes.of(record | {image_field: kept[0]}, where)
        )
        reasons.append(note.reason if isinstance(note, Skip) else None)
        if isinstance(note, Skip):
          changed.append(None)
          continue
        item = {_IMAGE: np.frombuffer(kept[0], np.uint8)}
        if label_field:
          label = number_of(
            str(field_value(record, label_field, where)), numbers, label_field, where
          )
          item[_LABEL] = np.array([label], np.int32)
        items.append(item | note)
        changed.append(Counter({kept[1]: 1}) if kept[1] else None)
    arrays = {}
    kept_D = np.array([reason is None for reason in reasons])
    for name in items[0] if items else ():
      lengths_D = np.zeros(kept_D.size, np.int64)
      lengths_D[kept_D] = [len(item[name]) for item in items]
      arrays[name] = np.concatenate([item[name] for item in items]), lengths_D
    return StoredBatch(arrays, reasons, changed)


def _path(name: str, field: str, where: str, folder: str, directories: tuple[str, ...]) -> str:
  """Return the path or address of a record's image.

  A record's name stays below `folder` or, without one, below the current directory or a directory
  of the records.

  Raises:
    UserError: it does not.
  """
  if file_names.is_inside(name):
    return os.path.join(folder, name)
  roots = (folder,) if folder else (os.getcwd(), *directories)
  if any(trust.is_inside(name, root, links=False) for root in roots) or (
    trust.allows_everything() and not is_remote(name)
  ):
    return name
  mend = (
    f"a path below {folder}"
    if folder
    else ("a path below the current directory or that of the records")
  )
  raise UserError(
    f"{where}: found {file_names.quote_name(name)} in field {field!r}, expected {mend}; name its "
    f"directory in config.task.folder, or add {trust.FLAG} for any path of this machine"
  )


def _usable(data: bytes | Skip, record: Record | Skip) -> tuple[bytes, str] | Skip:
  return data if isinstance(data, Skip) else checked(data, record.get(ANNOTATED))


def _bytes(
  record: Record | Skip, field: str, where: str, folder: str, directories: tuple[str, ...]
) -> bytes | Skip:
  """Return the encoded image of a record; `directories` are those of the source's files."""
  if isinstance(record, Skip):
    return record
  found = field_value(record, field, where)
  if isinstance(found, str):
    path = _path(found, field, where, folder, directories)
    try:
      if kind := irregular_kind(path):
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
  if not isinstance(found, bytes):
    raise UserError(
      f"{where}: found {type(found).__name__} in field {field!r}, expected an image or its path"
    )
  return found
