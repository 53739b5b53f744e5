"""The token store: what is written is what is read, wherever windows lie, and damage is refused by name."""

import hashlib
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from t5x_like.data.store import local_files
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
  assert store.manifest.num_shards >= 6
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
  files = [file for array in ("tokens", "document_ends") for file in (path / array).iterdir()]
  assert len(files) == 2 * TokenStore.open(path).manifest.num_shards
  for file in files:
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


def first_edition(path):
  """Turns a store into what the first edition of the format made of the same documents."""
  shards = np.load(path / "shards.npy").tolist()
  manifest = json.loads((path / "manifest.json").read_text())
  digits = manifest["name_digits"]
  entries = []
  for number, (name, tokens, documents) in enumerate(shards):
    files = {}
    for array, dtype, length in (("tokens", manifest["dtype"], tokens), ("document_ends", "int64", documents)):
      target = path / "shards" / f"{number:05d}" / array
      (target / "c").mkdir(parents=True)
      (path / array / f"{name:0{digits}d}").rename(target / "c" / "0")
      (target / "zarr.json").write_text(json.dumps(zarr_metadata(dtype, length)))
      for file in ("zarr.json", "c/0"):
        data = (target / file).read_bytes()
        files[f"{array}/{file}"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    entries.append({"name": f"{number:05d}", "tokens": tokens, "documents": documents, "files": files})
  for file in ("shards.npy", "checksums.npy", "tokens", "document_ends"):
    shutil.rmtree(path / file) if (path / file).is_dir() else (path / file).unlink()
  for key in ("num_shards", "name_digits", "tables", "checksum"):
    manifest.pop(key)
  manifest |= {"format": "t5x_like.token_store.v1", "shards": entries}
  (path / "manifest.json").write_text(json.dumps(manifest))
  return path


def zarr_metadata(dtype, length):
  little = {"name": "bytes", "configuration": {"endian": "little"}}
  sharding = {"chunk_shape": [16384], "codecs": [little], "index_codecs": [little, {"name": "crc32c"}]}
  return {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [length],
    "data_type": dtype,
    "fill_value": 0,
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [-(-length // 16384) * 16384]}},
    "chunk_key_encoding": {"name": "default"},
    "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
  }


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
  with pytest.raises(UserError, match="00001/tokens/c/0: found SHA-256 .*corrupt"):
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


def open_descriptors():
  return sum(1 for link in pathlib.Path("/proc/self/fd").iterdir() if "corpus_of_many" in os.path.realpath(link))


def test_opening_opens_no_shard_and_the_pool_is_bounded(tmp_path, monkeypatch):
  monkeypatch.setattr(local_files._pool, "_limit", 50)
  documents = random_documents(120, 20)
  store = write(tmp_path / "corpus_of_many", documents, shard_tokens=1)
  assert store.manifest.num_shards == 120 and open_descriptors() == 0
  stream = np.concatenate(documents)
  store.windows([0], 1)
  assert open_descriptors() == 1
  for _ in range(2):
    np.testing.assert_array_equal(store.windows(np.arange(stream.size), 1)[:, 0], stream)
    np.testing.assert_array_equal(store.documents_at([stream.size - 1])[2], [stream.size])
    assert 0 < open_descriptors() <= 50
  del store
  assert open_descriptors() == 0


def test_files_are_closed_for_others_when_they_run_out(tmp_path, monkeypatch):
  store = write(tmp_path / "train", random_documents(8, 20), shard_tokens=1)
  stream = store.windows([0], store.num_tokens)
  opened, failed = os.open, []

  def scarce(path, *args):
    if not failed:
      failed.append(path)
      raise OSError(24, "Too many open files")
    return opened(path, *args)

  local_files._pool._drop(1_000)
  monkeypatch.setattr(os, "open", scarce)
  np.testing.assert_array_equal(store.windows([0], store.num_tokens), stream)
  assert failed


@pytest.mark.parametrize("array", ["tokens", "document_ends"])
def test_files_lost_or_cut_after_opening_are_named(damaged, array):
  def read(store):
    return store.windows([0], store.num_tokens) if array == "tokens" else store.document_ends()

  store = TokenStore.open(damaged)
  file = damaged / array / "00000001"
  content = file.read_bytes()
  file.write_bytes(content[:100])
  with pytest.raises(UserError, match=f"{array}/00000001: found 100 bytes.*truncated"):
    read(store)
  file.unlink()
  with pytest.raises(UserError, match=f"{array}/00000001: cannot be read"):
    read(TokenStore(store.path, local_files.LocalFiles(str(damaged)), b"", store.manifest, store._shards, ""))


@pytest.mark.parametrize("nowait", [True, False])
@pytest.mark.parametrize("longest", [3, 3_000])
def test_documents_are_found_among_many(tmp_path, monkeypatch, nowait, longest):
  """As many as need several steps of the search; of even lengths, and with one that is as long as all others."""
  monkeypatch.setattr(local_files, "_NOWAIT", local_files._NOWAIT if nowait else None)
  generator = np.random.default_rng(longest)
  lengths = np.concatenate([generator.integers(1, 4, 5_000), [longest * 10], generator.integers(1, longest, 3_000)])
  with TokenStoreWriter(
    tmp_path / "train", name="n", split="train", vocabulary=ByteVocabulary(), shard_tokens=10**9 if nowait else 9_000
  ) as writer:
    writer.add(np.full(lengths.sum(), 7), lengths)
  store, ends = TokenStore.open(tmp_path / "train"), np.cumsum(lengths)
  np.testing.assert_array_equal(store.document_ends(), ends)
  places = np.concatenate([[0, ends[-1] - 1], generator.integers(0, ends[-1], 2_000), ends[:300] - 1, ends[:300]])
  documents = np.searchsorted(ends, places, side="right")
  for found, expected in zip(
    store.documents_at(places), (documents, ends[documents] - lengths[documents], ends[documents]), strict=True
  ):
    np.testing.assert_array_equal(found, expected)
  for found, expected in zip(
    store.document_spans(documents), (ends[documents] - lengths[documents], ends[documents]), strict=True
  ):
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("file", ["tokens/00000001", "document_ends/00000001"])
@pytest.mark.parametrize("address", ["{}", "file://{}"])
def test_damaged_files_are_named(damaged, file, address):
  path = damaged / file
  content = path.read_bytes()
  url = address.format(damaged)

  path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
  with pytest.raises(UserError, match=f"{file}.*SHA-256.*corrupt"):
    TokenStore.open(url, verify="full")
  TokenStore.open(url, verify="size")

  for wrong in (content[:-10], content + b"x"):
    path.write_bytes(wrong)
    with pytest.raises(UserError, match=f"{file}.*expected {len(content)} bytes"):
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
    with pytest.raises(UserError, match=f"{file}: found SHA-256 .*corrupt"):
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


def edit(path, change, checked=False):
  manifest = json.loads((path / "manifest.json").read_text())
  change(manifest)
  if checked:
    fields = {key: value for key, value in manifest.items() if key not in ("format", "checksum")}
    manifest["checksum"] = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
  (path / "manifest.json").write_text(json.dumps(manifest))


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

  leftover = tmp_path / ".train.incomplete" / "tokens" / "00000077"  # as a killed run leaves it
  leftover.parent.mkdir(parents=True)
  leftover.write_bytes(b"")
  with pytest.raises(UserError, match="unfinished one is there"):
    TokenStore.open(path)
  write(path, [[5, 6]])
  assert [child.name for child in tmp_path.iterdir()] == ["train"]
  assert not (path / "tokens" / "00000077").exists()

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
  assert manifests.parse(json.loads(text), "here").to_json().encode() == text


def test_a_fingerprint_that_is_not_the_contents_is_found(damaged):
  edit(damaged, lambda m: m.update(fingerprint="0" * 64), checked=True)
  with pytest.raises(UserError, match="manifest.json: fingerprint: found '000000000000', but the content gives"):
    TokenStore.open(damaged, verify="full")
