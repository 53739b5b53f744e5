"""Passages to retrieve, prepared once from the records of a source and read as padded rows.

Like queries and answers, passages are cut to a length and end with EOS.
"""

import dataclasses
import hashlib
from collections.abc import Iterator

import numpy as np

from t5x_like import data
from t5x_like.corpora.sources import Record, Skip
from t5x_like.data.supervised import example_store
from t5x_like.data.supervised.example_store import Example, ExampleStore
from t5x_like.data.supervised.labelled import LabelledArguments
from t5x_like.data.supervised.templates import Template
from t5x_like.errors import UserError
from t5x_like.vocabularies import Vocabulary


@dataclasses.dataclass(frozen=True)
class Passages:
  """All passages of a task.

  Attributes:
    store: the passages, with the token stream `passage` and the array `digest`, a hash of the text.
    length: tokens of a row.
    vocabulary: the vocabulary of the tokens.
  """

  store: ExampleStore
  length: int
  vocabulary: Vocabulary

  @classmethod
  def open(
    cls,
    source: str,
    split: str,
    text: str,
    length: int,
    task_arguments: LabelledArguments,
    vocabulary: Vocabulary,
  ) -> "Passages":
    """Open the passages of a source, preparing them first if necessary.

    Args:
      source, split: the source of the passages and the split to read.
      text: the template of a passage.
      length: tokens of a row.
      task_arguments: the task's arguments, whose `cache`, `data_dir` and `verify` apply here, too.
      vocabulary: the vocabulary of the tokens.

    Raises:
      UserError: the template, source or vocabulary is unusable.
    """
    template = Template(text, "passage")

    def make_example(record: Record, where: str) -> Example | Skip:
      passage = template(record, where)
      if not passage:
        return Skip("empty passage")
      return {"passage": encode(vocabulary, passage), "digest": text_digest(passage)}

    def make_examples(records: Iterator[tuple[str, Record]]) -> Iterator[Example | Skip]:
      return (make_example(record, where) for where, record in records)

    arguments = task_arguments.store_arguments | {"source": source, "split": split}
    store = example_store.open_store(
      task="passages.v1",
      fields=template.fields,
      facts={"passage": text},
      vocabulary=vocabulary,
      streams={"passage": True},  # ends with EOS
      examples=make_examples,
      **arguments,
    )
    num_cut = int((store.lengths["passage"] > length).sum())
    if num_cut:
      data.announce(
        f"{store.path}: {num_cut:,} of {store.num_examples:,} passages cut to {length} tokens"
      )
    return cls(store, length, vocabulary)

  @property
  def num_passages(self) -> int:
    return self.store.num_examples

  def rows(self, number_n: np.ndarray) -> np.ndarray:
    """Return passages as int32 [n, length], padded."""
    tokens_nL, _ = read_padded(self.store, "passage", number_n, self.length, self.vocabulary)
    return tokens_nL

  def find_digests(self, digest_N: np.ndarray) -> np.ndarray:
    """Return the number of a passage with each digest, int64 [N]; -1 if there is none."""
    digest_P = np.asarray(self.store.arrays["digest"])
    order_P = np.argsort(digest_P, kind="stable")
    rank_N = np.searchsorted(digest_P, digest_N, sorter=order_P)
    passage_N = order_P[np.minimum(rank_N, len(digest_P) - 1)]
    return np.where(digest_P[passage_N] == digest_N, passage_N, -1)

  def texts(self, number_n: np.ndarray) -> list[str]:
    """Return the texts of passages, cut as in `rows`."""
    special = {self.vocabulary.pad_id, self.vocabulary.eos_id}
    return [
      self.vocabulary.decode([int(i) for i in row if i not in special])
      for row in self.rows(number_n)
    ]


def check_padding(vocabulary: Vocabulary) -> None:
  """Raise UserError for a vocabulary without padding, which marks the end of passages."""
  if vocabulary.pad_id is None:
    raise UserError(
      "config.task.vocabulary: found no padding piece, expected one, which marks the end of "
      "passages; add one"
    )


def encode(vocabulary: Vocabulary, text: str) -> np.ndarray:
  """Return the ids of a text, int32 [n]."""
  return np.asarray(vocabulary.encode(text), np.int32)


def text_digest(text: str) -> np.int64:
  """Return a hash of a text."""
  digest = hashlib.sha256(text.encode()).digest()
  return np.int64(int.from_bytes(digest[:8], "little", signed=True))


def read_padded(
  store: ExampleStore, stream: str, example_n: np.ndarray, length: int, vocabulary: Vocabulary
) -> tuple[np.ndarray, np.ndarray]:
  """Read examples of a stream that ends with EOS; where one is cut, EOS is its last token.

  Returns:
    (int32 [n, length], bool [n, length]): tokens with padding, and which of them are not padding.
  """
  full_length_n = store.lengths[stream][example_n]
  length_n = np.minimum(full_length_n, length)
  stored_nS, valid_nS = store.read(stream, example_n, length_n)
  tokens_nL = np.full((len(example_n), length), vocabulary.pad_id, np.int32)
  valid_nL = np.arange(length) < length_n[:, None]
  tokens_nL[valid_nL] = stored_nS[valid_nS]
  cut_n = np.flatnonzero(full_length_n > length)
  tokens_nL[cut_n, length - 1] = vocabulary.eos_id
  return tokens_nL, valid_nL
