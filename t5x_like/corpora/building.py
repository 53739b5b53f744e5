"""Building of a token store in parts: read, clean, tokenise, write shards; any part anywhere, at any time.

A source divides a split into parts (runs of files). A part's shards depend only on the job and the part, so any number
of processes or machines may build parts in any order. Each shard is written to a temporary file, renamed, and recorded
in `<progress>/parts/<number>` with its checksums and the position reached in the part. Rebuilding a part keeps the
recorded shards whose files are intact and continues after them. `publish` joins the parts into a store from their
records alone, without reading the shards. The files in `<progress>` have checksums too; a damaged file counts as
missing.
"""

import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from t5x_like import vocabularies
from t5x_like.corpora import duplicates, progress_files
from t5x_like.corpora.job import Batch, Job, Tokenised, batches, documents_of, parts_of, tokenise, vocabulary_of
from t5x_like.errors import UserError, one_line
from t5x_like.files.local import synced
from t5x_like.files.places import Place, Remote, is_remote, place
from t5x_like.store import manifest as manifests
from t5x_like.store import token_writer
from t5x_like.store.shards import Shard, files_of
from t5x_like.store.tokens import TOKENS
from t5x_like.store.writer import described as store_described
from t5x_like.store.writer import flush_small, write_shard

_DIRECTORIES = files_of(TOKENS)
_COUNTS = ("skipped", "removed", "lengths")


def make_part(
  job: Job, number: int, spread: Callable[[Iterator[Batch]], Iterator[Tokenised]] | None = None
) -> dict[str, Any]:
  """Build the shards of one part, keep intact shards, and return the part's record.

  Args:
    job: the job.
    number: number of the part.
    spread: maps batches to their tokens, in order, in other processes; None tokenises here.
  """
  with progress_files.writing(job.progress):
    return _make_part(job, number, spread)


def _make_part(
  job: Job, number: int, spread: Callable[[Iterator[Batch]], Iterator[Tokenised]] | None
) -> dict[str, Any]:
  record_path = place(job.progress) / "parts" / f"{number:06d}"
  record = _resumed(job, record_path)
  if record["done"]:
    return record
  documents = itertools.islice(documents_of(job).read(job.split, parts_of(job)[number]), record["read"], None)
  stream = batches(documents, duplicates.marks(job, number), record["read"])
  vocabulary = vocabulary_of(job)
  held = _Held(job, vocabulary)
  pulse = progress_files.Pulse(place(job.progress) / "now" / "parts" / f"{number:06d}")
  tokens = sum(shard["values"][TOKENS] for shard in record["shards"])
  for made in spread(stream) if spread else (tokenise(job, batch) for batch in stream):
    held.add(made)
    tokens += made.tokens_N.size
    pulse(tokens)
    while held.tokens >= job.shard_tokens:
      _write(job, number, record, *held.take(job.shard_tokens))
      _save(record_path, record)
  if held.documents:
    _write(job, number, record, *held.take(None))
  record["done"] = True
  _save(record_path, record)
  pulse(tokens, done=True)
  return record


class _Held:
  """Tokenised documents that no shard contains yet."""

  def __init__(self, job: Job, vocabulary: vocabularies.Vocabulary):
    self._append_eos, self._vocabulary = job.append_eos, vocabulary
    self._ids, self._lengths = np.zeros(0, token_writer.array(vocabulary).dtype), np.zeros(0, np.int64)
    self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
    self._reasons: list[str | None] = []
    self._removed: list[Counter | None] = []
    self.tokens = 0

  @property
  def documents(self) -> int:
    return len(self._reasons)

  def add(self, made: Tokenised) -> None:
    stored = token_writer.stored(self._vocabulary, self._append_eos, made.tokens_N, made.lengths_D, "vocabulary")
    self._waiting.append(stored)
    self._reasons += made.reasons
    self._removed += made.removed
    self.tokens += stored[0].size

  def take(self, tokens: int | None) -> tuple[np.ndarray, np.ndarray, list[str | None], list[Counter | None]]:
    """Take a shard of at least `tokens`, or everything held: (ids, lengths, reasons, removed counts)."""
    self._ids = np.concatenate([self._ids, *(ids for ids, _ in self._waiting)])
    self._lengths = np.concatenate([self._lengths, *(lengths for _, lengths in self._waiting)])
    self._waiting = []
    ends = np.cumsum(self._lengths)
    documents = ends.size if tokens is None else min(int(np.searchsorted(ends, tokens)) + 1, ends.size)
    cut = int(ends[documents - 1])
    taken = self._ids[:cut], self._lengths[:documents], self._reasons[:documents], self._removed[:documents]
    self._ids, self._lengths = self._ids[cut:], self._lengths[documents:]
    self._reasons, self._removed = self._reasons[documents:], self._removed[documents:]
    self.tokens -= cut
    return taken


def _write(
  job: Job,
  number: int,
  record: dict,
  ids: np.ndarray,
  lengths_D: np.ndarray,
  reasons: list[str | None],
  removed: list[Counter | None],
) -> None:
  """Write one shard, unless it is empty, and add it to the record."""
  record["read"] += len(reasons)
  skipped = Counter(reason for reason in reasons if reason)
  lengths_D = lengths_D[lengths_D > 0]
  histogram = Counter((np.frexp(lengths_D)[1] - 1).tolist())  # floor of log2
  total: Counter[str] = Counter()
  for counts in filter(None, removed):
    total.update(counts)
  for key, counts in (
    ("skipped", skipped),
    ("removed", total),
    ("lengths", {str(power): n for power, n in histogram.items()}),
  ):
    record[key] = dict(sorted((Counter(record[key]) + Counter(counts)).items()))
  if not ids.size:
    return
  name = f"{number:06d}{len(record['shards']):06d}"
  work, local = place(job.work), not is_remote(job.work)
  try:
    aside = pathlib.Path(tempfile.mkdtemp(prefix=".", dir=job.progress if local else None))
    try:
      shard = write_shard(aside, name, [token_writer.array(vocabulary_of(job))], {TOKENS: (ids, lengths_D)})
      for array in _DIRECTORIES:
        target = work / array / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if local:
          os.replace(aside / array / name, target)
        else:
          target.write_bytes((aside / array / name).read_bytes())
    finally:
      shutil.rmtree(aside, ignore_errors=True)
  except OSError as error:
    raise UserError(
      f"{work}: cannot be written ({one_line(error)}): free some space or choose another output"
    ) from error
  record["shards"].append(
    {**dataclasses.asdict(shard), "read": record["read"], **{key: dict(record[key]) for key in _COUNTS}}
  )


def _resumed(job: Job, path: Place) -> dict[str, Any]:
  """Return the record of a part up to the first damaged shard; a fresh record if this job has none."""
  fresh = {"key": job.key, "done": False, "read": 0, "shards": [], "skipped": {}, "removed": {}, "lengths": {}}
  content = progress_files.load(path)
  found = json.loads(content) if content else fresh
  if found["key"] != job.key:
    return fresh
  kept = list(itertools.takewhile(_intact(job, found["shards"]), found["shards"]))
  if len(kept) == len(found["shards"]):
    return found
  last = kept[-1] if kept else fresh
  return {**fresh, "shards": kept, **{key: last[key] for key in ("read", *_COUNTS)}}


def _intact(job: Job, shards: list[dict[str, Any]]) -> Callable[[dict[str, Any]], bool]:
  """Return a test of whether a shard is as written: by its contents or, at an address, where files are whole or
  absent, by its existence."""
  work = place(job.work)
  if not isinstance(work, Remote):
    return lambda shard: all(
      _sha256(work / array / shard["name"]) == sha256 for array, sha256 in shard["sha256"].items()
    )
  part = shards[0]["name"][:6] if shards else ""
  found = {array: (work / array).sizes(part) if shards else {} for array in _DIRECTORIES}

  def there(shard: dict[str, Any]) -> bool:
    itemsize = np.dtype(token_writer.array(vocabulary_of(job)).dtype).itemsize
    expected = shard["values"][TOKENS] * itemsize, shard["items"] * 8
    return all(found[one].get(shard["name"], -1) in (None, size) for one, size in zip(_DIRECTORIES, expected))

  return there


def _sha256(path: Place) -> str | None:
  try:
    with path.open("rb") as stream:
      return hashlib.file_digest(stream, "sha256").hexdigest()
  except OSError:
    return None


def record_of(job: Job, number: int) -> dict[str, Any]:
  """Return the record of a finished part; raise UserError if it is missing."""
  path = place(job.progress) / "parts" / f"{number:06d}"
  record = json.loads(progress_files.load(path) or "{}")
  if not record.get("done") or record["key"] != job.key:
    raise UserError(f"{path}: missing or damaged; run the same command again")
  return record


def _save(path: Place, record: dict[str, Any]) -> None:
  progress_files.save(path, json.dumps(record).encode())


def described(
  job: Job, records: list[dict[str, Any]], *, name: str, split: str, source: dict[str, Any]
) -> dict[str, bytes]:
  """Return the manifest and tables of the store of all parts, contents by file; `source` gains counts by reason and a
  histogram of lengths."""
  totals = {key: sum((Counter(record[key]) for record in records), Counter()) for key in _COUNTS}
  shards = [
    Shard(one["name"], one["items"], one["values"], one["sha256"]) for record in records for one in record["shards"]
  ]
  if not shards:
    reasons = ", ".join(f"{n} skipped: {reason}" for reason, n in sorted(totals["skipped"].items())) or "none skipped"
    raise UserError(
      f"{job.work}: split {split!r} has no documents with any tokens ({reasons}), expected at least one: "
      "check the source, or for a split by validation_fraction raise the fraction"
    )
  powers = sorted((int(power), n) for power, n in totals["lengths"].items())
  return store_described(
    shards,
    name=name,
    split=split,
    arrays=[token_writer.array(vocabulary_of(job))],
    facts=token_writer.facts(vocabulary_of(job), job.append_eos),
    skipped=totals["skipped"],
    source={
      **source,
      "counts": {
        "removed_within_documents": dict(sorted(totals["removed"].items())),
        "document_lengths": {f"{2**p}-{2 ** (p + 1) - 1}": n for p, n in powers},
      },
    },
  )


def publish(job: Job, path: str, made: dict[str, bytes]) -> None:
  """Turn the work directory into the store: write vocabulary, tables and manifest, flush, rename, delete progress."""
  work = place(job.work)
  vocabulary_of(job).save(work / manifests.VOCABULARY)
  for file, content in made.items():
    (work / file).write_bytes(content)
  if not is_remote(job.work):
    flush_small(pathlib.Path(job.work))
    os.rename(job.work, path)
    synced(pathlib.Path(path).parent)
  place(job.progress).rmtree(missing_ok=True)
