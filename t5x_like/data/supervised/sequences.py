"""Texts as rows of a model, one or two in each.

`Encoded` for encoders (Devlin et al. 2019): [CLS] a [SEP] or [CLS] a [SEP] b [SEP], with token
types 0 and 1. Published tokenizers may put more between two texts: RoBERTa's rows are <s> a
</s></s> b </s> (Liu et al. 2019, section 2.1). `Delimited` for decoders (Radford et al. 2018,
section 3.3): start a extract, or start a delimiter b extract. The start token is every decoder's;
the delimiter and the extract token are SEP and CLS. Worked example of the latter, texts [5, 6] and
[7]:

    decoder_input_tokens   start 5 6 delimiter 7 extract 0     decoder_segment_ids    1 1 1 1 1 1 0
    decoder_target_tokens  5 6 delimiter 7 extract 0 0         decoder_loss_weights   1 1 1 1 0 0 0

A vocabulary without these pieces lends sentinels, see `vocabularies.special_id`. Published
vocabularies of decoders often have neither; EOS then stands in these places, which a causal model
tells apart by the tokens before them.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

import numpy as np

from t5x_like import vocabularies
from t5x_like.data.supervised.example_store import ExampleStore
from t5x_like.data.supervised.too_long import TooLong, fit, truncated
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
    self._store, self._streams, self._length, self._between = store, tuple(streams), length, between
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
    """Return the features of rows with the first `lengths` tokens of each stream, after `skip` of
    the last stream."""

  def fitted(self, too_long: TooLong) -> tuple[np.ndarray, np.ndarray]:
    """Return the examples to use, int64 [n], and the lengths of their texts, [n, D]; the longer
    text is cut first."""
    lengths_ND = np.stack([self._store.lengths[name] for name in self._streams], axis=1)
    used, total_n1 = fit(
      lengths_ND.sum(axis=1, keepdims=True), (self.room,), too_long, self._store.path, ("length",)
    )
    lengths_nD = lengths_ND[used]
    total_n = total_n1[:, 0]
    if len(self._streams) == 1:
      return used, total_n1
    short_n = np.minimum(
      lengths_nD.min(axis=1), np.maximum(self.room // 2, total_n - lengths_nD.max(axis=1))
    )
    first_n = np.where(lengths_nD[:, 0] <= lengths_nD[:, 1], short_n, total_n - short_n)
    return used, np.stack([first_n, total_n - first_n], axis=1)

  def truncated(self, used: np.ndarray, lengths_nD: np.ndarray) -> float:
    """Return the share of the examples used that `fitted` has shortened."""
    return truncated(
      np.stack([self._store.lengths[name] for name in self._streams], axis=1), used, lengths_nD
    )

  def _joined(self, example_B, lengths_BD, skip_B, ids: Sequence[int], pad: int, width: int):
    """Return (int32 [B, width]: the first of `ids`, then every stream and the next of `ids`; int64
    [B, D], the end of each stream behind its id)."""
    tokens_BS = np.full((example_B.size, width), pad, np.int32)
    tokens_BS[:, 0] = ids[0]
    rows = np.arange(example_B.size)
    last = len(self._streams) - 1
    ends_BD = np.cumsum(lengths_BD, axis=1) + 2 + self._between * np.arange(last + 1)
    for number, stream in enumerate(self._streams):
      length_B = lengths_BD[:, number]
      end_B = ends_BD[:, number]
      skip = skip_B if number == last else 0
      part_BL, valid_BL = self._store.read(stream, example_B, length_B, skip)
      at_BL = (end_B - 1 - length_B)[:, None] + np.arange(part_BL.shape[1])
      tokens_BS[np.broadcast_to(rows[:, None], at_BL.shape)[valid_BL], at_BL[valid_BL]] = part_BL[
        valid_BL
      ]
      for after in range(self._between if number < last else 1):
        tokens_BS[rows, end_B - 1 + after] = ids[number + 1]
    return tokens_BS, ends_BD


def between(vocabulary: Vocabulary) -> int:
  """Return the number of special tokens between two texts in an encoder's rows, at least 1: 2 in
  RoBERTa's."""
  return max(1, vocabulary.between()) if hasattr(vocabulary, "between") else 1


class Encoded(Sequences):
  """Rows of an encoder, with `apart` special tokens between two texts; by default as many as the
  vocabulary's.

  Raises:
    UserError: also if the vocabulary has no padding.
  """

  def __init__(
    self, store: ExampleStore, streams: Sequence[str], length: int, apart: int | None = None
  ):
    super().__init__(store, streams, length, apart or between(store.vocabulary))
    if store.vocabulary.pad_id is None:
      raise UserError(
        f"{store.path}: its vocabulary has no padding piece, expected one, by which encoders tell "
        "padding; add one to the published tokenizer (tokenizer.add_special_tokens, then "
        "model.resize_token_embeddings)"
      )
    cls_id, sep_id = (vocabularies.special_id(store.vocabulary, name) for name in ("cls", "sep"))
    self._ids = [cls_id, *[sep_id] * len(streams)]

  def __call__(self, example_B, lengths_BD, skip_B=0) -> dict[str, np.ndarray]:
    pad = self._store.vocabulary.pad_id
    tokens, ends_BD = self._joined(example_B, lengths_BD, skip_B, self._ids, pad, self._length)
    places = np.arange(self._length)
    types = (places >= ends_BD[:, :1]) & (places < ends_BD[:, -1:])
    return {"encoder_input_tokens": tokens, "encoder_token_types": types}


class Delimited(Sequences):
  """Rows of a decoder."""

  def __init__(self, store: ExampleStore, streams: Sequence[str], length: int):
    super().__init__(store, streams, length)
    between = ["sep"] * (len(streams) - 1)
    vocabulary = store.vocabulary
    lent = vocabulary.extra_ids > 0 or getattr(vocabulary, "cls_id", None) is not None
    after = [
      vocabularies.special_id(vocabulary, name) if lent else vocabulary.eos_id
      for name in (*between, "cls")
    ]
    self._ids = [vocabularies.start_id(vocabulary), *after]

  def __call__(self, example_B, lengths_BD, skip_B=0) -> dict[str, np.ndarray]:
    tokens, ends_BD = self._joined(example_B, lengths_BD, skip_B, self._ids, 0, self._length + 1)
    places = np.arange(self._length)
    end_B1 = ends_BD[:, -1:]
    return {
      "decoder_input_tokens": tokens[:, :-1],
      "decoder_target_tokens": tokens[:, 1:],
      "decoder_loss_weights": places < end_B1 - 2,
      "decoder_segment_ids": places < end_B1,
    }


def layout(architecture: str, vocabulary: Vocabulary) -> dict[str, int]:
  """Return the facts of rows of two texts beside their length; none where one token stands between
  them."""
  apart = between(vocabulary) if architecture == "encoder" else 1
  return {} if apart == 1 else {"between": apart}


def sequences(architecture: str) -> type[Sequences]:
  """Return the rows of an architecture."""
  return Encoded if architecture == "encoder" else Delimited


def stacked(rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """Stack the features of several rows of each example: [B, R, length]."""
  return {name: np.stack([row[name] for row in rows], axis=1) for name in rows[0]}
