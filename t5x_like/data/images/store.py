"""Encoded images and their labels, prepared once from a source and read by index.

    <cache>/<name>-<split>-<key>/images.json          the manifest: source, classes, counts, checksums, fingerprint
    <cache>/<name>-<split>-<key>/00000.array_record   the bytes of `_SHARD` of the source's records, less those skipped
    <cache>/<name>-<split>-<key>/00000.npz            what a task notes of each image besides, such as its captions
    <cache>/<name>-<split>-<key>/labels.npy           int32 [N], the class of each image; 0 where they have none

A task prepares its images when it first needs them, under a key of all that they depend on, and every later run opens
them. A killed preparation continues after its last whole shard. Unusable images are counted by reason in the manifest
and reported.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import os
import pathlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from t5x_like.corpora.sources import Record, Skip, Source, check_split, first_records, open_source, parted, value
from t5x_like.data.images.checking import checked
from t5x_like.data.supervised.example_store import lock, reasons
from t5x_like.data.supervised.labels import number_of, numbered
from t5x_like.errors import UserError, one_line
from t5x_like.files import file_names, ranges
from t5x_like.files.places import is_remote, place
from t5x_like.store import records as prepared
from t5x_like.store.reader import Verify

FORMAT = "t5x_like.images.v1"
FILE = "images.json"
_SHARD = 8192  # records
_AT_ONCE = 256  # images in memory
_READ_WHOLE = 2**26  # bytes up to which `auto` verifies contents


@dataclasses.dataclass(frozen=True)
class ImageStore:
  """Prepared images, opened by `open_store`.

  Attributes:
    path: the directory.
    name: the name of the corpus.
    classes: the names of the classes; `labels` [N] are their numbers.
    files, sizes: the shards and the number of images in each.
    skipped: number of skipped images, by reason.
    fingerprint: SHA-256 of images, labels, classes and notes.
    notes: by name, the concatenated values [M, …] of all images, and the number of values of each image, int64 [N].
  """

  path: str
  name: str
  classes: tuple[str, ...]
  labels: np.ndarray
  files: tuple[str, ...]
  sizes: tuple[int, ...]
  skipped: dict[str, int]
  fingerprint: str
  notes: dict[str, tuple[np.ndarray, np.ndarray]] = dataclasses.field(default_factory=dict)

  @property
  def num_images(self) -> int:
    return len(self.labels)

  def read(self, index_B: np.ndarray) -> np.ndarray:
    """Return the encoded images of some indices, in their order: an array of bytes objects [B]."""
    out = np.empty(len(index_B), object)
    ends = np.cumsum(self.sizes)
    shard_B = np.searchsorted(ends, index_B, side="right")
    for shard in np.unique(shard_B):
      rows = np.flatnonzero(shard_B == shard)
      places = (index_B[rows] - (ends[shard] - self.sizes[shard])).tolist()
      try:
        found = _reader(self.files[shard]).read(places)
      except Exception as error:  # array_record raises its own types for damaged files
        raise UserError(f"{self.files[shard]}: cannot be read ({one_line(error)}); {_remedy(self.path)}") from error
      for row, data in zip(rows, found, strict=True):
        out[row] = data
    return out


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


@functools.lru_cache(512)
def _reader(file: str):
  from array_record.python.array_record_module import ArrayRecordReader

  return ArrayRecordReader(file, options="readahead_buffer_size:0", file_reader_buffer_size=32768)


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
    verify: the checks on opening: `size` of the files, their contents (`full`), or `auto`: the contents if small.

  Raises:
    UserError: an unusable source, an unwritable cache, no usable image, or a file changed since preparation.
  """
  fields = (image_field, *([label_field] if label_field else []), *(notes.fields if notes else ()))
  opened = open_source(source, fields=tuple(dict.fromkeys(fields)), data_dir=data_dir)
  whole, most = parted(split)
  check_split(opened, whole)
  content = {
    "format": FORMAT,
    "rows": opened.split_facts(whole),
    "split": split,
    "fields": [image_field, label_field],
    "classes": list(opened.classes(label_field)) if label_field else [],
  }
  content |= {"folder": folder} if folder else {}
  content |= {"notes": notes.facts} if notes else {}
  key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
  path = pathlib.Path(cache) / f"{opened.name}-{whole}{most or ''}-{key[:16]}"
  if not (path / FILE).exists():
    with lock(path):
      if not (path / FILE).exists():
        try:
          _prepare(path, opened, split, content, notes)
        except OSError as error:
          raise UserError(
            f"config.task.cache: {path} cannot be written ({one_line(error)}); free some space or choose another"
            " directory"
          ) from error
  return _open(path, opened.name, content, verify)


def _prepare(path: pathlib.Path, source: Source, split: str, content: dict, notes: Notes | None) -> None:
  work = path.with_name(f".{path.name}.progress")
  work.mkdir(parents=True, exist_ok=True)
  records, shards = first_records(source, split), []
  records = notes.joined(records, content["fields"][0]) if notes else records
  while True:
    about = work / f"{len(shards):05d}.json"
    if about.exists():
      shards.append(json.loads(about.read_text()))
      for _ in itertools.islice(records, shards[-1]["records"]):
        pass
      continue
    held = itertools.islice(records, _SHARD)
    first = next(held, None)
    if first is None:
      break
    shards.append(_write_shard(about, itertools.chain([first], held), content, notes))
  labels = np.array([label for shard in shards for label in shard.pop("labels")], np.int32)
  skipped, converted = Counter(), sum(shard["converted"] for shard in shards)
  for shard in shards:
    skipped.update(shard.pop("skipped"))
  if not labels.size:
    raise UserError(f"{source.name}, split {split!r}: found 0 images{reasons(skipped)}, expected at least one")
  np.save(work / "labels.npy", labels, allow_pickle=False)
  record = content | {"num_images": labels.size, "skipped": dict(sorted(skipped.items())), "shards": shards}
  record["labels"] = hashlib.sha256(labels.tobytes()).hexdigest()
  (work / FILE).write_text(json.dumps(record, indent=1) + "\n")
  for shard in range(len(shards)):
    (work / f"{shard:05d}.json").unlink()
  os.rename(work, path)
  changed = f", {converted:,} converted to PNG" if converted else ""
  print(f"data: {path}: prepared {labels.size:,} images{changed}{reasons(skipped)}", flush=True)


def _write_shard(about: pathlib.Path, records: Iterator, content: dict, notes: Notes | None) -> dict[str, Any]:
  """Write a shard and, once it is whole, its record."""
  from array_record.python.array_record_module import ArrayRecordWriter

  image_field, label_field = content["fields"]
  numbers, noted = numbered(content["classes"], "label_field") if label_field else {}, []
  file, digest = about.with_suffix(".array_record"), hashlib.sha256()
  found = {"records": 0, "images": 0, "converted": 0, "labels": [], "skipped": Counter()}
  writer = ArrayRecordWriter(str(file), "group_size:1")
  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
    while some := list(itertools.islice(records, _AT_ONCE)):
      images = [_bytes(record, image_field, where, content.get("folder", "")) for where, record in some]
      usable = threads.map(lambda data: data if isinstance(data, Skip) else checked(data), images)
      for (where, record), kept in zip(some, usable):
        found["records"] += 1
        if isinstance(kept, Skip):
          found["skipped"][kept.reason] += 1
          continue
        data, converted = kept
        note = notes.of(record, where) if notes else {}
        if isinstance(note, Skip):
          found["skipped"][note.reason] += 1
          continue
        noted.append(note)
        label = str(value(record, label_field, where)) if label_field else None
        found["labels"].append(int(number_of(label, numbers, label_field, where)) if label_field else 0)
        found["images"] += 1
        found["converted"] += converted
        writer.write(data)
        _absorb(digest, data)
  writer.close()
  found |= {"bytes": file.stat().st_size, "content": digest.hexdigest()}
  if notes and noted:
    arrays = {name: np.concatenate([note[name] for note in noted]) for name in noted[0]}
    ragged = {f"{name}_per_image": np.array([len(note[name]) for note in noted]) for name in noted[0]}
    np.savez(about.with_suffix(".npz"), **arrays, **ragged)
    found["notes"] = hashlib.sha256(about.with_suffix(".npz").read_bytes()).hexdigest()
  aside = about.with_suffix(".tmp")
  aside.write_text(json.dumps(found))
  os.replace(aside, about)
  return json.loads(about.read_text())


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


def _absorb(digest, data: bytes) -> None:
  digest.update(len(data).to_bytes(8, "little"))
  digest.update(data)


def _remedy(path) -> str:
  return f"delete {path} and it is made again"


@dataclasses.dataclass(frozen=True)
class _Shard:
  records: int
  images: int
  converted: int
  bytes: int
  content: str
  notes: str = ""


@dataclasses.dataclass(frozen=True)
class _Record:
  """The additions of preparation to a record; see `records.read`."""

  num_images: int
  skipped: dict[str, int]
  shards: list[_Shard]
  labels: str  # SHA-256 of the values


def _open(path: pathlib.Path, name: str, asked: dict[str, Any], verify: Verify) -> ImageStore:
  record = prepared.read(_Record, str(path), FILE, asked, _remedy(path))
  shards = record.shards
  labels = _labels(path, record)
  sizes = tuple(shard.images for shard in shards)
  files = tuple(str(path / f"{number:05d}.array_record") for number in range(len(shards)))
  whole = verify == "full" or (verify == "auto" and sum(shard.bytes for shard in shards) <= _READ_WHOLE)
  for file, shard in zip(files, shards):
    found = os.path.getsize(file) if os.path.isfile(file) else "no such file"
    if found != shard.bytes:
      raise UserError(f"{file}: found {found} bytes, expected {shard.bytes}; {_remedy(path)}")
  content = {"shards": [shard.content for shard in shards], "labels": record.labels, "classes": asked["classes"]}
  content |= {"notes": [shard.notes or None for shard in shards]} if "notes" in asked else {}
  fingerprint = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
  classes, notes = tuple(asked["classes"]), _notes(path, shards) if "notes" in asked else {}
  store = ImageStore(str(path), name, classes, labels, files, sizes, record.skipped, fingerprint, notes)
  if whole:
    _verify(store, shards)
  told = "contents verified" if whole else "sizes verified"
  of = f" of {len(classes)} classes" if classes else ""
  print(f"data: {path}: {len(labels):,} images{of}{reasons(store.skipped)}; {told}")
  return store


def _labels(path: pathlib.Path, record: _Record) -> np.ndarray:
  """Read the labels, int32 [N], and verify their number and checksum; UserError if they differ from the record's."""
  sizes, labels, found = [shard.images for shard in record.shards], None, ranges.at(str(path)).read("labels.npy")
  with contextlib.suppress(ValueError, EOFError):
    labels = np.load(io.BytesIO(found or b""), allow_pickle=False)
  sound = labels is not None and labels.dtype == np.int32 and labels.shape == (record.num_images,) == (sum(sizes),)
  if not sound or hashlib.sha256(labels.tobytes()).hexdigest() != record.labels:
    raise UserError(f"{path / 'labels.npy'}: found other labels than {FILE} states; {_remedy(path)}")
  return labels


def _notes(path: pathlib.Path, shards: list[_Shard]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Read the notes of all shards and verify their checksums; UserError if one differs."""
  parts: dict[str, list] = {}
  for number, shard in enumerate(shards):
    if not shard.notes:  # none of its images could be used
      continue
    file = path / f"{number:05d}.npz"
    data = ranges.at(str(path)).read(file.name) or b""
    if hashlib.sha256(data).hexdigest() != shard.notes:
      raise UserError(f"{file}: found other contents than {FILE} states; {_remedy(path)}")
    with np.load(io.BytesIO(data), allow_pickle=False) as held:
      for name in held:
        parts.setdefault(name, []).append(held[name])
  whole = {name: np.concatenate(arrays) for name, arrays in parts.items()}
  return {n: (whole[n], whole[f"{n}_per_image"]) for n in whole if not n.endswith("_per_image")}


def _verify(store: ImageStore, shards: list[_Shard]) -> None:
  first = 0
  for file, shard in zip(store.files, shards):
    digest = hashlib.sha256()
    for start in range(first, first + shard.images, _AT_ONCE):
      for data in store.read(np.arange(start, min(start + _AT_ONCE, first + shard.images))):
        _absorb(digest, data)
    if digest.hexdigest() != shard.content:
      raise UserError(f"{file}: found other contents than {FILE} states; {_remedy(store.path)}")
    first += shard.images
