"""Small token stores, and how to harm them."""

import hashlib
import json

import numpy as np

from t5x_like.store.token_writer import TokenStoreWriter
from t5x_like.store.tokens import TokenStore
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


def many_documents():
  """Documents for some shards of 8,000 tokens, one of them longer than several."""
  return random_documents(200, 400) + [np.full(40_000, 7)] + random_documents(20, 400, seed=1)
