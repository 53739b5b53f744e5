"""Reader for token stores in the first edition of the format.

    manifest.json                             as now, but with an entry for every shard and file
    vocabulary/
    shards/00000/tokens/zarr.json, c/0        each array as a directory of Zarr v3
    shards/00000/document_ends/zarr.json, c/0

The files `c/0` have the same bytes as in the second edition; reading them does not need `zarr.json`.
"""

import dataclasses
import re
from typing import Any

import numpy as np

from t5x_like.errors import UserError
from t5x_like.store import manifest as manifests
from t5x_like.store import shards as store_shards
from t5x_like.store.manifest import REMEDY, Manifest, VocabularyRecord
from t5x_like.store.shards import ARRAYS, Shards

FORMAT = "t5x_like.token_store.v1"
_PATTERN = "shards/%(name)s/%(array)s/c/0"


@dataclasses.dataclass(frozen=True)
class _StoredFile:
  bytes: int
  sha256: str


@dataclasses.dataclass(frozen=True)
class _Shard:
  name: str
  tokens: int
  documents: int
  files: dict[str, _StoredFile]


@dataclasses.dataclass(frozen=True)
class _Manifest:
  name: str
  split: str
  vocabulary: VocabularyRecord
  append_eos: bool
  dtype: str
  num_tokens: int
  num_documents: int
  shards: list[_Shard]
  source: dict[str, Any]


def parse(data: dict[str, Any], where: str) -> tuple[Manifest, Shards, np.ndarray]:
  """Read a manifest of the first edition.

  Args:
    data: the file's JSON object.
    where: the file's path, for messages.

  Returns:
    (the manifest in the form of the second edition, the shards, checksums uint8 [S, 2, 32])

  Raises:
    UserError: see `manifest.parse`; also if counts do not add up or the fingerprint does not match the fields.
  """

  def refuse(key: str, found: Any, expected: Any) -> None:
    raise UserError(f"{where}: {key}: found {found!r}, expected {expected}: {REMEDY}")

  data = dict(data)
  data.pop("format")
  recorded = data.pop("fingerprint", None)
  old = manifests.read(_Manifest, data, where, "")
  if not old.shards:
    refuse("shards", [], "at least one shard")
  needed = {f"{array}/c/0" for array in ARRAYS}
  for i, shard in enumerate(old.shards):
    if not re.fullmatch(r"[0-9]{1,12}", shard.name):
      refuse(f"shards[{i}].name", shard.name, "digits")
    if not needed <= set(shard.files):
      refuse(f"shards[{i}].files", sorted(shard.files), f"{sorted(needed)} among them")
    if any(not re.fullmatch("[0-9a-f]{64}", shard.files[file].sha256) for file in needed):
      refuse(f"shards[{i}].files", "a checksum of another form", "a SHA-256 of each file")
    if not 0 < shard.documents <= shard.tokens:
      refuse(f"shards[{i}].documents", shard.documents, f"1 to {shard.tokens} (the shard's tokens)")
  for total, part in (("num_tokens", "tokens"), ("num_documents", "documents")):
    expected = sum(getattr(shard, part) for shard in old.shards)
    if getattr(old, total) != expected:
      refuse(total, getattr(old, total), f"{expected} (the sum over the shards)")
  manifest = Manifest(
    **{key: getattr(old, key) for key in ("name", "split", "vocabulary", "append_eos", "dtype")},
    num_tokens=old.num_tokens,
    num_documents=old.num_documents,
    num_shards=len(old.shards),
    name_digits=len(old.shards[0].name),
    tables={},
    source=old.source,
    fingerprint=str(recorded),
  )
  manifests.check(manifest, where)
  counts_S2 = np.array([[shard.tokens, shard.documents] for shard in old.shards], np.int64)
  shards = Shards([shard.name for shard in old.shards], counts_S2, old.dtype, _PATTERN)
  digests = [bytes.fromhex(shard.files[f"{array}/c/0"].sha256) for shard in old.shards for array in ARRAYS]
  checksums_SA = np.frombuffer(b"".join(digests), np.uint8).reshape(len(old.shards), len(ARRAYS), 32)
  computed = store_shards.fingerprint(manifest, shards, checksums_SA)
  if recorded != computed:
    raise UserError(
      f"{where}: fingerprint: found {str(recorded)[:12]!r}, but the fields give {computed[:12]!r}: the manifest was "
      f"edited or damaged; {REMEDY}"
    )
  return manifest, shards, checksums_SA
