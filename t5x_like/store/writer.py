"""The atomic writer of one split's token store, from the ids of documents.

Shards close at the first document end at or after `shard_tokens`, so the bytes depend only on the documents and their
order, not on batching or the number of tokenising processes. Everything is written to the sibling
`.<split>.incomplete`, flushed to disk and renamed when complete. A directory left by a killed run is emptied and
reused; a directory that a live process is writing is an error.
"""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5x_like import vocabularies
from t5x_like.errors import UserError, one_line
from t5x_like.files import file_names
from t5x_like.files.locks import Lock
from t5x_like.store import manifest as manifests
from t5x_like.store import shards as store_shards
from t5x_like.store.manifest import Manifest, VocabularyRecord
from t5x_like.store.shards import CHECKSUMS, Shard
from t5x_like.vocabularies import Vocabulary

SHARD_TOKENS = 2**26


class TokenStoreWriter(contextlib.AbstractContextManager):
  """A writer of the store of one split; leaving the `with` block publishes it, an exception removes it.

  Args:
    path: the local directory to create, `<root>/<split>`.
    name: name of the corpus; part of metric names.
    split: name of the split, recorded in the manifest.
    vocabulary: vocabulary of the ids; saved with the store.
    append_eos: whether the writer adds EOS after every document (T5 adds none).
    source: a JSON object recorded as provenance.
    shard_tokens: a shard closes at the first document end at or after this many tokens.

  Raises:
    UserError: the path exists, is remote or not writable, or another process is writing it.
  """

  def __init__(
    self,
    path: str | os.PathLike,
    *,
    name: str,
    split: str,
    vocabulary: Vocabulary,
    append_eos: bool = False,
    source: dict[str, Any] | None = None,
    shard_tokens: int = SHARD_TOKENS,
  ):
    if "://" in os.fspath(path):
      raise UserError(f"{path}: stores are written to a local directory; write it there, then copy it")
    self.path = pathlib.Path(path)
    self._work = self.path.with_name(f".{self.path.name}.incomplete")
    self._name, self._split = file_names.check("name", name), file_names.check("split", split)
    self._vocabulary = vocabulary
    self._append_eos, self._source, self._shard_tokens = append_eos, dict(source or {}), shard_tokens
    self._dtype = dtype_of(vocabulary)
    self._tokens, self._lengths, self._held = [], [], 0
    self._shards: list[Shard] = []

  def __enter__(self) -> "TokenStoreWriter":
    if self.path.exists():
      raise UserError(
        f"{self.path}: exists already, expected a new path: a token store is never overwritten; remove "
        "it or choose another output"
      )
    with _refusals(self._work):
      self._work.mkdir(parents=True, exist_ok=True)
    try:
      self._lock = Lock(self._work)
    except OSError as error:
      raise UserError(f"{self._work}: another process is writing this store: wait for it or stop it") from error
    with _refusals(self._work):
      for leftover in self._work.iterdir():
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    return self

  def __exit__(self, kind, error, traceback) -> None:
    published = False
    try:
      if kind is None:
        self._publish()
        published = True
    finally:
      if not published:
        shutil.rmtree(self._work, ignore_errors=True)
      self._lock.close()

  @property
  def num_tokens(self) -> int:
    """The number of tokens added so far."""
    return self._held + sum(shard.tokens for shard in self._shards)

  def add(self, tokens_N: np.ndarray, lengths_D: np.ndarray) -> None:
    """Add documents.

    Args:
      tokens_N: integers [N], the concatenated ids of D documents, without EOS.
      lengths_D: integers [D] that sum to N; documents of length 0 are dropped.

    Raises:
      UserError: an id is padding or outside the vocabulary, or a shard cannot be written.
    """
    lengths_D = np.asarray(lengths_D, np.int64)
    lengths_D = lengths_D[lengths_D > 0]
    tokens_N = np.asarray(tokens_N)
    if not lengths_D.size:
      return
    if wrong := vocabularies.outside(self._vocabulary, tokens_N):
      raise UserError(f"{self.path}: {wrong}")
    tokens_N = tokens_N.astype(self._dtype)
    if self._append_eos:
      tokens_N = np.insert(tokens_N, np.cumsum(lengths_D), self._vocabulary.eos_id)
      lengths_D = lengths_D + 1
    self._tokens.append(tokens_N)
    self._lengths.append(lengths_D)
    self._held += tokens_N.size
    if self._held >= self._shard_tokens:
      self._close_shards()

  def _close_shards(self, last: bool = False) -> None:
    """Write every complete shard and, if `last`, the rest."""
    tokens, ends = np.concatenate(self._tokens), np.cumsum(np.concatenate(self._lengths))
    while tokens.size >= self._shard_tokens or (last and tokens.size):
      documents = min(int(np.searchsorted(ends, self._shard_tokens)) + 1, ends.size)
      cut = int(ends[documents - 1])
      self._write_shard(tokens[:cut], ends[:documents])
      tokens, ends = tokens[cut:], ends[documents:] - cut
    self._tokens, self._lengths, self._held = [tokens], [np.diff(ends, prepend=0)], tokens.size

  def _write_shard(self, tokens: np.ndarray, document_ends: np.ndarray) -> None:
    self._shards.append(write_shard(self._work, f"{len(self._shards):08d}", tokens, document_ends))

  def _publish(self) -> None:
    if self._held:
      self._close_shards(last=True)
    if not self._shards:
      raise UserError(
        f"{self.path}: split {self._split!r} has no documents with any tokens, expected at least one: "
        "check the source, or for a split by validation_fraction raise the fraction"
      )
    contents = description(
      self._shards,
      name=self._name,
      split=self._split,
      vocabulary=self._vocabulary,
      append_eos=self._append_eos,
      source=self._source,
    )
    with _refusals(self._work):
      self._vocabulary.save(self._work / manifests.VOCABULARY)
      for file, content in contents.items():
        (self._work / file).write_bytes(content)
      flush_small(self._work)
      os.rename(self._work, self.path)
      flush(self.path.parent)


def description(
  shards: Sequence[Shard], *, name: str, split: str, vocabulary: Vocabulary, append_eos: bool, source: dict[str, Any]
) -> dict[str, bytes]:
  """Return the tables and the manifest of a store of these shards: contents by file, the manifest last."""
  names = {len(shard.name) for shard in shards}
  tables = store_shards.tables(shards)
  manifest = Manifest(
    name=name,
    split=split,
    vocabulary=VocabularyRecord(vocabulary.fingerprint, vocabulary.size, vocabulary.extra_ids),
    append_eos=append_eos,
    dtype=dtype_of(vocabulary).name,
    num_tokens=sum(shard.tokens for shard in shards),
    num_documents=sum(shard.documents for shard in shards),
    num_shards=len(shards),
    name_digits=names.pop(),
    tables={file: hashlib.sha256(content).hexdigest() for file, content in tables.items()},
    source=source,
    fingerprint="",
  )
  found = store_shards.read_shards(manifest, tables[store_shards.TABLE], name)
  checksums_SA = store_shards.read_checksums(manifest, tables[CHECKSUMS], name)
  manifest = dataclasses.replace(manifest, fingerprint=store_shards.fingerprint(manifest, found, checksums_SA))
  return {**tables, manifests.FILE: manifest.to_json().encode()}


def dtype_of(vocabulary: Vocabulary) -> np.dtype:
  """Return the dtype of a vocabulary's ids in a store."""
  return np.dtype(np.uint16 if vocabulary.size <= 2**16 else np.int32)


def write_shard(root: pathlib.Path, name: str, tokens_N: np.ndarray, document_ends_D: np.ndarray) -> Shard:
  """Write the files of a shard under a store's root, flush them to disk, and describe them.

  Args:
    root: the store's directory.
    name: name of the shard, digits.
    tokens_N: ids [N] of the store's dtype.
    document_ends_D: integers [D], where each document ends in `tokens_N`.
  """
  sha256 = {}
  for array, data in (("tokens", tokens_N), ("document_ends", document_ends_D.astype("<i8"))):
    path, data = root / array / name, data.astype(data.dtype.newbyteorder("<"), copy=False)
    with _refusals(path):
      path.parent.mkdir(parents=True, exist_ok=True)
      digest = hashlib.sha256()
      with open(path, "wb") as stream:
        for content in (np.ascontiguousarray(data).data, store_shards.tail(data.size, data.itemsize)):
          stream.write(content)
          digest.update(content)
        stream.flush()
        os.fsync(stream.fileno())
      sha256[array] = digest.hexdigest()
  return Shard(name, int(tokens_N.size), int(document_ends_D.size), sha256)


@contextlib.contextmanager
def _refusals(path: pathlib.Path):
  """Report a full disk, a read-only directory and the like as a one-line UserError; TensorStore raises ValueError."""
  try:
    yield
  except (OSError, ValueError, RuntimeError) as error:
    raise UserError(
      f"{path}: cannot be written ({one_line(error)}): free some space or choose another output"
    ) from error


def flush_small(root: pathlib.Path) -> None:
  """Flush a store's directories and files to disk, except shards, which are flushed when written."""
  for directory, _, names in os.walk(root):
    for path in (directory, *(os.path.join(directory, name) for name in names)):
      if os.path.basename(directory) not in store_shards.ARRAYS or path == directory:
        flush(path)


def flush(path: str | os.PathLike) -> None:
  """Flush a file or directory to disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
