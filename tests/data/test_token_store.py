"""The token store: what is written is what is read, wherever windows lie, and damage is refused by name."""

import json
import os
import shutil

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from t5x_like.data.store import manifest as manifests
from t5x_like.data.store.reader import TokenStore
from t5x_like.data.store.writer import TokenStoreWriter
from t5x_like.data.vocabularies import ByteVocabulary
from t5x_like.errors import UserError


def write(path, documents, vocabulary=None, **kwargs):
  with TokenStoreWriter(
    path, name="corpus", split=path.name, vocabulary=vocabulary or ByteVocabulary(), **kwargs
  ) as writer:
    for document in documents:
      writer.add(document, [len(document)])
  return TokenStore.open(path)


def random_documents(count, longest, size=300, seed=0):
  generator = np.random.default_rng(seed)
  return [generator.integers(1, size, n) for n in generator.integers(1, longest, count)]


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
  """A store of 7 shards, one of them longer than an inner chunk, and its token stream."""
  documents = random_documents(200, 400) + [np.full(40_000, 7)] + random_documents(20, 400, seed=1)
  path = tmp_path_factory.mktemp("intact") / "train"
  store = write(path, documents, shard_tokens=8_000)
  assert len(store.manifest.shards) >= 6
  return path, documents


@pytest.fixture
def damaged(intact, tmp_path):
  return shutil.copytree(intact[0], tmp_path / "train")


def test_documents_come_back_in_order(intact):
  path, documents = intact
  store = TokenStore.open(path)
  assert (store.num_documents, store.num_tokens) == (len(documents), sum(map(len, documents)))
  np.testing.assert_array_equal(store.document_ends(), np.cumsum([len(document) for document in documents]))
  np.testing.assert_array_equal(store.windows([0], store.num_tokens)[0], np.concatenate(documents))
  assert store.vocabulary.fingerprint == ByteVocabulary().fingerprint


@pytest.mark.parametrize("address", ["{}", "file://{}"])
def test_windows_anywhere_locally_and_through_tensorstore(intact, address):
  path, documents = intact
  store, stream = TokenStore.open(address.format(path)), np.concatenate(documents)
  for length in (1, 568, 20_000):  # the last spans several shards
    starts = np.random.default_rng(length).integers(0, stream.size - length + 1, 40)
    starts[:2] = 0, stream.size - length
    windows = store.windows(starts, length)
    assert windows.dtype == np.int32
    np.testing.assert_array_equal(windows, stream[starts[:, None] + np.arange(length)])
  np.testing.assert_array_equal(store.document_ends(), TokenStore.open(path).document_ends())
  assert store.vocabulary.size == ByteVocabulary().size
  with pytest.raises(ValueError, match="outside"):
    store.windows([stream.size - 5], 6)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
  st.lists(st.lists(st.integers(1, 70_000), min_size=0, max_size=40), min_size=1, max_size=12).filter(
    lambda documents: any(documents)
  ),
  st.integers(1, 100),
  st.booleans(),
  st.sampled_from([70_100, 65_536]),
)
def test_any_documents_any_shards(tmp_path, documents, shard_tokens, append_eos, size):
  shutil.rmtree(tmp_path / "any", ignore_errors=True)
  documents = [[min(token, size - 1) for token in document] for document in documents]
  store = write(
    tmp_path / "any", documents, ByteVocabulary(extra_ids=size - 259), shard_tokens=shard_tokens, append_eos=append_eos
  )
  assert store.manifest.dtype == ("uint16" if size <= 65_536 else "int32")
  stream = [token for document in documents if document for token in [*document, *[1] * append_eos]]
  assert store.windows([0], store.num_tokens)[0].tolist() == stream
  assert len(store.document_ends()) == sum(map(bool, documents))


def test_bytes_and_fingerprint_do_not_depend_on_batching(intact, tmp_path):
  path, documents = intact
  with TokenStoreWriter(
    tmp_path / "train", name="other name", split="x", vocabulary=ByteVocabulary(), shard_tokens=8_000
  ) as writer:
    for i in range(0, len(documents), 50):
      part = documents[i : i + 50]
      writer.add(np.concatenate(part), [len(document) for document in part])
  for file in sorted((path / "shards").rglob("*")):
    if file.is_file():
      assert file.read_bytes() == (tmp_path / "train" / file.relative_to(path)).read_bytes()
  assert TokenStore.open(tmp_path / "train").fingerprint == TokenStore.open(path).fingerprint


def test_fingerprint_sees_content_vocabulary_and_eos(tmp_path):
  documents = random_documents(5, 50)
  stores = [
    write(tmp_path / "a", documents),
    write(tmp_path / "b", documents[::-1]),
    write(tmp_path / "c", documents, ByteVocabulary(extra_ids=130)),
    write(tmp_path / "d", documents, append_eos=True),
  ]
  assert len({store.fingerprint for store in stores}) == 4


def test_files_are_plain_zarr(intact):
  path, documents = intact
  array = ts.open({"driver": "zarr3", "kvstore": f"file://{path}/shards/00000/tokens/"}).result()
  assert array.dtype.name == "uint16"
  np.testing.assert_array_equal(array.read().result(), np.concatenate(documents)[: array.shape[0]])


def test_opening_maps_nothing_and_survives_many_shards(tmp_path):
  store = write(tmp_path / "train", random_documents(120, 20), shard_tokens=1)
  assert len(store.manifest.shards) == 120
  assert not any(tokens is not None for tokens in store._tokens)
  store.windows([0], 1)
  assert sum(tokens is not None for tokens in store._tokens) == 1


@pytest.mark.parametrize("file", ["tokens/c/0", "tokens/zarr.json", "document_ends/c/0"])
@pytest.mark.parametrize("address", ["{}", "file://{}"])
def test_damaged_files_are_named(damaged, file, address):
  path = damaged / "shards" / "00001" / file
  content = path.read_bytes()
  url = address.format(damaged)

  path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
  with pytest.raises(UserError, match=f"00001/{file}.*SHA-256.*corrupt"):
    TokenStore.open(url, verify="full")
  TokenStore.open(url, verify="size")

  for wrong in (content[:-10], content + b"x"):
    path.write_bytes(wrong)
    with pytest.raises(UserError, match=f"00001/{file}.*expected {len(content)} bytes"):
      TokenStore.open(url, verify="size")
  path.unlink()
  with pytest.raises(UserError, match=f"00001/{file}: found no such file"):
    TokenStore.open(url, verify="size")


def edit(path, change):
  manifest = json.loads((path / "manifest.json").read_text())
  change(manifest)
  (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
  "change, message",
  [
    (lambda m: m.update(format="v0"), "format: found 'v0'"),
    (lambda m: m.pop("dtype"), "dtype: missing"),
    (lambda m: m.update(num_token=1), "num_token: unknown field.*did you mean 'num_tokens'"),
    (lambda m: m.update(num_tokens="7"), "num_tokens: found str, expected int"),
    (lambda m: m.update(append_eos=0), "append_eos: found int, expected bool"),
    (lambda m: m.update(num_documents=m["num_documents"] + 1), "num_documents: .*the sum over the shards"),
    (lambda m: m["shards"][0].update(name="../x"), r"shards\[0\].name"),
    (lambda m: m["shards"][0]["files"].pop("tokens/c/0"), r"shards\[0\].files"),
    (lambda m: m["vocabulary"].update(size=7), "fingerprint: .*edited or damaged"),
    (lambda m: m.update(fingerprint=None), "fingerprint: .*edited or damaged"),
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
  with pytest.raises(UserError, match="manifest.json: cannot be read .not a regular file."):
    TokenStore.open(damaged)


def test_missing_stores_say_how_to_make_one(intact, tmp_path):
  with pytest.raises(UserError, match="no such directory.*tools.prepare_data --source"):
    TokenStore.open(tmp_path / "nowhere" / "train")
  with pytest.raises(UserError, match="no such split; there are train"):
    TokenStore.open(intact[0].parent / "validation")
  (tmp_path / "empty").mkdir()
  with pytest.raises(UserError, match="without manifest.json"):
    TokenStore.open(tmp_path / "empty")
  with pytest.raises(UserError, match="zzz://"):
    TokenStore.open("zzz://bucket/train")
  with pytest.raises(UserError, match="no token store"):
    TokenStore.open(f"file://{tmp_path}/train")


def test_vocabulary_of_another_store_is_refused(damaged):
  ByteVocabulary(extra_ids=7).save(damaged / "vocabulary")
  with pytest.raises(UserError, match="vocabulary: fingerprint: found"):
    _ = TokenStore.open(damaged).vocabulary


def test_writer_publishes_all_or_nothing(tmp_path):
  path = tmp_path / "train"
  with pytest.raises(RuntimeError, match="stop"):
    with TokenStoreWriter(path, name="n", split="train", vocabulary=ByteVocabulary(), shard_tokens=1) as writer:
      writer.add([5], [1])
      raise RuntimeError("stop")
  assert list(tmp_path.iterdir()) == []

  leftover = tmp_path / ".train.incomplete" / "shards" / "00077"  # as a killed run leaves it
  leftover.mkdir(parents=True)
  with pytest.raises(UserError, match="unfinished one is there"):
    TokenStore.open(path)
  write(path, [[5, 6]])
  assert [child.name for child in tmp_path.iterdir()] == ["train"]
  assert not (path / "shards" / "00077").exists()

  with pytest.raises(UserError, match="exists already"):
    write(path, [[5, 6]])


def test_writer_refuses(tmp_path):
  path = tmp_path / "train"
  with TokenStoreWriter(path, name="n", split="train", vocabulary=ByteVocabulary()) as writer:
    writer.add([5], [1])
    with pytest.raises(UserError, match="another process is writing"):
      write(path, [[5]])
  for documents, message in (([[5, 0]], "found id 0"), ([[384]], "found id 384"), ([[]], "no documents")):
    with pytest.raises(UserError, match=message):
      write(tmp_path / "other", documents)
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError, match="cannot be written"):
    write(tmp_path / "file" / "train", [[5]])
  with pytest.raises(UserError, match="local directory"):
    TokenStoreWriter("gs://bucket/train", name="n", split="train", vocabulary=ByteVocabulary())


def test_manifest_text_round_trips(intact):
  text = (intact[0] / "manifest.json").read_bytes()
  assert manifests.parse(text, "here").to_json().encode() == text
