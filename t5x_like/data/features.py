"""Features of examples: names, shapes and dtypes, without TensorFlow, a corpus or a store.

A task declares its features in `TaskArguments.features`, so that a plan compiles without data. The
functions below describe layouts that several tasks share.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from t5x_like import vocabularies
from t5x_like.errors import UserError

if TYPE_CHECKING:
  import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Feature:
  """The shape of a feature, without the batch axis, and the name of its dtype."""

  shape: tuple[int, ...]
  dtype: str


Features = dict[str, Feature]
# The type of `Task.batch`, which documents it.
BatchFunction = Callable[["tf.Tensor", "tf.Tensor", int], dict[str, "tf.Tensor"]]


def load_vocabulary(store: str) -> vocabularies.Vocabulary:
  """Return the vocabulary of a store, or bytes if it cannot be read, as before the store exists.

  The store `builtin` is encoded as bytes.
  """
  try:
    return vocabularies.load("bytes" if store == "builtin" else f"{store}/train/vocabulary")
  except UserError:
    return vocabularies.load("bytes")


def encoder_decoder(
  inputs_length: int, targets_length: int, vocabulary: vocabularies.Vocabulary | None = None
) -> Features:
  """Describe an unpacked encoder-decoder example.

  With a vocabulary that has no padding id, the encoder's segment ids mark padding.
  """
  targets = Feature((targets_length,), "int32")
  features = {
    "encoder_input_tokens": Feature((inputs_length,), "int32"),
    "decoder_input_tokens": targets,
    "decoder_target_tokens": targets,
    "decoder_loss_weights": Feature((targets_length,), "float32"),
  }
  if vocabulary is not None and vocabulary.pad_id is None:
    features = {"encoder_segment_ids": Feature((inputs_length,), "int32")} | features
  return features


def decoder(length: int, *extra_names: str) -> Features:
  """Describe a decoder's row of `length` tokens, with further int32 features `decoder_<name>`."""
  names = ("input_tokens", "target_tokens", *extra_names)
  features = {f"decoder_{name}": Feature((length,), "int32") for name in names}
  features["decoder_loss_weights"] = Feature((length,), "float32")
  return features


def encoder(length: int, *extra_names: str) -> Features:
  """Describe an encoder's row of `length` tokens, with further int32 features `encoder_<name>`."""
  names = ("input_tokens", "token_types", *extra_names)
  return {f"encoder_{name}": Feature((length,), "int32") for name in names}


def labelled_rows(length: int, architecture: str, rows: int | None) -> Features:
  """Describe an example of labelled texts: one row of tokens, or several, each [rows, length].

  Args:
    length: tokens per row.
    architecture: `encoder`; everything else is a decoder.
    rows: rows per example, such as one for each option of a question. None is one row, to which
      an encoder's features have no axis; a decoder's have it always.
  """
  if architecture == "encoder":
    row = encoder(length)
    if rows is None:
      return row
  else:
    row = decoder(length, "segment_ids")
  return {
    name: Feature((rows or 1, *feature.shape), feature.dtype) for name, feature in row.items()
  }
