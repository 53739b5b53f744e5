"""Small token stores, and how to harm them."""

import hashlib
import json
import shutil

import numpy as np

from t5x_like.store.reader import TokenStore
from t5x_like.store.writer import TokenStoreWriter
from t5x_like.vocabularies import ByteVocabulary


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


def edit(path, change, checked=False):
  """Changes the JSON of a manifest; `checked` also its checksum."""
  manifest = json.loads((path / "manifest.json").read_text())
  change(manifest)
  if checked:
    fields = {key: value for key, value in manifest.items() if key not in ("format", "checksum")}
    manifest["checksum"] = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
  (path / "manifest.json").write_text(json.dumps(manifest))


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


def many_documents():
  """Documents for some shards of 8,000 tokens, one of them longer than an inner chunk."""
  return random_documents(200, 400) + [np.full(40_000, 7)] + random_documents(20, 400, seed=1)
