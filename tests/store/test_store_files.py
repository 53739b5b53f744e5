"""The files of a token store: plain arrays, whose damage is refused by name."""

import errno
import hashlib
import os
import shutil

import numpy as np
import pytest
import tensorstore as ts

from stores import TokenStoreWriter, edit, many_documents, write, write_store
from t5x_like.errors import DamageError, TransientError, UserError
from t5x_like.files import ranges
from t5x_like.store import ids, reader
from t5x_like.store import manifest as manifests
from t5x_like.store.tokens import TOKENS, TokenStore
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary


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


def test_files_are_plain_arrays(intact):
  """NumPy reads them, and any reader of Zarr with a description beside them."""
  path = intact[0]
  stream = np.concatenate(intact[1])
  ends = np.cumsum([len(document) for document in intact[1]])
  for directory, dtype, expected in (("tokens", "uint16", stream), ("tokens.ends", "int64", ends)):
    read = np.fromfile(path / directory / "00000000", dtype)
    np.testing.assert_array_equal(read, expected[: read.size])
    opened = ts.open(
      {
        "driver": "zarr3",
        "kvstore": {"driver": "memory"},
        "metadata": {"shape": [read.size], "data_type": dtype, "codecs": [{"name": "bytes"}]},
        "create": True,
      }
    ).result()
    opened.kvstore.write("c/0", (path / directory / "00000000").read_bytes()).result()
    np.testing.assert_array_equal(opened.read().result(), read)


def test_the_fingerprint_is_of_the_content(tmp_path):
  """The number is of this edition of the format: checkpoints know their data by it."""
  with TokenStoreWriter(
    tmp_path / "train",
    name="corpus",
    split="train",
    vocabulary=ByteVocabulary(),
    shard_tokens=20_000,
  ) as writer:
    writer.add(np.arange(60_000) % 250 + 1, np.full(120, 500))
  expected = "7088359929775cd1607c36abe1ceb7d923d8ba9eb19b9e1d83fef849d15ceba7"
  assert TokenStore.open(tmp_path / "train", verify="full").fingerprint == expected


@pytest.mark.parametrize(
  "kind", ["t5x_like.token_store.v1", "t5x_like.token_store.v2", "t5x_like.examples.v1"]
)
def test_a_store_of_another_edition_is_refused(damaged, kind):
  edit(damaged, lambda manifest: manifest.update(format=kind))
  with pytest.raises(
    UserError, match=f"manifest.json: format: found '{kind}', expected '.*': make the store again"
  ):
    TokenStore.open(damaged)


@pytest.mark.parametrize("array", ["tokens", "tokens.ends"])
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
    read(
      TokenStore(
        store.path, ranges.open_shard_files(str(damaged)), b"", store.manifest, store._shards, ""
      )
    )


@pytest.mark.parametrize("file", ["tokens/00000001", "tokens.ends/00000001"])
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


@pytest.mark.parametrize("file", ["shards.table", "checksums.table"])
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
    (lambda table: table[:-1], r"shards.table: found \d+ bytes, expected \d+ for"),
    (
      lambda table: table * [[1, 0, 1]],
      "shards.table: found a count out of range, expected items from 1",
    ),
    (lambda table: table + [[0, 0, 2**41]], "shards.table: found a count out of range"),
    (
      lambda table: table + [[0, 0, 1]],
      "shards.table: tokens: num_values: found .* in all, expected",
    ),
  ],
)
def test_tables_that_contradict_the_manifest_are_refused(damaged, change, message):
  table = np.fromfile(damaged / "shards.table", np.int64).reshape(-1, 3)
  change(table).tofile(damaged / "shards.table")
  digest = hashlib.sha256((damaged / "shards.table").read_bytes()).hexdigest()
  edit(damaged, lambda m: m["tables"].update({"shards.table": digest}), checked=True)
  with pytest.raises(UserError, match=message):
    TokenStore.open(damaged, verify="size")


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
    (lambda m: m.pop("facts"), "facts: missing"),
    (lambda m: m.update(num_item=1), "num_item: unknown field.*did you mean 'num_items'"),
    (lambda m: m.update(num_items="7"), "num_items: found str, expected int"),
    (lambda m: m["facts"].update(append_eos=0), "checksum: .*edited or damaged"),
    (lambda m: m.update(num_items=m["num_items"] + 1), "checksum: .*edited or damaged"),
    (
      lambda m: m["arrays"][0].update(dtype="object"),
      "dtype: found 'object', expected one of bool, uint8",
    ),
    (lambda m: m["arrays"][0].update(width=0), "width: found 0, expected 1 to"),
    (lambda m: m["arrays"][0].update(name="../x"), "arrays: found '../x', expected a name"),
    (
      lambda m: m["arrays"][0].update(name="x.ends"),
      "arrays: found .*, expected other names, without dots",
    ),
    (
      lambda m: m["arrays"].append(m["arrays"][0]),
      "arrays: found .*, expected other names, without dots",
    ),
    (
      lambda m: m["tables"].update({"shards.table": 7}),
      "tables.shards.table: found int, expected str",
    ),
    (lambda m: m.update(num_shards=0), "num_shards: found 0"),
    (lambda m: m.update(name_digits=10**15), "name_digits: found 10+, expected 1 to 20"),
    (lambda m: m.update(fingerprint=None), "fingerprint: found NoneType, expected str"),
    (lambda m: m.update(fingerprint="0"), "checksum: .*edited or damaged"),
  ],
)
def test_wrong_manifests_are_refused(damaged, change, message):
  edit(damaged, change)
  with pytest.raises(UserError, match=f"manifest.json: {message}"):
    TokenStore.open(damaged)


@pytest.mark.parametrize(
  "change, message",
  [
    (lambda m: m["facts"].update(append_eos=0), "facts.append_eos: found 0, expected a bool"),
    (
      lambda m: m["arrays"][0].update(name="x"),
      "arrays: found .*.x., .*, expected ids named .tokens",
    ),
    (
      lambda m: m["arrays"][0].update(dtype="uint8"),
      "arrays: found .*.tokens., .uint8., 1.*, expected ids",
    ),
  ],
)
def test_other_stores_than_of_tokens_are_refused(damaged, change, message):
  edit(damaged, change, checked=True)
  if ".x." in message:
    (damaged / "tokens").rename(damaged / "x")
    (damaged / "tokens.ends").rename(damaged / "x.ends")
  if "uint8" in message:
    for file in (damaged / "tokens").iterdir():
      file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
  with pytest.raises(UserError, match=f"manifest.json: {message}"):
    TokenStore.open(damaged, verify="size")


def test_documents_without_tokens_are_refused(tmp_path):
  vocabulary = ByteVocabulary()
  about = dict(name="n", split="x", facts=ids.facts(vocabulary, False), vocabulary=vocabulary)
  items = {TOKENS: (np.array([5, 6], np.uint16), np.array([1, 0, 1]))}
  write_store(tmp_path / "x", items, [ids.array(vocabulary)], **about)
  with pytest.raises(
    UserError, match="shards.table: row 0: found 3 documents, expected 1 to 2 .the shard's tokens."
  ):
    TokenStore.open(tmp_path / "x")


def test_manifest_that_is_not_json(damaged):
  for text in ("", "[1]", "{", "\x00"):
    (damaged / "manifest.json").write_text(text)
    with pytest.raises(UserError, match="manifest.json: .*prepare_data"):
      TokenStore.open(damaged)
  (damaged / "manifest.json").unlink()
  os.mkfifo(damaged / "manifest.json")
  with pytest.raises(
    UserError, match="manifest.json: cannot be read .*found a pipe, expected a file"
  ):
    TokenStore.open(damaged)


def test_vocabulary_of_another_store_is_refused(damaged):
  ByteVocabulary(extra_ids=7).save(damaged / "vocabulary")
  with pytest.raises(UserError, match="vocabulary: found .*fingerprint"):
    _ = TokenStore.open(damaged).vocabulary


def test_manifest_text_round_trips(intact):
  text = (intact[0] / "manifest.json").read_bytes()
  assert manifests.parse(text, "here").to_json().encode() == text


def test_a_fingerprint_that_is_not_the_contents_is_found(damaged):
  edit(damaged, lambda m: m.update(fingerprint="0" * 64), checked=True)
  with pytest.raises(
    UserError, match="manifest.json: fingerprint: found '000000000000', but the content gives"
  ):
    TokenStore.open(damaged, verify="full")


@pytest.mark.parametrize("change", ["zeros", "shorter", "another file", "one bit"])
def test_a_shard_that_is_overwritten_while_it_is_read_is_found(change, damaged):
  store = TokenStore.open(damaged)
  store.read_values(TOKENS)
  store.check_unchanged()
  file = damaged / "tokens" / "00000002"
  content = file.read_bytes()
  altered = {
    "zeros": bytes(len(content)),
    "shorter": content[:-2],
    "another file": content[::-1],
    "one bit": content[:-1] + bytes([content[-1] ^ 1]),
  }[change]
  if change == "another file":
    file.unlink()
  file.write_bytes(altered)
  with pytest.raises(DamageError, match="tokens/00000002: found SHA-256 .*copy it again"):
    reader.check_unchanged()


def test_a_shard_that_is_copied_again_or_touched_is_none_of_them(damaged, monkeypatch):
  store = TokenStore.open(damaged)
  before = store.read_values(TOKENS)
  file = damaged / "tokens" / "00000002"
  content = file.read_bytes()
  file.unlink()
  file.write_bytes(content)
  os.utime(damaged / "tokens" / "00000001", ns=(1, 1))
  store.check_unchanged()
  monkeypatch.setattr(reader, "_verify_checksum", None)  # they are verified once
  store.check_unchanged()
  np.testing.assert_array_equal(store.read_values(TOKENS), before)


PASSING = (
  "EIO",
  "ESTALE",
  "ETIMEDOUT",
  "ECONNRESET",
  "EHOSTDOWN",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "EREMOTEIO",
  "ENOTCONN",
)


@pytest.mark.parametrize("name", PASSING)
def test_a_fault_of_a_network_disk_that_passes_is_read_over(name, intact, monkeypatch):
  """The file is opened again, as its descriptor may be stale for good."""
  path, documents = intact
  store = TokenStore.open(path, "size")
  read = os.preadv
  stale = []
  store.read_values(TOKENS)

  def preadv(file, *arguments):
    if not stale:
      stale.append(os.fstat(file).st_ino)
      os.close(file)
      os.open(os.devnull, os.O_RDONLY)  # takes the number of the descriptor
    if os.fstat(file).st_ino == os.stat(os.devnull).st_ino:
      raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)))
    return read(file, *arguments)

  monkeypatch.setattr(os, "preadv", preadv)
  monkeypatch.setattr("time.sleep", lambda seconds: None)
  np.testing.assert_array_equal(store.read_values(TOKENS), np.concatenate(documents))
  assert stale


@pytest.mark.parametrize(
  "name, kind", [*((name, TransientError) for name in PASSING), ("EACCES", UserError)]
)
def test_a_fault_that_lasts_is_of_its_class(name, kind, intact, monkeypatch):
  store = TokenStore.open(intact[0], "size")

  def preadv(*_):
    raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)))

  monkeypatch.setattr(os, "preadv", preadv)
  monkeypatch.setenv("T5X_LIKE_RETRY_SECONDS", "0")
  with pytest.raises(
    kind, match=f"tokens/0+.*{'tried once in 0 s' if kind is TransientError else 'copy it again'}"
  ):
    store.read_values(TOKENS)
