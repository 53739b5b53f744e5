"""Windows of a store hold the same tokens and document numbers as a plain loop."""

import shutil

import numpy as np
import pytest

import corpora
from refusals import refuses
from t5x_like.corpora import builtin
from t5x_like.data.windows import Windows, open_tokens
from t5x_like.quiet_tensorflow import tf

TOKENS = 1_003
LENGTH = 50


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  return tmp_path_factory.mktemp("corpus")


@pytest.fixture(scope="module")
def lengths(root):
  return corpora.write(root / "train", TOKENS, [1, 13, 50, 7, 0, 0, 111, 2, 30])


@pytest.mark.parametrize("location", ["{}", "file://{}"])
def test_windows_hold_consecutive_tokens_and_number_their_documents(root, lengths, location):
  windows = Windows(location.format(root), "train", LENGTH)
  assert windows.num_examples == TOKENS // LENGTH == 20
  assert windows.vocabulary.size == corpora.SIZE
  index = np.random.default_rng(0).permutation(20)
  document = corpora.document_of(lengths)
  tokens = windows.read(tf.constant(index, tf.int64)).numpy()
  documents = windows.document_numbers(tf.constant(index, tf.int64)).numpy()
  assert tokens.dtype == documents.dtype == np.int32
  for row, i in enumerate(index):
    positions = np.arange(i * LENGTH, (i + 1) * LENGTH)
    assert tokens[row].tolist() == (positions + corpora.FIRST).tolist()
    _, numbers = np.unique(document[positions], return_inverse=True)
    assert documents[row].tolist() == (numbers + 1).tolist()


def test_zero_windows_are_empty_arrays(root, lengths):
  windows = Windows(str(root), "train", LENGTH)
  no_index = tf.zeros([0], tf.int64)
  assert windows.read(no_index).shape == (0, LENGTH)
  assert windows.document_numbers(no_index).shape == (0, LENGTH)


def test_document_begins_follow_from_the_lengths(root, lengths):
  tokens = open_tokens(str(root), "train")
  starts = np.unique(np.cumsum([0, *lengths])[:-1])
  starts = starts[starts < TOKENS]
  for start, stop in ((0, TOKENS), (0, 1), (1, 1), (96, 98), (13, 400), (1_000, TOKENS), (50, 51)):
    begins = tokens.document_begins(np.array([start]), stop - start)[0]
    assert (start + np.flatnonzero(begins)).tolist() == [s for s in starts if start <= s < stop]


@pytest.mark.parametrize(
  "split, length, words",
  [
    ("train", TOKENS + 1, "found 1003 tokens, expected at least one window of 1004 tokens"),
    ("train", 0, "length: found 0"),
    ("test", 5, "no such split; there are train"),
  ],
)
def test_impossible_windows_are_refused(split, length, words, root, lengths):
  with refuses(words):
    Windows(str(root), split, length)


def test_store_can_be_a_function_that_prepares_a_split():
  assert Windows(builtin.prepare_split, "train", 64).num_examples > 100


def test_store_is_opened_once_until_it_changes(tmp_path, capsys):
  corpora.write(tmp_path / "train", TOKENS, [13])
  first = Windows(str(tmp_path), "train", 50)
  second = Windows(str(tmp_path), "train", 20)
  assert second.tokens is first.tokens
  assert capsys.readouterr().out.count("data: ") == 1
  assert Windows(str(tmp_path), "train", 50, verify="size").tokens is not first.tokens
  shutil.rmtree(tmp_path / "train")
  corpora.write(tmp_path / "train", TOKENS - 1, [13])
  assert Windows(str(tmp_path), "train", 50).tokens.num_tokens == TOKENS - 1
