"""Small corpora for the tests of tasks: every token tells where it lies."""

import numpy as np

from stores import TokenStoreWriter
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary

SIZE = 40_000
SENTINELS = 1_000
FIRST = 3  # the id of token 0 of the stream; token i is FIRST + i


def write(
  path, tokens: int, documents, *, shard_tokens: int = 97, name: str = "corpus", append_eos=False
):
  """A store at `path` of `tokens` ascending ids; `documents` are lengths, repeated until the tokens
  are used."""
  vocabulary = ByteVocabulary(extra_ids=SIZE - ByteVocabulary(extra_ids=0).size)
  lengths = lengths_of(tokens, documents)
  about = dict(name=name, split=path.name, vocabulary=vocabulary, append_eos=append_eos)
  with TokenStoreWriter(path, shard_tokens=shard_tokens, **about) as writer:
    writer.add(np.arange(tokens) + FIRST, lengths)
  return lengths


def lengths_of(tokens: int, documents) -> list[int]:
  """The lengths of the documents of a store, as `write` makes it."""
  lengths = []
  while (rest := tokens - sum(lengths)) > 0:
    lengths.append(min(documents[len(lengths) % len(documents)], rest))
  return lengths


def document_of(lengths) -> np.ndarray:
  """The number of its document in the corpus for every token."""
  return np.repeat(np.arange(len(lengths)), lengths)


def assert_same(found, expected):
  assert found.keys() == expected.keys()
  for name in expected:
    np.testing.assert_array_equal(found[name], expected[name], err_msg=name, strict=True)
