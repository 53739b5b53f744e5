"""Small corpora for the tests of tasks, in which the id of a token is its position."""

import numpy as np

from stores import TokenStoreWriter
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary

SIZE = 40_000
SENTINELS = 1_000
FIRST = 3  # the id of the first token; token i has the id FIRST + i


def write(
  path, tokens: int, documents, *, shard_tokens: int = 97, name: str = "corpus", append_eos=False
):
  """Write a store of `tokens` ascending ids and return the lengths of its documents.

  Args:
    documents: lengths of documents, repeated until the tokens are used.
  """
  vocabulary = ByteVocabulary(extra_ids=SIZE - ByteVocabulary(extra_ids=0).size)
  lengths = lengths_of(tokens, documents)
  header = dict(name=name, split=path.name, vocabulary=vocabulary, append_eos=append_eos)
  with TokenStoreWriter(path, shard_tokens=shard_tokens, **header) as writer:
    writer.add(np.arange(tokens) + FIRST, lengths)
  return lengths


def lengths_of(tokens: int, documents) -> list[int]:
  """Return the lengths of the documents that `write` writes."""
  lengths = []
  remaining = tokens
  while remaining > 0:
    length = documents[len(lengths) % len(documents)]
    lengths.append(min(length, remaining))
    remaining -= lengths[-1]
  return lengths


def document_of(lengths) -> np.ndarray:
  """Return, for every token, the number of its document."""
  return np.repeat(np.arange(len(lengths)), lengths)


def assert_same(actual, expected):
  """Assert that two batches have the same features."""
  assert actual.keys() == expected.keys()
  for name in expected:
    np.testing.assert_array_equal(actual[name], expected[name], err_msg=name, strict=True)
