"""The files of a token store: both editions of the format are read, and damage is refused by name."""

import hashlib
import json
import os
import shutil

import numpy as np
import pytest
import tensorstore as ts

from stores import edit, first_edition, many_documents, write
from t5x_like.errors import DamageError, UserError
from t5x_like.files import ranges
from t5x_like.store import manifest as manifests
from t5x_like.store.reader import TokenStore
from t5x_like.store.writer import TokenStoreWriter
from t5x_like.vocabularies import ByteVocabulary


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
  """A store of 7 shards and the documents in it."""
  documents = many_documents()
  path = tmp_path_factory.mktemp("intact") / "train"
  assert write(path, documents, shard_tokens=8_000).manifest.num_shards >= 6
  return path, documents


@pytest.fixture
def damaged(intact, tmp_path):
  return shutil.copytree(intact[0], tmp_path / "train")


@pytest.mark.parametrize("shard_tokens", [8_000, 50_000])
def test_files_are_shards_of_zarr(intact, tmp_path, shard_tokens):
  """Of one inner chunk and of several, read by TensorStore and, as the first edition of the format, by ours."""
  stream = np.concatenate(intact[1])
  store = write(tmp_path / "train", intact[1], shard_tokens=shard_tokens)
  path = first_edition(shutil.copytree(tmp_path / "train", tmp_path / "first"))
  for array, expected in (("tokens", stream), ("document_ends", np.cumsum([len(d) for d in intact[1]]))):
    opened = ts.open({"driver": "zarr3", "kvstore": f"file://{path}/shards/00000/{array}/"}).result()
    np.testing.assert_array_equal(opened.read().result(), expected[: opened.shape[0]])
  first = TokenStore.open(path, verify="full")
  assert first.fingerprint == store.fingerprint and first.vocabulary.fingerprint == store.vocabulary.fingerprint
  np.testing.assert_array_equal(first.windows([0], stream.size)[0], stream)
  np.testing.assert_array_equal(first.document_ends(), store.document_ends())


def test_the_fingerprint_is_the_first_editions(tmp_path):
  """The number is of the code that wrote the first edition."""
  with TokenStoreWriter(
    tmp_path / "train", name="corpus", split="train", vocabulary=ByteVocabulary(), shard_tokens=20_000
  ) as writer:
    writer.add(np.arange(60_000) % 250 + 1, np.full(120, 500))
  expected = "68e8c3701f6b02720ed1f9c348685f446ad6da582645a999b8b179fb11dda43e"
  assert TokenStore.open(tmp_path / "train", verify="full").fingerprint == expected
  assert TokenStore.open(first_edition(tmp_path / "train")).fingerprint == expected


def test_damage_in_a_store_of_the_first_edition_is_named(intact, tmp_path):
  path = first_edition(shutil.copytree(intact[0], tmp_path / "train"))
  file = path / "shards" / "00001" / "tokens" / "c" / "0"
  content = file.read_bytes()
  file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
  with pytest.raises(DamageError, match="00001/tokens/c/0: found SHA-256 .*corrupt"):
    TokenStore.open(path)
  file.unlink()
  with pytest.raises(UserError, match="00001/tokens/c/0: found no such file"):
    TokenStore.open(path, verify="size")
  for change, message in (
    (lambda m: m["shards"][0].update(name="../x"), r"shards\[0\].name"),
    (lambda m: m["shards"][0]["files"].pop("tokens/c/0"), r"shards\[0\].files"),
    (lambda m: m.update(num_documents=m["num_documents"] + 1), "num_documents: .*the sum over the shards"),
    (lambda m: m["vocabulary"].update(size=7), "fingerprint: .*edited or damaged"),
    (lambda m: m.update(fingerprint=None), "fingerprint: .*edited or damaged"),
  ):
    before = (path / "manifest.json").read_text()
    edit(path, change)
    with pytest.raises(UserError, match=f"manifest.json: {message}"):
      TokenStore.open(path)
    (path / "manifest.json").write_text(before)


@pytest.mark.parametrize("array", ["tokens", "document_ends"])
def test_files_lost_or_cut_after_opening_are_named(damaged, array):
  def read(store):
    return store.windows([0], store.num_tokens) if array == "tokens" else store.document_ends()

  store = TokenStore.open(damaged)
  file = damaged / array / "00000001"
  content = file.read_bytes()
  file.write_bytes(content[:100])
  with pytest.raises(DamageError, match=f"{array}/00000001: found 100 bytes.*truncated"):
    read(store)
  file.unlink()
  with pytest.raises(UserError, match=f"{array}/00000001: cannot be read"):
    read(TokenStore(store.path, ranges.at(str(damaged)), b"", store.manifest, store._shards, ""))


@pytest.mark.parametrize("file", ["tokens/00000001", "document_ends/00000001"])
@pytest.mark.parametrize("address", ["{}", "file://{}"])
def test_damaged_files_are_named(damaged, file, address):
  path = damaged / file
  content = path.read_bytes()
  url = address.format(damaged)

  path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
  with pytest.raises(DamageError, match=f"{file}.*SHA-256.*corrupt"):
    TokenStore.open(url, verify="full")
  TokenStore.open(url, verify="size")

  for wrong in (content[:-10], content + b"x"):
    path.write_bytes(wrong)
    with pytest.raises(DamageError, match=f"{file}.*expected {len(content)} bytes"):
      TokenStore.open(url, verify="size")
  path.unlink()
  with pytest.raises(UserError, match=f"{file}: found no such file"):
    TokenStore.open(url, verify="size")


@pytest.mark.parametrize("file", ["shards.npy", "checksums.npy"])
def test_damaged_tables_are_named(damaged, file):
  path = damaged / file
  content = path.read_bytes()
  for wrong in (content[:-10], b"", content[:-1] + bytes([content[-1] ^ 1])):
    path.write_bytes(wrong)
    with pytest.raises(DamageError, match=f"{file}: found SHA-256 .*corrupt"):
      TokenStore.open(damaged)
  path.unlink()
  with pytest.raises(UserError, match=f"{file}: found no such file"):
    TokenStore.open(damaged)


@pytest.mark.parametrize(
  "change, message",
  [
    (lambda table: table[:-1], r"shards.npy: found uint64 of shape"),
    (lambda table: table.astype(np.int32), "shards.npy: found int32 of shape"),
    (lambda table: table + [[0, 0, 10**9]], "shards.npy: row 0: found 10000.* documents, expected 1 to"),
    (lambda table: table + [[0, 1, 0]], "shards.npy: num_tokens: found .* in all, expected"),
  ],
)
def test_tables_that_contradict_the_manifest_are_refused(damaged, change, message):
  table = change(np.load(damaged / "shards.npy"))
  np.save(damaged / "shards.npy", table if table.dtype == np.int32 else table.astype(np.uint64))
  digest = hashlib.sha256((damaged / "shards.npy").read_bytes()).hexdigest()
  edit(damaged, lambda m: m["tables"].update({"shards.npy": digest}), checked=True)
  with pytest.raises(UserError, match=message):
    TokenStore.open(damaged)


def test_the_manifest_does_not_grow_with_shards(tmp_path):
  sizes = [
    (tmp_path / str(shards) / "manifest.json").stat().st_size
    for shards in (1, 100)
    if write(tmp_path / str(shards), [[5]] * shards, shard_tokens=1)
  ]
  assert sizes[1] - sizes[0] < 10  # digits of the counts


@pytest.mark.parametrize(
  "change, message",
  [
    (lambda m: m.update(format="v0"), "format: found 'v0'"),
    (lambda m: m.pop("dtype"), "dtype: missing"),
    (lambda m: m.update(num_token=1), "num_token: unknown field.*did you mean 'num_tokens'"),
    (lambda m: m.update(num_tokens="7"), "num_tokens: found str, expected int"),
    (lambda m: m.update(append_eos=0), "append_eos: found int, expected bool"),
    (lambda m: m.update(num_documents=m["num_documents"] + 1), "checksum: .*edited or damaged"),
    (lambda m: m.update(dtype="int8"), "dtype: found 'int8', expected one of uint16, int32"),
    (lambda m: m["tables"].update({"shards.npy": 7}), "tables.shards.npy: found int, expected str"),
    (lambda m: m.update(num_shards=0), "num_shards: found 0"),
    (lambda m: m["vocabulary"].update(size=7), "checksum: .*edited or damaged"),
    (lambda m: m.update(fingerprint=None), "fingerprint: found NoneType, expected str"),
    (lambda m: m.update(fingerprint="0"), "checksum: .*edited or damaged"),
  ],
)
def test_wrong_manifests_are_refused(damaged, change, message):
  edit(damaged, change)
  with pytest.raises(UserError, match=f"manifest.json: {message}"):
    TokenStore.open(damaged)


def test_manifest_that_is_not_json(damaged):
  for text in ("", "[1]", "{", "\x00"):
    (damaged / "manifest.json").write_text(text)
    with pytest.raises(UserError, match="manifest.json: .*prepare_data"):
      TokenStore.open(damaged)
  (damaged / "manifest.json").unlink()
  os.mkfifo(damaged / "manifest.json")
  with pytest.raises(UserError, match="manifest.json: cannot be read .*found a pipe, expected a file"):
    TokenStore.open(damaged)


def test_vocabulary_of_another_store_is_refused(damaged):
  ByteVocabulary(extra_ids=7).save(damaged / "vocabulary")
  with pytest.raises(UserError, match="vocabulary: fingerprint: found"):
    _ = TokenStore.open(damaged).vocabulary


def test_manifest_text_round_trips(intact):
  text = (intact[0] / "manifest.json").read_bytes()
  assert manifests.parse(json.loads(text), "here").to_json().encode() == text


def test_a_fingerprint_that_is_not_the_contents_is_found(damaged):
  edit(damaged, lambda m: m.update(fingerprint="0" * 64), checked=True)
  with pytest.raises(UserError, match="manifest.json: fingerprint: found '000000000000', but the content gives"):
    TokenStore.open(damaged, verify="full")
