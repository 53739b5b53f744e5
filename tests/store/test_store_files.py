"""Files of a token store are plain arrays; a damaged file is refused by name."""

import errno
import hashlib
import os
import pathlib

import numpy as np
import pytest
import tensorstore as ts

from refusals import refuses
from stores import TokenStoreWriter, edit, write, write_store
from t5x_like.errors import DamageError, TransientError, UserError
from t5x_like.store import ids, reader
from t5x_like.store.tokens import TOKENS, TokenStore
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary


def test_files_are_plain_arrays(intact_tokens):
  """NumPy can read them, and so can Zarr readers that are given the shape and the data type."""
  path = intact_tokens[0]
  stream = np.concatenate(intact_tokens[1])
  ends = np.cumsum([len(document) for document in intact_tokens[1]])
  for directory, dtype, expected in (("tokens", "uint16", stream), ("tokens.ends", "int64", ends)):
    values = np.fromfile(path / directory / "00000000", dtype)
    np.testing.assert_array_equal(values, expected[: values.size])
    zarr = ts.open(
      {
        "driver": "zarr3",
        "kvstore": {"driver": "memory"},
        "metadata": {"shape": [values.size], "data_type": dtype, "codecs": [{"name": "bytes"}]},
        "create": True,
      }
    ).result()
    zarr.kvstore.write("c/0", (path / directory / "00000000").read_bytes()).result()
    np.testing.assert_array_equal(zarr.read().result(), values)


def test_fingerprint_of_known_content_never_changes(tmp_path):
  """Checkpoints identify their data by it, so a new value needs a new version of the format."""
  attributes = dict(name="corpus", split="train", vocabulary=ByteVocabulary())
  with TokenStoreWriter(tmp_path / "train", **attributes, shard_tokens=20_000) as writer:
    writer.add(np.arange(60_000) % 250 + 1, np.full(120, 500))
  expected = "7088359929775cd1607c36abe1ceb7d923d8ba9eb19b9e1d83fef849d15ceba7"
  assert TokenStore.open(tmp_path / "train", verify="full").fingerprint == expected


def read_all(store, array):
  return store.read_values(TOKENS) if array == "tokens" else store.document_ends()


@pytest.mark.parametrize("array", ["tokens", "tokens.ends"])
@pytest.mark.parametrize(
  "damage, name, error",
  [
    (lambda file: file.write_bytes(file.read_bytes()[:100]), "found 100 bytes", DamageError),
    (pathlib.Path.unlink, "cannot be read", UserError),
  ],
  ids=["cut", "lost"],
)
def test_error_about_a_file_truncated_or_lost_after_opening_names_it(
  token_store, array, damage, name, error
):
  store = TokenStore.open(token_store)
  damage(token_store / array / "00000001")
  with refuses(f"{array}/00000001: ", name, error=error):
    read_all(store, array)


def flip_bit(file):
  content = file.read_bytes()
  file.write_bytes(bytes([content[0] ^ 1]) + content[1:])


@pytest.mark.parametrize("url", ["{}", "file://{}"])
@pytest.mark.parametrize("file", ["tokens/00000001", "tokens.ends/00000001"])
@pytest.mark.parametrize(
  "verify, damage, name, error",
  [
    ("full", flip_bit, "found SHA-256", DamageError),
    ("size", lambda file: file.write_bytes(file.read_bytes()[:-10]), "bytes", DamageError),
    ("size", lambda file: file.write_bytes(file.read_bytes() + b"x"), "bytes", DamageError),
    ("size", pathlib.Path.unlink, "found no such file", UserError),
  ],
  ids=["a changed bit", "cut", "longer", "lost"],
)
def test_opening_a_store_with_a_damaged_shard_names_the_shard(
  token_store, verify, damage, name, error, file, url
):
  damage(token_store / file)
  with refuses(file, name, error=error):
    TokenStore.open(url.format(token_store), verify=verify)


@pytest.mark.parametrize("file", ["shards.table", "checksums.table"])
def test_errors_about_damaged_and_missing_tables_name_them(token_store, file):
  path = token_store / file
  content = path.read_bytes()
  for wrong_content in (content[:-10], b"", content[:-1] + bytes([content[-1] ^ 1])):
    path.write_bytes(wrong_content)
    with refuses(f"{file}: found SHA-256", error=DamageError):
      TokenStore.open(token_store)
  path.unlink()
  with refuses(f"{file}: found no such file"):
    TokenStore.open(token_store)


@pytest.mark.parametrize(
  "change, name",
  [
    (lambda table: table[:-1], "bytes"),
    (lambda table: table * [[1, 0, 1]], "a count out of range"),
    (lambda table: table + [[0, 0, 2**41]], "a count out of range"),
    (lambda table: table + [[0, 0, 1]], "tokens: num_values"),
  ],
)
def test_tables_that_contradict_the_manifest_are_refused(token_store, change, name):
  table = np.fromfile(token_store / "shards.table", np.int64).reshape(-1, 3)
  change(table).tofile(token_store / "shards.table")
  digest = hashlib.sha256((token_store / "shards.table").read_bytes()).hexdigest()
  edit(token_store, lambda m: m["tables"].update({"shards.table": digest}), checked=True)
  with refuses("shards.table", name):
    TokenStore.open(token_store, verify="size")


def test_manifest_does_not_grow_with_the_number_of_shards(tmp_path):
  def manifest_bytes(shards):
    write(tmp_path / str(shards), [[5]] * shards, shard_tokens=1)
    return (tmp_path / str(shards) / "manifest.json").stat().st_size

  assert manifest_bytes(100) - manifest_bytes(1) < 10  # only the counts have more digits


@pytest.mark.parametrize(
  "change, key, value",
  [
    (lambda m: m.update(format="t5x_like.token_store.v2"), "format", "make the store again"),
    (lambda m: m.pop("facts"), "facts", "missing"),
    (lambda m: m.update(num_item=1), "num_item", "'num_items'"),
    (lambda m: m.update(num_items="7"), "num_items", "str"),
    (lambda m: m["facts"].update(append_eos=0), "checksum", ""),
    (lambda m: m.update(num_items=m["num_items"] + 1), "checksum", ""),
    (lambda m: m["arrays"][0].update(dtype="object"), "dtype", "'object'"),
    (lambda m: m["arrays"][0].update(width=0), "width", "found 0"),
    (lambda m: m["arrays"][0].update(name="../x"), "arrays", "'../x'"),
    (lambda m: m["arrays"][0].update(name="x.ends"), "arrays", "x.ends"),
    (lambda m: m["arrays"].append(m["arrays"][0]), "arrays", "other names"),
    (lambda m: m["tables"].update({"shards.table": 7}), "tables.shards.table", "int"),
    (lambda m: m.update(num_shards=0), "num_shards", "found 0"),
    (lambda m: m.update(name_digits=10**15), "name_digits", "found 1000000000000000"),
    (lambda m: m.update(fingerprint=None), "fingerprint", "NoneType"),
    (lambda m: m.update(fingerprint="0"), "checksum", ""),
  ],
)
def test_wrong_manifests_are_refused(token_store, change, key, value):
  edit(token_store, change)
  with refuses(f"manifest.json: {key}: ", value):
    TokenStore.open(token_store)


def test_store_with_a_wrong_fact_about_its_tokens_is_refused(token_store):
  edit(token_store, lambda m: m["facts"].update(append_eos=0), checked=True)
  with refuses("manifest.json: facts.append_eos", "found 0"):
    TokenStore.open(token_store, verify="size")


def test_store_with_token_ids_of_another_dtype_is_refused(token_store):
  edit(token_store, lambda m: m["arrays"][0].update(dtype="uint8"), checked=True)
  for file in (token_store / "tokens").iterdir():
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
  with refuses("manifest.json: arrays", "'tokens'", "'uint8'"):
    TokenStore.open(token_store, verify="size")


def test_documents_without_tokens_are_refused(tmp_path):
  vocabulary = ByteVocabulary()
  attributes = dict(name="n", split="x", facts=ids.facts(vocabulary, False), vocabulary=vocabulary)
  items = {TOKENS: (np.array([5, 6], np.uint16), np.array([1, 0, 1]))}
  write_store(tmp_path / "x", items, [ids.array(vocabulary)], **attributes)
  with refuses("shards.table: row 0: found 3 documents"):
    TokenStore.open(tmp_path / "x")


@pytest.mark.parametrize("text", ["", "[1]", "\x00"])
def test_manifest_that_is_not_json_is_refused(token_store, text):
  (token_store / "manifest.json").write_text(text)
  with refuses("manifest.json", "prepare_data"):
    TokenStore.open(token_store)


def test_manifest_that_is_a_pipe_is_refused(token_store):
  (token_store / "manifest.json").unlink()
  os.mkfifo(token_store / "manifest.json")
  with refuses("manifest.json", "found a pipe"):
    TokenStore.open(token_store)


def test_vocabulary_of_another_store_is_refused(token_store):
  ByteVocabulary(extra_ids=7).save(token_store / "vocabulary")
  with refuses("vocabulary", "fingerprint"):
    _ = TokenStore.open(token_store).vocabulary


def test_fingerprint_that_does_not_match_the_content_is_refused(token_store):
  edit(token_store, lambda m: m.update(fingerprint="0" * 64), checked=True)
  with refuses("manifest.json: fingerprint", "'000000000000'"):
    TokenStore.open(token_store, verify="full")


@pytest.mark.parametrize("change", ["zeros", "shorter", "another file", "one bit"])
def test_overwriting_a_shard_after_reading_it_is_detected(change, token_store):
  store = TokenStore.open(token_store)
  store.read_values(TOKENS)
  store.check_unchanged()
  file = token_store / "tokens" / "00000002"
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
  with refuses("tokens/00000002: found SHA-256", error=DamageError):
    reader.check_unchanged()


def test_copying_or_touching_a_shard_is_no_change(token_store, monkeypatch):
  store = TokenStore.open(token_store)
  before = store.read_values(TOKENS)
  file = token_store / "tokens" / "00000002"
  content = file.read_bytes()
  file.unlink()
  file.write_bytes(content)
  os.utime(token_store / "tokens" / "00000001", ns=(1, 1))
  store.check_unchanged()
  monkeypatch.setattr(reader, "_verify_checksum", None)  # the new files are not verified again
  store.check_unchanged()
  np.testing.assert_array_equal(store.read_values(TOKENS), before)


TEMPORARY_ERRORS = (
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


@pytest.mark.parametrize("name", TEMPORARY_ERRORS)
def test_temporary_error_of_a_network_disk_is_retried(name, intact_tokens, monkeypatch):
  """The file is opened again for that, because its descriptor may stay stale."""
  path, documents = intact_tokens
  store = TokenStore.open(path, "size")
  read = os.preadv
  stale_files = []
  store.read_values(TOKENS)

  def preadv(file, *arguments):
    if not stale_files:
      stale_files.append(os.fstat(file).st_ino)
      os.close(file)
      os.open(os.devnull, os.O_RDONLY)  # takes the number of the descriptor
    if os.fstat(file).st_ino == os.stat(os.devnull).st_ino:
      raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)))
    return read(file, *arguments)

  monkeypatch.setattr(os, "preadv", preadv)
  monkeypatch.setattr("time.sleep", lambda seconds: None)
  np.testing.assert_array_equal(store.read_values(TOKENS), np.concatenate(documents))
  assert stale_files


@pytest.mark.parametrize("name", [*TEMPORARY_ERRORS, "EACCES"])
def test_lasting_error_of_a_network_disk_has_the_right_class(name, intact_tokens, monkeypatch):
  store = TokenStore.open(intact_tokens[0], "size")

  def preadv(*_):
    raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)))

  monkeypatch.setattr(os, "preadv", preadv)
  monkeypatch.setenv("T5X_LIKE_RETRY_SECONDS", "0")
  kind = TransientError if name in TEMPORARY_ERRORS else UserError
  with refuses(
    "tokens/0000000", "tried once" if name in TEMPORARY_ERRORS else "copy it again", error=kind
  ):
    store.read_values(TOKENS)
