"""Build a store in parts: read items, make their arrays and write shards, in any order.

A part's shards depend only on the job and the part, so any number of processes or machines may
build parts in any order. Each shard is written to a temporary file, renamed, and recorded in
`<progress>/parts/<number>` with its checksums and the position reached in the part. Rebuilding a
part keeps the recorded shards whose files are intact and continues after them. `publish` joins the
parts into a store from their records alone, without reading the shards. The files in `<progress>`
have checksums too; a damaged file counts as missing.
"""

import dataclasses
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from t5x_like.corpora import duplicates, progress_files
from t5x_like.corpora.job import ItemBatch, Job, StoredBatch, batch_items, describe_skipped
from t5x_like.errors import UserError
from t5x_like.files.paths import AnyPath
from t5x_like.files.remote import RemotePath
from t5x_like.store import writer
from t5x_like.store.manifest import Array
from t5x_like.store.shards import Shard, array_directories

# The keys of a record with counts of skipped items, amounts removed from items, and items' lengths.
_COUNTS = ("skipped", "removed", "lengths")


def make_part(
  job: Job,
  number: int,
  make_batches: Callable[[Job, Iterable[ItemBatch]], Iterator[StoredBatch]] | None = None,
) -> None:
  """Build the shards of one part, but keep the intact shards of an interrupted run.

  Args:
    job: the job.
    number: number of the part.
    make_batches: function that makes batches, in order, in other processes; None makes them in
      this process.
  """
  with progress_files.mark_writing(job.progress):
    record_path = job.progress / "parts" / f"{number:06d}"
    record = _load_or_begin_record(job, number, record_path)
    if not record["done"]:
      _finish_part(job, number, record, record_path, make_batches)


def _finish_part(
  job: Job, number: int, record: dict[str, Any], record_path: AnyPath, make_batches
) -> None:
  """Write the shards of a part that its record lacks, and record each of them."""
  unit = job.kind.unit
  items = itertools.islice(job.kind.read(number), record["read"], None)
  batches = batch_items(job.kind, items, duplicates.load_marks(job, number), record["read"])
  if make_batches:
    stored_batches = make_batches(job, batches)
  else:
    stored_batches = map(job.kind.make, batches)
  shard_size = None if job.kind.whole_batches else job.kind.shard_values
  pending = _PendingItems(unit)
  pulse = progress_files.Pulse(job.progress / "now" / "parts" / f"{number:06d}")
  num_values = sum(shard["values"][unit] for shard in record["shards"])
  for batch in stored_batches:
    num_values += pending.add(batch)
    pulse(num_values)
    while pending.num_values >= job.kind.shard_values:
      _write_shard(job, number, record, pending.take(shard_size))
      _save_record(record_path, record)
  if pending.reasons:
    _write_shard(job, number, record, pending.take(None))
  record["done"] = True
  _save_record(record_path, record)
  pulse(num_values, done=True)


class _PendingItems:
  """Items that no shard contains yet."""

  def __init__(self, unit: str):
    self._unit = unit
    self._batches: list[StoredBatch] = []
    self.reasons: list[str | None] = []
    self.num_values = 0

  def add(self, batch: StoredBatch) -> int:
    """Add a batch and return its number of values."""
    self._batches.append(batch)
    self.reasons += batch.reasons
    num_values = len(batch.arrays[self._unit][0]) if batch.arrays else 0
    self.num_values += num_values
    return num_values

  def take(self, min_values: int | None) -> StoredBatch:
    """Remove and return the first items: at least `min_values` of their values, or all items."""
    arrays = self._join_arrays()
    removed = [amounts for batch in self._batches for amounts in batch.removed]
    num_items = len(self.reasons)
    if min_values is not None:
      ends_D = np.cumsum(arrays[self._unit][1])
      num_items = min(int(np.searchsorted(ends_D, min_values)) + 1, num_items)
    first_arrays = {}
    later_arrays = {}
    for name, (values, lengths_D) in arrays.items():
      cut = int(lengths_D[:num_items].sum())
      first_arrays[name] = values[:cut], lengths_D[:num_items]
      later_arrays[name] = values[cut:], lengths_D[num_items:]
    first_items = StoredBatch(first_arrays, self.reasons[:num_items], removed[:num_items])
    self.reasons = self.reasons[num_items:]
    self._batches = [StoredBatch(later_arrays, self.reasons, removed[num_items:])]
    self.num_values = len(later_arrays[self._unit][0]) if later_arrays else 0
    return first_items

  def _join_arrays(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the values of all pending items, and the number of values of each item, by array."""
    batches_with_arrays = [batch for batch in self._batches if batch.arrays]
    if not batches_with_arrays:
      return {}
    arrays = {}
    for name in batches_with_arrays[0].arrays:
      values = [batch.arrays[name][0] for batch in batches_with_arrays]
      lengths = []
      for batch in self._batches:
        lengths.append(batch.arrays[name][1] if batch.arrays else [0] * len(batch.reasons))
      arrays[name] = np.concatenate(values), np.concatenate(lengths).astype(np.int64)
    return arrays


def _write_shard(job: Job, number: int, record: dict[str, Any], batch: StoredBatch) -> None:
  """Write one shard, unless it is empty, and add it to the record."""
  record["read"] += len(batch.reasons)
  is_stored_D = np.array([reason is None for reason in batch.reasons], bool)
  arrays = {}
  for name, (values, lengths_D) in batch.arrays.items():
    arrays[name] = values, lengths_D[is_stored_D]
  unit_lengths = arrays[job.kind.unit][1] if arrays else []
  log2_lengths = np.frexp(unit_lengths)[1] - 1  # rounded down
  _add_counts(record, batch, log2_lengths)
  if not log2_lengths.size:
    return
  if not record["arrays"]:  # The first shard determines the types.
    for name, (values, _) in arrays.items():
      array = Array(name, values.dtype.name, *values.shape[1:])
      record["arrays"].append(dataclasses.asdict(array))
  specs = [Array(**array) for array in record["arrays"]]
  shard_name = f"{number:06d}{len(record['shards']):06d}"
  shard = writer.write_shard(job.work, shard_name, specs, arrays)
  counts = {key: dict(record[key]) for key in _COUNTS}
  record["shards"].append({"read": record["read"], **counts, **dataclasses.asdict(shard)})


def _add_counts(record: dict[str, Any], batch: StoredBatch, log2_lengths: np.ndarray) -> None:
  """Add a batch's skipped items, removed amounts and lengths to the counts of a record."""
  removed: Counter[str] = Counter()
  for amounts in batch.removed:
    if amounts:
      removed.update(amounts)
  batch_counts = {
    "skipped": Counter(filter(None, batch.reasons)),
    "removed": removed,
    "lengths": Counter(map(str, log2_lengths.tolist())),
  }
  for key, counts in batch_counts.items():
    total = Counter(record[key]) + counts
    record[key] = dict(sorted(total.items()))


def _load_or_begin_record(job: Job, number: int, path: AnyPath) -> dict[str, Any]:
  """Return the record of a part up to the first damaged shard, or a new record."""
  new_record = {
    "key": job.part_key(number),
    "done": False,
    "read": 0,
    "arrays": [],
    "shards": [],
    **{key: {} for key in _COUNTS},
  }
  content = progress_files.load(path)
  if not content:
    return new_record
  record = json.loads(content)
  if record["key"] != new_record["key"]:
    print(f"{path}: the source's files have changed since; building the part again", flush=True)
    _remove_part(job, number, record)
    return new_record
  intact = list(itertools.takewhile(_shard_check(job, record), record["shards"]))
  if len(intact) == len(record["shards"]):
    return record
  last_intact = intact[-1] if intact else new_record
  counts = {key: last_intact[key] for key in ("read", *_COUNTS)}
  return {**record, "done": False, "shards": intact, **counts}


def _remove_part(job: Job, number: int, record: dict[str, Any]) -> None:
  """Delete the shards and the progress of a part whose files have changed."""
  for array in record["arrays"]:
    for directory in array_directories(array["name"]):
      # One more shard may have been written but not recorded.
      for shard in range(len(record["shards"]) + 1):
        (job.work / directory / f"{number:06d}{shard:06d}").unlink(missing_ok=True)
  (job.progress / "now" / "parts" / f"{number:06d}").unlink(missing_ok=True)


def remove_surplus(job: Job) -> None:
  """Delete the parts of an interrupted run beyond the number of parts that the source has now."""
  for name in (job.progress / "parts").names():
    if name.isdigit() and int(name) >= job.kind.num_parts:
      path = job.progress / "parts" / name
      content = progress_files.load(path)
      record = json.loads(content) if content else {"arrays": [], "shards": []}
      _remove_part(job, int(name), record)
      path.unlink()


def _shard_check(job: Job, record: dict[str, Any]) -> Callable[[dict[str, Any]], bool]:
  """Return a function that checks whether a recorded shard is intact.

  Contents of local files are compared. At a URL files are whole or absent, so sizes suffice.
  """
  work = job.work
  if isinstance(work, RemotePath):
    return _shard_size_check(work, record)

  def has_checksums(shard: dict[str, Any]) -> bool:
    return all(
      _sha256(work / directory / shard["name"]) == sha256
      for directory, sha256 in shard["sha256"].items()
    )

  return has_checksums


def _shard_size_check(work: RemotePath, record: dict[str, Any]) -> Callable[[dict[str, Any]], bool]:
  """Return a function that checks the sizes of a recorded shard's files; see `_shard_check`."""
  arrays = [Array(**array) for array in record["arrays"]]
  part = record["shards"][0]["name"][:6] if record["shards"] else ""
  sizes = {}
  for array in arrays:
    for directory in array_directories(array.name):
      sizes[directory] = (work / directory).sizes(part)

  def has_sizes(shard: dict[str, Any]) -> bool:
    expected = {}
    for array in arrays:
      values, ends = array_directories(array.name)
      value_bytes = np.dtype(array.dtype).itemsize * array.width
      expected[values] = shard["values"][array.name] * value_bytes
      expected[ends] = shard["items"] * 8
    for directory, expected_size in expected.items():
      size = sizes[directory].get(shard["name"], -1)
      if size is not None and size != expected_size:  # some servers do not tell sizes
        return False
    return True

  return has_sizes


def _sha256(path: AnyPath) -> str | None:
  """Return the SHA-256 of a file, or None if it cannot be read."""
  try:
    with path.open("rb") as stream:
      return hashlib.file_digest(stream, "sha256").hexdigest()
  except OSError:
    return None


def load_record(job: Job, number: int) -> dict[str, Any]:
  """Return the record of a finished part; raise UserError if it is missing."""
  path = job.progress / "parts" / f"{number:06d}"
  record = json.loads(progress_files.load(path) or "{}")
  if not record.get("done") or record["key"] != job.part_key(number):
    raise UserError(f"{path}: missing or damaged; run the same command again")
  return record


def _save_record(path: AnyPath, record: dict[str, Any]) -> None:
  progress_files.save(path, json.dumps(record).encode())


def build_contents(job: Job, records: list[dict[str, Any]]) -> dict[str, bytes]:
  """Return the manifest and tables of the store of all parts: contents by file."""
  totals = {}
  for key in _COUNTS:
    totals[key] = sum((Counter(record[key]) for record in records), Counter())
  shard_fields = [field.name for field in dataclasses.fields(Shard)]
  shards = []
  for record in records:
    for shard in record["shards"]:
      shards.append(Shard(**{field: shard[field] for field in shard_fields}))
  if not shards:
    skipped = describe_skipped(totals["skipped"])
    raise UserError(
      f"{job.name}, split {job.split!r}: found 0 {job.kind.items}{skipped}, "
      f"expected at least one: {job.kind.advice}"
    )
  source = job.source
  if job.kind.counted:
    lengths = {}
    for power, count in sorted((int(power), count) for power, count in totals["lengths"].items()):
      lengths[f"{2**power}-{2 ** (power + 1) - 1}"] = count
    removed = dict(sorted(totals["removed"].items()))
    counts = {"removed_within_documents": removed, "document_lengths": lengths}
    source = {**source, "counts": counts}
  arrays = next(record["arrays"] for record in records if record["shards"])
  return writer.build_metadata(
    shards,
    name=job.name,
    split=job.split,
    arrays=[Array(**array) for array in arrays],
    facts=job.kind.store_facts,
    skipped=totals["skipped"],
    source=source,
  )


def publish(job: Job, contents: dict[str, bytes]) -> None:
  """Turn the work directory into the store and delete the progress directory.

  Args:
    job: the job, whose parts are all built.
    contents: manifest and tables, the result of `build_contents`.
  """
  writer.publish(job.work, job.path, contents, job.kind.vocabulary)
  job.progress.rmtree(missing_ok=True)
