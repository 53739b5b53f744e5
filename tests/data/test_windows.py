"""Windows of a store and the documents in them, against a plain loop."""

import shutil

import numpy as np
import pytest

import corpora
from t5x_like.corpora import builtin
from t5x_like.data.quiet_tensorflow import tf
from t5x_like.data.windows import Windows, open_tokens
from t5x_like.errors import UserError

TOKENS = 1_003
LENGTH = 50


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  return tmp_path_factory.mktemp("corpus")


@pytest.fixture(scope="module")
def lengths(root):
  return corpora.write(root / "train", TOKENS, [1, 13, 50, 7, 0, 0, 111, 2, 30])


@pytest.mark.parametrize("address", ["{}", "file://{}"])
def test_windows_and_documents(root, lengths, address):
  windows = Windows(address.format(root), "train", LENGTH)
  assert windows.num_examples == TOKENS // LENGTH == 20 and windows.vocabulary.size == corpora.SIZE
  index = np.random.default_rng(0).permutation(20)
  document = corpora.document_of(lengths)
  tokens, documents = (
    f(tf.constant(index, tf.int64)).numpy() for f in (windows.read, windows.document_numbers)
  )
  assert tokens.dtype == documents.dtype == np.int32
  for row, i in enumerate(index):
    places = np.arange(i * LENGTH, (i + 1) * LENGTH)
    assert tokens[row].tolist() == (places + corpora.FIRST).tolist()
    _, numbers = np.unique(document[places], return_inverse=True)
    assert documents[row].tolist() == (numbers + 1).tolist()
  assert (
    windows.read(tf.zeros([0], tf.int64)).shape
    == windows.document_numbers(tf.zeros([0], tf.int64)).shape
    == (0, LENGTH)
  )


def test_where_documents_begin(root, lengths):
  tokens = open_tokens(str(root), "train")
  starts = np.unique(np.cumsum([0, *lengths])[:-1])
  starts = starts[starts < TOKENS]
  for start, stop in ((0, TOKENS), (0, 1), (1, 1), (96, 98), (13, 400), (1_000, TOKENS), (50, 51)):
    begins = tokens.document_begins(np.array([start]), stop - start)[0]
    assert (start + np.flatnonzero(begins)).tolist() == [s for s in starts if start <= s < stop]


def test_refusals(root, lengths):
  with pytest.raises(
    UserError, match="found 1003 tokens, expected at least one window of 1004 tokens"
  ):
    Windows(str(root), "train", TOKENS + 1)
  with pytest.raises(UserError, match="length: found 0"):
    Windows(str(root), "train", 0)
  with pytest.raises(UserError, match="no such split; there are train"):
    Windows(str(root), "test", 5)
  assert Windows(builtin.prepare_split, "train", 64).num_examples > 100


def test_a_store_is_opened_once_for_all_who_have_it(tmp_path, capsys):
  corpora.write(tmp_path / "train", TOKENS, [13])
  first, again = (Windows(str(tmp_path), "train", length) for length in (50, 20))
  assert again.tokens is first.tokens and capsys.readouterr().out.count("data: ") == 1
  assert Windows(str(tmp_path), "train", 50, verify="size").tokens is not first.tokens
  shutil.rmtree(tmp_path / "train")
  corpora.write(tmp_path / "train", TOKENS - 1, [13])
  assert Windows(str(tmp_path), "train", 50).tokens.num_tokens == TOKENS - 1
