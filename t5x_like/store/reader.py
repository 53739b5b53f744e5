"""A token store: one split of a corpus, tokenised once, read as random windows of one long token stream.

    <root>/<split>/manifest.json           counts, vocabulary, checksums of the tables, fingerprint
    <root>/<split>/shards.npy              tokens and documents of each shard
    <root>/<split>/checksums.npy           SHA-256 of each file
    <root>/<split>/vocabulary/             the vocabulary the ids belong to
    <root>/<split>/tokens/00000            ids, uint16 or int32
    <root>/<split>/document_ends/00000     where documents end in this shard's tokens, int64

Element i of a file is at byte i times the element size (`shards.py`), so a window is one ranged read, from a local file
(`local_files.py`) or over the network (`remote_files.py`). Only the table of shards is held in memory; document ends
are read on demand (`documents.py`). Opening reads the manifest and the table and lists the files once, regardless of
the number of tokens. Verifying the checksums is optional and reads every byte once, in parallel.

Stores of the first edition of the format remain readable (`first_edition.py`).
"""

import concurrent.futures
import functools
import json
import os
import pathlib
import time
from typing import Any, Literal, get_args

import numpy as np

from t5x_like import vocabularies
from t5x_like.errors import DamageError, UserError, one_line
from t5x_like.files import ranges
from t5x_like.files.ranges import Files
from t5x_like.store import first_edition
from t5x_like.store import manifest as manifests
from t5x_like.store import shards as store_shards
from t5x_like.store.documents import Documents
from t5x_like.store.manifest import REMEDY, Manifest
from t5x_like.store.shards import ARRAYS, CHECKSUMS, TABLE, Shards

Verify = Literal["auto", "full", "size"]
FULL_VERIFY_BYTES = 2 * 2**30  # "auto" checks every byte of stores up to this size


class TokenStore:
  """An open token store; open it with `TokenStore.open`.

  Attributes:
    path: the path given to `open`.
    manifest: the checked manifest.
    verification: a description of the checks that `open` made.
  """

  def __init__(self, path: str, files: Files, text: bytes, manifest: Manifest, shards: Shards, verification: str):
    self.path, self.manifest, self.verification = path, manifest, verification
    self._files, self._text, self._shards = files, text, shards
    self._documents = Documents(files, shards)

  @classmethod
  def open(cls, path: str | os.PathLike, verify: Verify = "auto") -> "TokenStore":
    """Open a store.

    Args:
      path: the directory of one split, local or `scheme://`.
      verify: `size` checks that every file exists and has the expected size; `full` also checks every checksum; `auto`
        is `full` for stores up to 2 GiB, otherwise `size`.

    Raises:
      UserError: the store or a file is missing, or its manifest or table is malformed or inconsistent.
      DamageError: a file is truncated or (full) corrupt; the message names it.
    """
    if verify not in get_args(Verify):
      raise UserError(f"verify: found {verify!r}, expected one of {', '.join(get_args(Verify))}")
    path = os.fspath(path)
    files = ranges.at(path, REMEDY)
    text = files.read(manifests.FILE)
    if text is None:
      raise UserError(_missing(path))
    where = files.name(manifests.FILE)
    data = _load(text, where)
    checksums_SA = None
    if data["format"] == first_edition.FORMAT:
      manifest, shards, checksums_SA = first_edition.parse(data, where)
    else:
      manifest = manifests.parse(data, where)
      shards = store_shards.read_shards(manifest, _table(files, TABLE), files.name(TABLE))
    full = verify == "full" or (verify == "auto" and shards.num_bytes <= FULL_VERIFY_BYTES)
    if full and checksums_SA is None:
      checksums_SA = store_shards.read_checksums(manifest, _table(files, CHECKSUMS), files.name(CHECKSUMS))
    return cls(path, files, text, manifest, shards, _verify(files, manifest, shards, checksums_SA if full else None))

  def is_current(self) -> bool:
    """Return whether the manifest at `path` is unchanged since opening."""
    return self._files.read(manifests.FILE) == self._text

  @property
  def name(self) -> str:
    return self.manifest.name

  @property
  def num_tokens(self) -> int:
    return self.manifest.num_tokens

  @property
  def num_documents(self) -> int:
    return self.manifest.num_documents

  @property
  def fingerprint(self) -> str:
    return self.manifest.fingerprint

  @functools.cached_property
  def vocabulary(self) -> vocabularies.Vocabulary:
    """The vocabulary saved with the store; UserError if it does not match the manifest."""
    vocabulary = vocabularies.load(self._files.name(manifests.VOCABULARY))
    for key in ("fingerprint", "size", "extra_ids"):
      found, expected = getattr(vocabulary, key), getattr(self.manifest.vocabulary, key)
      if found != expected:
        raise UserError(
          f"{self._files.name(manifests.VOCABULARY)}: {key}: found {found!r}, expected {expected!r} from "
          f"{manifests.FILE}: {REMEDY}"
        )
    return vocabulary

  def windows(self, starts_B: np.ndarray, length: int) -> np.ndarray:
    """Read windows of the token stream, across shard boundaries.

    Args:
      starts_B: integers [B], the first token of each window, in 0..num_tokens - length.
      length: tokens per window.

    Returns:
      int32 [B, length].

    Raises:
      ValueError: a window is not inside the store.
      UserError: a shard can no longer be read.
      DamageError: a shard is truncated.
    """
    start_B = np.asarray(starts_B, np.int64)
    if start_B.size and not 0 <= start_B.min() <= start_B.max() <= self.num_tokens - length:
      raise ValueError(f"windows {start_B.min()}..{start_B.max()} + {length} outside 0..{self.num_tokens}")
    dtype, firsts = self._shards.dtypes["tokens"], self._shards.first_token
    window_BW = np.empty((start_B.size, length), dtype)
    if not window_BW.size:
      return window_BW.astype(np.int32)
    data, bytes_of = memoryview(window_BW).cast("B"), dtype.itemsize
    shard_B = np.searchsorted(firsts, start_B, side="right") - 1
    offset_B, left_B = start_B - firsts[shard_B], firsts[shard_B + 1] - start_B
    reads = []
    rows = zip(shard_B.tolist(), (bytes_of * offset_B).tolist(), (bytes_of * left_B).tolist(), strict=True)
    for row, (shard, offset, left) in enumerate(rows):
      into = data[row * length * bytes_of : (row + 1) * length * bytes_of]
      while len(into) > left:
        reads.append((shard, offset, into[:left]))
        into, shard, offset = into[left:], shard + 1, 0
        left = bytes_of * int(firsts[shard + 1] - firsts[shard])
      reads.append((shard, offset, into))
    self._files.fill(self._shards, "tokens", reads)
    return window_BW.astype(np.int32, copy=False)

  def document_ends(self) -> np.ndarray:
    """Return where every document ends in the token stream, ascending up to `num_tokens`: int64 [num_documents].

    This reads all ends into memory; at scale, use `documents_at` for tokens or `document_spans` for documents.
    """
    return self._documents.ends()

  def documents_at(self, places_N: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the documents that contain tokens: places in the stream [N] -> (indices, starts, ends), each int64 [N]."""
    return self._documents.at(np.asarray(places_N, np.int64))

  def document_begins(self, starts_B: np.ndarray, length: int) -> np.ndarray:
    """Mark the tokens of windows at which a document begins: first tokens [B] -> bool [B, length]."""
    return self._documents.begins(np.asarray(starts_B, np.int64), length)

  def document_spans(self, documents_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where documents begin and end: indices [N] in 0..num_documents-1 -> (starts, ends), each int64 [N]."""
    return self._documents.spans(np.asarray(documents_N, np.int64))

  def document_sizes(self, documents_N: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sizes of consecutive documents of a shard: first documents [N] -> (their starts, int64 [N]; tokens of
    `count` documents from there on, int64 [N, count], 0 past the shard's last document)."""
    return self._documents.sizes(np.asarray(documents_N, np.int64), count)

  @property
  def first_documents(self) -> np.ndarray:
    """The number of documents before each shard, and the total at the end: int64 [num_shards + 1]."""
    return self._shards.first_document


def _load(text: bytes, where: str) -> dict[str, Any]:
  """Parse the JSON object of a manifest of either edition; raise UserError for anything else."""
  try:
    data = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise UserError(f"{where}: not valid JSON ({one_line(error)}): {REMEDY}") from error
  if not isinstance(data, dict) or data.get("format") not in (manifests.FORMAT, first_edition.FORMAT):
    found = data.get("format") if isinstance(data, dict) else type(data).__name__
    raise UserError(f"{where}: format: found {found!r}, expected {manifests.FORMAT!r}: {REMEDY}")
  return data


def _table(files: Files, file: str) -> bytes:
  table = files.read(file)
  if table is None:
    raise UserError(f"{files.name(file)}: found no such file: copy it again or {REMEDY}")
  return table


def _verify(files: Files, manifest: Manifest, shards: Shards, checksums_SA: np.ndarray | None) -> str:
  """Check that all files exist and, given checksums, their contents; return a description of the check."""
  begin = time.monotonic()
  sizes, found = shards.sizes(), files.listing(shards.roots)
  for file, expected in sizes.items() if found is not None else ():
    size = found.get(file, "no such file")
    if size not in (expected, None):
      raise (UserError if isinstance(size, str) else DamageError)(
        f"{files.name(file)}: found {size if isinstance(size, str) else f'{size} bytes'}, expected {expected} bytes: "
        f"the file is missing or truncated; copy it again or {REMEDY}"
      )
  what = "nothing but the manifest, as this address cannot be listed" if found is None else "that every file is there"
  if found is not None and None not in found.values():
    what = "file sizes"
  if checksums_SA is not None:
    what = "all checksums"
    _verify_checksums(files, shards, checksums_SA)
    if (computed := store_shards.fingerprint(manifest, shards, checksums_SA)) != manifest.fingerprint:
      raise UserError(
        f"{files.name(manifests.FILE)}: fingerprint: found {manifest.fingerprint[:12]!r}, but the content gives "
        f"{computed[:12]!r}; {REMEDY}"
      )
  else:
    what += " (verify=full would check the checksums)"
  return f"checked {what}: {len(sizes)} files, {shards.num_bytes / 1e6:.1f} MB in {time.monotonic() - begin:.2f} s"


def _verify_checksums(files: Files, shards: Shards, checksums_SA: np.ndarray) -> None:
  def check(array: str, shard: int) -> None:
    file, expected = shards.file(array, shard), checksums_SA[shard, ARRAYS.index(array)].tobytes().hex()
    if (found := files.sha256(file, shards.size(array, shard))) != expected:
      raise DamageError(
        f"{files.name(file)}: found SHA-256 {found[:12]}, expected {expected[:12]}: the file is corrupt; copy it "
        f"again or {REMEDY}"
      )

  with concurrent.futures.ThreadPoolExecutor(min(16, 2 * (os.cpu_count() or 1))) as pool:
    checks = [pool.submit(check, array, shard) for shard in range(len(shards)) for array in ARRAYS]
    try:
      for done in checks:
        done.result()
    finally:
      pool.shutdown(cancel_futures=True)


def _missing(path: str) -> str:
  """Return the message for a path without a manifest: what exists there, and how to make a store."""
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
