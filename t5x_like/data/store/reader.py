"""A token store: one split of a corpus, tokenised once, read as random windows of one long token stream.

    <root>/<split>/manifest.json                        what is here: counts, vocabulary, checksums, fingerprint
    <root>/<split>/vocabulary/                          the vocabulary the ids belong to
    <root>/<split>/shards/00000/tokens/zarr.json, c/0   ids, uint16 or int32
    <root>/<split>/shards/00000/document_ends/...       where documents end in this shard's tokens, int64

Each array is a Zarr v3 array with one chunk, the single file `c/0`, cut by the `sharding_indexed` codec into inner
chunks of 16,384 elements that are neither compressed nor elided. The inner chunks lie in order and without gaps (the
writer proves it for every file), so the file begins with the plain little-endian array and is followed only by the
padding of the last inner chunk and the index. A local store is therefore a memory map of those files, and a remote one
(any `scheme://` TensorStore knows, such as `gs://`) is read by TensorStore, which fetches only the inner chunks needed.

Opening costs O(shards), whatever the number of tokens; shards are mapped on first touch. Checking the checksums reads
every byte once, in parallel, and is optional.
"""

import bisect
import concurrent.futures
import functools
import itertools
import os
import pathlib
import time
from typing import Literal, get_args

import numpy as np

from t5x_like.data import vocabularies
from t5x_like.data.store import files as store_files
from t5x_like.data.store import manifest as manifests
from t5x_like.data.store.files import Files
from t5x_like.data.store.manifest import REMEDY, Manifest
from t5x_like.errors import UserError, one_line

Verify = Literal["auto", "full", "size"]
FULL_VERIFY_BYTES = 2 * 2**30  # "auto" checks every byte of stores up to this size


class TokenStore:
  """An open token store; make one with `TokenStore.open`.

  Attributes:
    path: where it lies, as given.
    manifest: its checked manifest.
    verification: what `open` checked, in words.
  """

  def __init__(self, path: str, files: Files, manifest: Manifest, verification: str):
    self.path, self.manifest, self.verification = path, manifest, verification
    self._files = files
    self._ends = list(itertools.accumulate(shard.tokens for shard in manifest.shards))
    self._tokens = [None] * len(manifest.shards)
    self._document_ends = [None] * len(manifest.shards)

  @classmethod
  def open(cls, path: str | os.PathLike, verify: Verify = "auto") -> "TokenStore":
    """Opens a store.

    Args:
      path: the directory of one split, local or `scheme://`.
      verify: `size` checks that every file is there with its size; `full` also checks every checksum; `auto` is
        `full` for stores up to 2 GiB.

    Raises:
      UserError: the store is missing, its manifest is not one or contradicts itself, or a file is missing, truncated
        or (full) corrupt; the message names the file.
    """
    if verify not in get_args(Verify):
      raise UserError(f"verify: found {verify!r}, expected one of {', '.join(get_args(Verify))}")
    path = os.fspath(path)
    files = store_files.at(path)
    text = files.read(manifests.FILE)
    if text is None:
      raise UserError(_missing(path))
    manifest = manifests.parse(text, files.name(manifests.FILE))
    return cls(path, files, manifest, _verify(files, manifest, verify))

  @property
  def name(self) -> str:
    return self.manifest.name

  @property
  def num_tokens(self) -> int:
    return self.manifest.num_tokens

  @property
  def num_documents(self) -> int:
    return self.manifest.num_documents

  @functools.cached_property
  def fingerprint(self) -> str:
    return self.manifest.fingerprint

  @functools.cached_property
  def vocabulary(self) -> vocabularies.Vocabulary:
    """The vocabulary saved with the store; UserError if it is not the one the manifest names."""
    with self._files.local(manifests.VOCABULARY) as directory:
      vocabulary = vocabularies.load(str(directory))
    for key in ("fingerprint", "size", "extra_ids"):
      found, expected = getattr(vocabulary, key), getattr(self.manifest.vocabulary, key)
      if found != expected:
        raise UserError(
          f"{self._files.name(manifests.VOCABULARY)}: {key}: found {found!r}, expected {expected!r} from "
          f"{manifests.FILE}: {REMEDY}"
        )
    return vocabulary

  def windows(self, starts_B: np.ndarray, length: int) -> np.ndarray:
    """Windows of the token stream; one may cross shard boundaries.

    Args:
      starts_B: integers [B], the first token of each window, in 0..num_tokens - length.
      length: tokens in a window.

    Returns:
      int32 [B, length].

    Raises:
      ValueError: a window does not lie inside the store.
      UserError: a shard that was there when the store was opened cannot be read.
    """
    starts = np.asarray(starts_B, np.int64).tolist()
    if starts and not 0 <= min(starts) <= max(starts) <= self.num_tokens - length:
      raise ValueError(f"windows {min(starts)}..{max(starts)} + {length} outside 0..{self.num_tokens}")
    window_BW = np.empty((len(starts), length), np.int32)
    reads = []
    for row, start in enumerate(starts):
      shard, done = bisect.bisect_right(self._ends, start), 0
      while done < length:
        first = self._ends[shard] - self.manifest.shards[shard].tokens
        stop = min(start + length, self._ends[shard])
        part = self._shard(shard)[start + done - first : stop - first]
        into = window_BW[row, done : stop - start]
        if isinstance(part, np.ndarray):
          into[:] = part
        else:
          reads.append((shard, into, part.read()))
        shard, done = shard + 1, stop - start
    for shard, into, read in reads:
      try:
        into[:] = read.result()
      except Exception as error:  # TensorStore raises many types; each means that the shard could not be read
        name = self._files.name(f"shards/{self.manifest.shards[shard].name}/tokens")
        raise UserError(f"{name}: cannot be read ({one_line(error)})") from error
    return window_BW

  def document_ends(self) -> np.ndarray:
    """Where every document ends in the token stream, ascending, the last at `num_tokens`: int64 [num_documents]."""
    ends = []
    for index, shard in enumerate(self.manifest.shards):
      ends.append(self._shard_document_ends(index) + (self._ends[index] - shard.tokens))
    return np.concatenate(ends)

  def documents_at(self, places_N: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The documents that hold tokens: places in the stream [N] -> their (indices, starts, ends), each int64 [N]."""
    places = np.asarray(places_N, np.int64)
    return self._documents(places, np.searchsorted(self._ends, places, side="right"), by_place=True)

  def document_spans(self, documents_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where documents begin and end: indices [N] in 0..num_documents-1 -> (starts, ends), each int64 [N]."""
    documents = np.asarray(documents_N, np.int64)
    shards = np.searchsorted(self._first_documents, documents, side="right") - 1
    return self._documents(documents, shards, by_place=False)[1:]

  @functools.cached_property
  def _first_documents(self) -> np.ndarray:
    """The index of every shard's first document: int64 [shards]."""
    counts = [shard.documents for shard in self.manifest.shards]
    return np.cumsum([0, *counts[:-1]], dtype=np.int64)

  def _documents(self, values: np.ndarray, shards: np.ndarray, *, by_place: bool) -> tuple[np.ndarray, ...]:
    """(indices, starts, ends) of documents given by a place in them or by index, and the shard of each."""
    found = np.empty((3, values.size), np.int64)
    for shard in np.unique(shards).tolist():
      rows, ends = shards == shard, self._shard_document_ends(shard)
      first = self._ends[shard] - self.manifest.shards[shard].tokens
      first_document = self._first_documents[shard]
      inside = np.searchsorted(ends, values[rows] - first, side="right") if by_place else values[rows] - first_document
      starts = np.where(inside > 0, ends[np.maximum(inside - 1, 0)], 0)
      found[:, rows] = inside + first_document, starts + first, ends[inside] + first
    return found[0], found[1], found[2]

  def _shard_document_ends(self, index: int) -> np.ndarray:
    """Where documents end in a shard, mapped (or, of a remote store, read) on first touch: int64 [documents]."""
    if self._document_ends[index] is None:
      shard = self.manifest.shards[index]
      array = self._files.array(f"shards/{shard.name}/document_ends", "int64", shard.documents)
      if not isinstance(array, np.ndarray):
        try:
          array = np.asarray(array.read().result())
        except Exception as error:  # as in `windows`
          name = self._files.name(f"shards/{shard.name}/document_ends")
          raise UserError(f"{name}: cannot be read ({one_line(error)})") from error
      self._document_ends[index] = array
    return self._document_ends[index]

  def _shard(self, index: int):
    """The tokens of a shard, mapped on first touch: an ndarray, or a TensorStore for a remote store."""
    if self._tokens[index] is None:
      shard = self.manifest.shards[index]
      self._tokens[index] = self._files.array(f"shards/{shard.name}/tokens", self.manifest.dtype, shard.tokens)
    return self._tokens[index]


def _verify(files: Files, manifest: Manifest, verify: Verify) -> str:
  """Checks every data file, in parallel; returns what was done, in words."""
  total = sum(file.bytes for _, file in manifest.files())
  full = verify == "full" or (verify == "auto" and total <= FULL_VERIFY_BYTES)
  begin = time.monotonic()

  def check(name, expected):
    found = files.differs(name, expected.bytes)
    if found is not None:
      raise UserError(
        f"{files.name(name)}: found {found}, expected {expected.bytes} bytes: the file is missing or "
        f"truncated; copy it again or {REMEDY}"
      )
    if full and (found := files.sha256(name, expected.bytes)) != expected.sha256:
      raise UserError(
        f"{files.name(name)}: found SHA-256 {found[:12]}, expected {expected.sha256[:12]}: the file is "
        f"corrupt; copy it again or {REMEDY}"
      )

  with concurrent.futures.ThreadPoolExecutor(min(16, 2 * (os.cpu_count() or 1))) as pool:
    checks = [pool.submit(check, *item) for item in manifest.files()]
    try:
      for done in checks:
        done.result()
    finally:
      pool.shutdown(cancel_futures=True)
  what = "all checksums" if full else "file sizes (verify=full would check the checksums)"
  return f"checked {what}: {len(checks)} files, {total / 1e6:.1f} MB in {time.monotonic() - begin:.2f} s"


def _missing(path: str) -> str:
  """The message for a path without a manifest: what lies there, and how to make a store."""
  directory = pathlib.Path(path)
  found = "no such directory"
  if directory.parent.is_dir() and "://" not in path:
    splits = sorted(child.name for child in directory.parent.iterdir() if (child / manifests.FILE).is_file())
    if splits:
      found = f"no such split; there are {', '.join(splits)}"
    if directory.is_dir():
      found = f"a directory without {manifests.FILE}"
    if directory.with_name(f".{directory.name}.incomplete").exists():
      found += "; an unfinished one is there, the same prepare_data command finishes it"
  return (
    f"{path}: no token store ({found}): make one with python -m tools.prepare_data --source=... "
    f"--vocabulary=... --output={directory.parent if '://' not in path else 'DIR'}"
  )
