"""Passages to retrieve, prepared once from the records of a source, and rows of a stream of
examples.

A passage ends with EOS, and is cut to its length, as queries and answers are.
"""

import dataclasses
import hashlib

import numpy as np

from t5x_like.corpora.sources import Skip
from t5x_like.data.supervised import example_store
from t5x_like.data.supervised.example_store import ExampleStore
from t5x_like.data.supervised.labelled import Records
from t5x_like.data.supervised.templates import Template
from t5x_like.errors import UserError
from t5x_like.vocabularies import Vocabulary


@dataclasses.dataclass(frozen=True)
class Passages:
  """All passages of a task.

  Attributes:
    store: the passages, as stream `passage`, with `digest`, a hash of the text.
    length: tokens of a row.
    vocabulary: of the tokens.
  """

  store: ExampleStore
  length: int
  vocabulary: Vocabulary

  @classmethod
  def open(
    cls, source: str, split: str, text: str, length: int, asked: Records, vocabulary: Vocabulary
  ) -> "Passages":
    """Open the passages of a source, preparing them first if necessary.

    Args:
      source, split: of the records.
      text: the template of a passage.
      length: tokens of a row.
      asked: the records of the task, whose other settings apply.
    Raises:
      UserError: an unusable template, source or vocabulary.
    """
    template = Template(text, "passage")

    def example(record, where):
      found = template(record, where)
      return (
        Skip("empty passage")
        if not found
        else {"passage": ids(vocabulary, found), "digest": digest(found)}
      )

    store = example_store.open_store(
      task="passages.v1",
      fields=template.fields,
      facts={"passage": text},
      vocabulary=vocabulary,
      streams={"passage": True},
      examples=lambda found: (example(record, where) for where, record in found),
      **asked.opening | {"source": source, "split": split},
    )
    cut = int((store.lengths["passage"] > length).sum())
    if cut:
      print(
        f"data: {store.path}: {cut:,} of {store.num_examples:,} passages cut to {length} tokens",
        flush=True,
      )
    return cls(store, length, vocabulary)

  @property
  def number(self) -> int:
    return self.store.num_examples

  def rows(self, number_n: np.ndarray) -> np.ndarray:
    """Return passages as int32 [n, length], padded."""
    return padded(self.store, "passage", number_n, self.length, self.vocabulary)[0]

  def with_texts(self, digest_N: np.ndarray) -> np.ndarray:
    """Return the number of the passage with each digest of a text, int64 [N]; -1 for none."""
    own_P = np.asarray(self.store.arrays["digest"])
    order_P = np.argsort(own_P, kind="stable")
    found_N = order_P[np.minimum(np.searchsorted(own_P, digest_N, sorter=order_P), len(own_P) - 1)]
    return np.where(own_P[found_N] == digest_N, found_N, -1)

  def texts(self, number_n: np.ndarray) -> list[str]:
    """Return the texts of passages, as they were cut."""
    special = {self.vocabulary.pad_id, self.vocabulary.eos_id}
    return [
      self.vocabulary.decode([int(i) for i in row if i not in special])
      for row in self.rows(number_n)
    ]


def check_padding(vocabulary: Vocabulary) -> None:
  """Raise UserError for a vocabulary without padding, by which a model tells where passages end."""
  if vocabulary.pad_id is None:
    raise UserError(
      "config.task.vocabulary: it has no padding piece, expected one, by which "
      "passages end; add one"
    )


def ids(vocabulary: Vocabulary, text: str) -> np.ndarray:
  return np.asarray(vocabulary.encode(text), np.int32)


def digest(text: str) -> np.int64:
  return np.int64(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True))


def padded(
  store: ExampleStore, stream: str, example_n: np.ndarray, length: int, vocabulary: Vocabulary
) -> tuple[np.ndarray, np.ndarray]:
  """Read a stream that ends with EOS, cut to `length` and then also ended: (int32, which are real
  bool) [n, length]."""
  whole_n = store.lengths[stream][example_n]
  length_n = np.minimum(whole_n, length)
  found_nS, valid_nS = store.read(stream, example_n, length_n)
  tokens_nL = np.full((len(example_n), length), vocabulary.pad_id, np.int32)
  valid_nL = np.arange(length) < length_n[:, None]
  tokens_nL[valid_nL] = found_nS[valid_nS]
  cut_n = np.flatnonzero(whole_n > length)
  tokens_nL[cut_n, length - 1] = vocabulary.eos_id
  return tokens_nL, valid_nL
