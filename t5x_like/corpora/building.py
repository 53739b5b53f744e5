"""Building of a store in parts: read items, make their arrays, write shards; any part anywhere, at
any time.

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

_COUNTS = ("skipped", "removed", "lengths")


def make_part(
  job: Job,
  number: int,
  spread: Callable[[Job, Iterable[ItemBatch]], Iterator[StoredBatch]] | None = None,
) -> None:
  """Build the shards of one part and keep intact ones.

  Args:
    job: the job.
    number: number of the part.
    spread: makes batches, in order, in other processes; None makes them here.
  """
  with progress_files.mark_writing(job.progress):
    record_path = job.progress / "parts" / f"{number:06d}"
    record = _resumed(job, number, record_path)
    if not record["done"]:
      _make_part(job, number, record, record_path, spread)


def _make_part(job: Job, number: int, record: dict[str, Any], record_path: AnyPath, spread) -> None:
  items = itertools.islice(job.kind.read(number), record["read"], None)
  stream = batch_items(job.kind, items, duplicates.load_marks(job, number), record["read"])
  held = _Held(job.kind.unit)
  pulse = progress_files.Pulse(job.progress / "now" / "parts" / f"{number:06d}")
  values = sum(shard["values"][job.kind.unit] for shard in record["shards"])
  for made in spread(job, stream) if spread else map(job.kind.make, stream):
    values += held.add(made)
    pulse(values)
    while held.values >= job.kind.shard_values:
      _write(
        job, number, record, held.take(None if job.kind.whole_batches else job.kind.shard_values)
      )
      _save(record_path, record)
  if held.reasons:
    _write(job, number, record, held.take(None))
  record["done"] = True
  _save(record_path, record)
  pulse(values, done=True)


class _Held:
  """Items that no shard contains yet."""

  def __init__(self, unit: str):
    self._unit = unit
    self._waiting = []
    self.reasons: list[str | None] = []
    self.values = 0

  def add(self, made: StoredBatch) -> int:
    """Add a batch and return its number of values."""
    self._waiting.append(made)
    self.reasons += made.reasons
    added = len(made.arrays[self._unit][0]) if made.arrays else 0
    self.values += added
    return added

  def take(self, values: int | None) -> StoredBatch:
    """Take a shard of at least this many values, or everything held."""
    joined = {}
    for name in next((made.arrays for made in self._waiting if made.arrays), ()):
      lengths = [
        made.arrays[name][1] if made.arrays else [0] * len(made.reasons) for made in self._waiting
      ]
      parts = [made.arrays[name][0] for made in self._waiting if made.arrays]
      joined[name] = np.concatenate(parts), np.concatenate(lengths).astype(np.int64)
    removed = [amounts for made in self._waiting for amounts in made.removed]
    items = len(self.reasons)
    if values is not None:
      items = min(int(np.searchsorted(np.cumsum(joined[self._unit][1]), values)) + 1, items)
    taken = {}
    left = {}
    for name, (array, lengths_D) in joined.items():
      cut = int(lengths_D[:items].sum())
      taken[name], left[name] = (array[:cut], lengths_D[:items]), (array[cut:], lengths_D[items:])
    made = StoredBatch(taken, self.reasons[:items], removed[:items])
    self.reasons = self.reasons[items:]
    self._waiting = [StoredBatch(left, self.reasons, removed[items:])]
    self.values = len(left[self._unit][0]) if left else 0
    return made


def _write(job: Job, number: int, record: dict, made: StoredBatch) -> None:
  """Write one shard, unless it is empty, and add it to the record."""
  record["read"] += len(made.reasons)
  kept_D = np.array([reason is None for reason in made.reasons], bool)
  arrays = {name: (values, lengths_D[kept_D]) for name, (values, lengths_D) in made.arrays.items()}
  powers = np.frexp(arrays[job.kind.unit][1] if arrays else [])[1] - 1  # floor of log2
  removed: Counter[str] = Counter()
  for amounts in filter(None, made.removed):
    removed.update(amounts)
  for key, counts in (
    ("skipped", Counter(filter(None, made.reasons))),
    ("removed", removed),
    ("lengths", Counter(map(str, powers.tolist()))),
  ):
    record[key] = dict(sorted((Counter(record[key]) + counts).items()))
  if not powers.size:
    return
  if not record["arrays"]:  # the first shard decides their types
    found = [
      Array(name, values.dtype.name, *values.shape[1:]) for name, (values, _) in arrays.items()
    ]
    record["arrays"] = list(map(dataclasses.asdict, found))
  described = [Array(**array) for array in record["arrays"]]
  name = f"{number:06d}{len(record['shards']):06d}"
  shard = writer.write_shard(job.work, name, described, arrays)
  counts = {key: dict(record[key]) for key in _COUNTS}
  record["shards"].append({"read": record["read"], **counts, **dataclasses.asdict(shard)})


def _resumed(job: Job, number: int, path: AnyPath) -> dict[str, Any]:
  """Return the record of a part up to the first damaged shard; a fresh record if this job has
  none."""
  fresh = {"key": job.part_key(number), "done": False, "read": 0, "arrays": [], "shards": []}
  fresh |= {key: {} for key in _COUNTS}
  content = progress_files.load(path)
  found = json.loads(content) if content else fresh
  if found["key"] != fresh["key"]:
    print(f"{path}: of files that changed since; made anew", flush=True)
    _remove(job, number, found)
    return fresh
  kept = list(itertools.takewhile(_intact(job, found), found["shards"]))
  if len(kept) == len(found["shards"]):
    return found
  last = kept[-1] if kept else fresh
  return {**found, "done": False, "shards": kept, **{key: last[key] for key in ("read", *_COUNTS)}}


def _remove(job: Job, number: int, record: dict[str, Any]) -> None:
  """Delete the shards of a part as it was before its files changed, and its progress."""
  for directory in [
    directory for array in record["arrays"] for directory in array_directories(array["name"])
  ]:
    # the last may have been written and not recorded
    for shard in range(len(record["shards"]) + 1):
      (job.work / directory / f"{number:06d}{shard:06d}").unlink(missing_ok=True)
  (job.progress / "now" / "parts" / f"{number:06d}").unlink(missing_ok=True)


def remove_surplus(job: Job) -> None:
  """Delete the parts of an interrupted run beyond the number of parts that the source has now."""
  for name in (job.progress / "parts").names():
    if name.isdigit() and int(name) >= job.kind.num_parts:
      path = job.progress / "parts" / name
      _remove(
        job, int(name), json.loads(progress_files.load(path) or '{"arrays": [], "shards": []}')
      )
      path.unlink()


def _intact(job: Job, record: dict[str, Any]) -> Callable[[dict[str, Any]], bool]:
  """Return a test of whether a shard is as written: by its contents or, at an address, where files
  are whole or absent, by its existence."""
  work = job.work
  if not isinstance(work, RemotePath):
    return lambda shard: all(
      _sha256(work / array / shard["name"]) == sha256 for array, sha256 in shard["sha256"].items()
    )
  arrays = [Array(**array) for array in record["arrays"]]
  part = record["shards"][0]["name"][:6] if record["shards"] else ""
  found = {
    directory: (work / directory).sizes(part)
    for array in arrays
    for directory in array_directories(array.name)
  }

  def there(shard: dict[str, Any]) -> bool:
    expected = {}
    for array in arrays:
      values, ends = array_directories(array.name)
      value_bytes = np.dtype(array.dtype).itemsize * array.width
      expected |= {values: shard["values"][array.name] * value_bytes, ends: shard["items"] * 8}
    return all(
      found[directory].get(shard["name"], -1) in (None, size)
      for directory, size in expected.items()
    )

  return there


def _sha256(path: AnyPath) -> str | None:
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


def _save(path: AnyPath, record: dict[str, Any]) -> None:
  progress_files.save(path, json.dumps(record).encode())


def build_contents(job: Job, records: list[dict[str, Any]]) -> dict[str, bytes]:
  """Return the manifest and tables of the store of all parts: contents by file."""
  totals = {key: sum((Counter(record[key]) for record in records), Counter()) for key in _COUNTS}
  fields = [field.name for field in dataclasses.fields(Shard)]
  shards = [
    Shard(**{field: one[field] for field in fields})
    for record in records
    for one in record["shards"]
  ]
  if not shards:
    raise UserError(
      f"{job.name}, split {job.split!r}: found 0 {job.kind.items}{describe_skipped(totals['skipped'])}, "
      f"expected at least one: {job.kind.advice}"
    )
  source = job.source
  if job.kind.counted:
    powers = sorted((int(power), n) for power, n in totals["lengths"].items())
    lengths = {f"{2**power}-{2 ** (power + 1) - 1}": n for power, n in powers}
    removed = dict(sorted(totals["removed"].items()))
    source = {
      **source,
      "counts": {"removed_within_documents": removed, "document_lengths": lengths},
    }
  return writer.build_metadata(
    shards,
    name=job.name,
    split=job.split,
    arrays=[
      Array(**array) for array in next(record["arrays"] for record in records if record["shards"])
    ],
    facts=job.kind.store_facts,
    skipped=totals["skipped"],
    source=source,
  )


def publish(job: Job, made: dict[str, bytes]) -> None:
  """Turn the work directory into the store: write vocabulary, tables and manifest, flush, rename,
  delete progress."""
  writer.publish(job.work, job.path, made, job.kind.vocabulary)
  job.progress.rmtree(missing_ok=True)
