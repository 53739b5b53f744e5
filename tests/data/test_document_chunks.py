"""Chunks of documents, and stretches of others, of stores too large to write."""

import types

import numpy as np
import pytest

from t5x_like.data import random
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.store.document_chunks import Chunks

SIZE = 64  # tokens of every document


class Uniform:
  """A store of equal documents, in which the token at place i is i // SIZE modulo 2^31."""

  def __init__(self, num_documents: int):
    self.num_documents, self.num_tokens = num_documents, num_documents * SIZE
    self.manifest = types.SimpleNamespace(append_eos=False)

  def windows(self, starts_B, length):
    return ((starts_B[:, None] + np.arange(length)) // SIZE % 2**31).astype(np.int32)

  def documents_at(self, places_N):
    return places_N // SIZE, places_N // SIZE * SIZE, places_N // SIZE * SIZE + SIZE

  def document_spans(self, documents_N):
    assert (0 <= documents_N).all() and (documents_N < self.num_documents).all()
    return documents_N * SIZE, documents_N * SIZE + SIZE


@pytest.mark.parametrize("num_documents", [3, 2**31 + 5, 3 * 2**31, 2**32, 2**35 + 7])
def test_other_documents_are_drawn_from_all(num_documents):
  """Also from more than 2^31, and from more than there are 32-bit words."""
  drawn, store = [], Uniform(num_documents)
  document_spans = store.document_spans
  store.document_spans = lambda documents: drawn.append(documents) or document_spans(documents)
  index = np.random.default_rng(0).integers(0, num_documents, 4_000)
  key_B = random.row_keys(0, tf.range(4_000))
  chunk, size, other, other_size, place, _ = Chunks(store, SIZE).read_with_others(tf.constant(index), key_B)
  assert (size.numpy() == SIZE).all() and (chunk.numpy() == (index % 2**31)[:, None]).all()
  (documents,) = drawn
  assert (documents != index).all() and (other.numpy()[:, 0] == documents % 2**31).all()
  assert (0 <= place.numpy()).all() and (place.numpy() < other_size.numpy()).all()
  thirds = np.bincount((documents * 3 // num_documents).astype(int), minlength=3)
  assert thirds.min() > 4_000 / 3 * 0.9
