"""Write small stores for tests, and edit their manifests."""

import contextlib
import hashlib
import json

import numpy as np

from t5x_like.files.paths import as_path
from t5x_like.store import ids, writer
from t5x_like.store.tokens import TOKENS, TokenStore
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary


def write_store(path, items, arrays, shard_values=writer.SHARD_VALUES, vocabulary=None, **facts):
  """Write a store.

  Args:
    items: name of an array -> (its values, the number of values of each item).
    shard_values: a shard ends with the first item at which it has this many values in all arrays.
  """
  work = as_path(f"{path}.work")
  shards = []
  first = 0
  ends = {}
  for name, (_, lengths) in items.items():
    ends[name] = np.append(0, np.cumsum(lengths)).astype(int)
  total = np.sum(list(ends.values()), axis=0)
  while first < total.size - 1:
    end = min(int(np.searchsorted(total, total[first] + shard_values)), total.size - 1)
    part = {}
    for name, (values, lengths) in items.items():
      part[name] = (values[ends[name][first] : ends[name][end]], lengths[first:end])
    shards.append(writer.write_shard(work, f"{len(shards):08d}", arrays, part))
    first = end
  facts = dict(skipped={}, source={}) | facts
  writer.publish(work, path, writer.build_metadata(shards, arrays=arrays, **facts), vocabulary)


class TokenStoreWriter(contextlib.AbstractContextManager):
  """A writer of a token store of all documents that are added in its `with` block.

  Documents are added without EOS, which `append_eos` appends to each.
  """

  def __init__(
    self, path, *, vocabulary, append_eos=False, shard_tokens=writer.SHARD_VALUES, **facts
  ):
    self._path = path
    self._vocabulary = vocabulary
    self._append_eos = append_eos
    self._shard_tokens = shard_tokens
    self._facts = facts
    self._documents = []

  def add(self, tokens, lengths):
    lengths = np.asarray(lengths, np.int64)
    self._documents.append(
      ids.prepare(self._vocabulary, self._append_eos, tokens, lengths[lengths > 0], self._path)
    )

  def __exit__(self, kind, error, traceback):
    if kind is None:
      tokens, lengths = map(np.concatenate, zip(*self._documents, strict=True))
      arrays = [ids.array(self._vocabulary)]
      facts = {"facts": ids.facts(self._vocabulary, self._append_eos)} | self._facts
      write_store(
        self._path,
        {TOKENS: (tokens, lengths)},
        arrays,
        self._shard_tokens,
        self._vocabulary,
        **facts,
      )


def write(path, documents, vocabulary=None, **kwargs):
  """Write a token store of documents of ids, and return it."""
  vocabulary = vocabulary or ByteVocabulary()
  header = {"name": "corpus", "split": path.name, "vocabulary": vocabulary}
  with TokenStoreWriter(path, **header, **kwargs) as store_writer:
    for document in documents:
      store_writer.add(document, [len(document)])
  return TokenStore.open(path)


def random_documents(count, longest, size=300, seed=0):
  """Return documents of fewer than `longest` random ids below `size`."""
  generator = np.random.default_rng(seed)
  return [generator.integers(1, size, n) for n in generator.integers(1, longest, count)]


def edit(path, change, checked=False):
  """Change the JSON of a manifest by `change(manifest)`; `checked` updates its checksum too."""
  manifest = json.loads((path / "manifest.json").read_text())
  change(manifest)
  if checked:
    fields = {key: value for key, value in manifest.items() if key not in ("format", "checksum")}
    manifest["checksum"] = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
  (path / "manifest.json").write_text(json.dumps(manifest))


def many_documents():
  """Return documents for some shards of 8,000 tokens; one document fills several shards."""
  return random_documents(200, 400) + [np.full(40_000, 7)] + random_documents(20, 400, seed=1)
