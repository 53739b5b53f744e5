"""Rows of a model, each with one or two texts.

`Encoded` makes rows of encoders (Devlin et al. 2019): [CLS] a [SEP] or [CLS] a [SEP] b [SEP], with
token types 0 and 1. Published tokenizers may put more between two texts: RoBERTa's rows are <s> a
</s></s> b </s> (Liu et al. 2019, section 2.1).

`Delimited` makes rows of decoders (Radford et al. 2018, section 3.3): start a extract, or start a
delimiter b extract. The start token begins the rows of all decoders; the delimiter and the extract
token are SEP and CLS. Worked example, texts [5, 6] and [7]:

    decoder_input_tokens   start 5 6 delimiter 7 extract 0     decoder_segment_ids    1 1 1 1 1 1 0
    decoder_target_tokens  5 6 delimiter 7 extract 0 0         decoder_loss_weights   1 1 1 1 0 0 0

In a vocabulary without these pieces, sentinels serve instead, see `vocabularies.special_id`.
Published vocabularies of decoders often have neither; EOS then stands in these positions, which a
causal model distinguishes by the tokens before them.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

import numpy as np

from t5x_like import vocabularies
from t5x_like.data.supervised.example_store import ExampleStore
from t5x_like.data.supervised.too_long import TooLong, fit, truncated_share
from t5x_like.errors import UserError
from t5x_like.vocabularies import Vocabulary


class Sequences(abc.ABC):
  """Rows of one or two streams of a store.

  Args:
    store: the store of the streams, without EOS.
    streams: one or two names, in the order of the row.
    length: length of a row, its special tokens included.
    between: the number of special tokens between two texts.

  Attributes:
    extra: the number of special tokens in a row.
    room: the number of other tokens in it.

  Raises:
    UserError: a row has no room for a token of each stream.
  """

  def __init__(self, store: ExampleStore, streams: Sequence[str], length: int, between: int = 1):
    self._store = store
    self._streams = tuple(streams)
    self._length = length
    self._between = between
    self.extra = 2 + between * (len(self._streams) - 1)
    self.room = length - self.extra
    if self.room < len(self._streams):
      raise UserError(
        f"config.task.length: found {length}, expected at least {self.extra + len(self._streams)}"
      )

  @abc.abstractmethod
  def __call__(
    self, example_B: np.ndarray, lengths_BD: np.ndarray, skip_B: np.ndarray | int = 0
  ) -> dict[str, np.ndarray]:
    """Return the features of rows.

    Args:
      example_B: the example of each row.
      lengths_BD: the number of tokens from each stream, from its beginning.
      skip_B: the tokens of the last stream to skip.
    """

  def fit(self, too_long: TooLong) -> tuple[np.ndarray, np.ndarray]:
    """Return the examples to use, int64 [n], and the lengths of their texts, [n, D].

    If two texts are too long together, the longer one is shortened until both are equally long,
    then both.

    Args:
      too_long: what happens to examples that are too long, see `too_long.fit`.
    """
    lengths_ND = self._lengths()
    total_N1 = lengths_ND.sum(axis=1, keepdims=True)
    used, total_n1 = fit(total_N1, (self.room,), too_long, self._store.path, ("length",))
    if len(self._streams) == 1:
      return used, total_n1
    lengths_nD = lengths_ND[used]
    total_n = total_n1[:, 0]
    max_short_n = np.maximum(self.room // 2, total_n - lengths_nD.max(axis=1))
    short_n = np.minimum(lengths_nD.min(axis=1), max_short_n)
    first_n = np.where(lengths_nD[:, 0] <= lengths_nD[:, 1], short_n, total_n - short_n)
    return used, np.stack([first_n, total_n - first_n], axis=1)

  def truncated_share(self, used: np.ndarray, lengths_nD: np.ndarray) -> float:
    """Return the share of the examples used that `fit` has shortened."""
    return truncated_share(self._lengths(), used, lengths_nD)

  def _lengths(self) -> np.ndarray:
    """Return the tokens of all examples in each stream, int64 [N, D]."""
    return np.stack([self._store.lengths[name] for name in self._streams], axis=1)

  def _join(
    self,
    example_B: np.ndarray,
    lengths_BD: np.ndarray,
    skip_B: np.ndarray | int,
    special_ids: Sequence[int],
    pad: int,
    width: int,
  ) -> tuple[np.ndarray, np.ndarray]:
    """Join the streams of rows with the special tokens before, between and after them.

    Returns:
      (int32 [B, width]: the first of `special_ids`, then every stream and the next of
      `special_ids`; int64 [B, D], the end of each stream after its id).
    """
    tokens_BS = np.full((example_B.size, width), pad, np.int32)
    tokens_BS[:, 0] = special_ids[0]
    rows = np.arange(example_B.size)
    last = len(self._streams) - 1
    ends_BD = np.cumsum(lengths_BD, axis=1) + 2 + self._between * np.arange(last + 1)
    for number, stream in enumerate(self._streams):
      length_B = lengths_BD[:, number]
      end_B = ends_BD[:, number]
      is_last = number == last
      part_BL, valid_BL = self._store.read(stream, example_B, length_B, skip_B if is_last else 0)
      position_BL = (end_B - 1 - length_B)[:, None] + np.arange(part_BL.shape[1])
      row_BL = np.broadcast_to(rows[:, None], position_BL.shape)
      tokens_BS[row_BL[valid_BL], position_BL[valid_BL]] = part_BL[valid_BL]
      num_separators = 1 if is_last else self._between
      for separator in range(num_separators):
        tokens_BS[rows, end_B - 1 + separator] = special_ids[number + 1]
    return tokens_BS, ends_BD


def separators_between(vocabulary: Vocabulary) -> int:
  """Return the number of special tokens between two texts in an encoder's rows, 1 or more."""
  if not hasattr(vocabulary, "count_pair_separators"):
    return 1
  return max(1, vocabulary.count_pair_separators())


class Encoded(Sequences):
  """Rows of an encoder.

  Args:
    store, streams, length: see `Sequences`.
    between: the number of special tokens between two texts; by default the vocabulary's.

  Raises:
    UserError: the vocabulary has no padding, or as `Sequences`.
  """

  def __init__(
    self, store: ExampleStore, streams: Sequence[str], length: int, between: int | None = None
  ):
    super().__init__(store, streams, length, between or separators_between(store.vocabulary))
    if store.vocabulary.pad_id is None:
      raise UserError(
        f"{store.path}: its vocabulary has no padding piece, expected one, by which encoders "
        "recognise padding; add one to the published tokenizer (tokenizer.add_special_tokens, then "
        "model.resize_token_embeddings)"
      )
    cls_id = vocabularies.special_id(store.vocabulary, "cls")
    sep_id = vocabularies.special_id(store.vocabulary, "sep")
    self._special_ids = [cls_id] + [sep_id] * len(streams)

  def __call__(self, example_B, lengths_BD, skip_B=0) -> dict[str, np.ndarray]:
    pad = self._store.vocabulary.pad_id
    tokens, ends_BD = self._join(
      example_B, lengths_BD, skip_B, self._special_ids, pad, self._length
    )
    positions = np.arange(self._length)
    types = (positions >= ends_BD[:, :1]) & (positions < ends_BD[:, -1:])
    return {"encoder_input_tokens": tokens, "encoder_token_types": types}


class Delimited(Sequences):
  """Rows of a decoder."""

  def __init__(self, store: ExampleStore, streams: Sequence[str], length: int):
    super().__init__(store, streams, length)
    vocabulary = store.vocabulary
    if vocabulary.extra_ids > 0 or getattr(vocabulary, "cls_id", None) is not None:
      delimiter = vocabularies.special_id(vocabulary, "sep") if len(streams) > 1 else None
      extract = vocabularies.special_id(vocabulary, "cls")
    else:
      delimiter = vocabulary.eos_id
      extract = vocabulary.eos_id
    delimiters = [delimiter] * (len(streams) - 1)
    self._special_ids = [vocabularies.start_id(vocabulary), *delimiters, extract]

  def __call__(self, example_B, lengths_BD, skip_B=0) -> dict[str, np.ndarray]:
    tokens, ends_BD = self._join(
      example_B, lengths_BD, skip_B, self._special_ids, 0, self._length + 1
    )
    positions = np.arange(self._length)
    end_B1 = ends_BD[:, -1:]
    return {
      "decoder_input_tokens": tokens[:, :-1],
      "decoder_target_tokens": tokens[:, 1:],
      "decoder_loss_weights": positions < end_B1 - 2,
      "decoder_segment_ids": positions < end_B1,
    }


def layout_facts(architecture: str, vocabulary: Vocabulary) -> dict[str, int]:
  """Return the part of a fingerprint that describes rows of two texts, besides their length.

  It is empty if there is one token between the texts.
  """
  if architecture != "encoder":
    return {}
  between = separators_between(vocabulary)
  return {} if between == 1 else {"between": between}


def rows_class(architecture: str) -> type[Sequences]:
  """Return the class of an architecture's rows."""
  return Encoded if architecture == "encoder" else Delimited


def stack(rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """Stack the features of several rows of each example: [B, R, length]."""
  return {name: np.stack([row[name] for row in rows], axis=1) for name in rows[0]}
