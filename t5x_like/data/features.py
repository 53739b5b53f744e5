"""Features of examples: names, shapes and dtypes, without TensorFlow, a corpus or a store.

Each task's file declares its features in `features(vocabulary, **arguments)`, so that plans compile
without data. The functions below describe layouts that several tasks share.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from t5x_like import slots, vocabularies
from t5x_like.data import preprocessors, tasks
from t5x_like.errors import UserError


@dataclasses.dataclass(frozen=True)
class Feature:
  """The shape of a feature, without the batch axis, and the name of its dtype."""

  shape: tuple[int, ...]
  dtype: str


Features = dict[str, Feature]


def known(name: str | None) -> bool:
  """Return whether a task's features are known without building it."""
  return name in slots.names(tasks)


def of(arguments: Mapping[str, Any]) -> Features:
  """Return the features of a task.

  Args:
    arguments: its name and arguments, as in a recipe; missing arguments have their defaults.

  Raises:
    UserError: the task is not `known`.
  """
  values = dict(arguments)
  name = values.pop("name", None)
  if not known(name):
    raise UserError(
      f"config.task.name: the features of {name!r} are told only by making the task, from its data"
    )
  make, declare = (
    slots.find("config.task.name", name, tasks, member) for member in ("task", "features")
  )
  encoding = vocabulary(values.get("store", "builtin"))
  described = declare(encoding, **slots.defaults(make) | values)
  form = values.get("as_decoder")
  return (
    slots.module("decoder_form", preprocessors).described(form, described) if form else described
  )


def vocabulary(store: str) -> vocabularies.Vocabulary:
  """Return the vocabulary of a store, or bytes where there is none to read."""
  try:
    return vocabularies.load("bytes" if store == "builtin" else f"{store}/train/vocabulary")
  except UserError:
    return vocabularies.load("bytes")


def encoder_decoder(inputs_length: int, targets_length: int, vocabulary=None) -> Features:
  """Describe an unpacked encoder-decoder example; segments mark padding where the vocabulary has no
  id for it."""
  targets = Feature((targets_length,), "int32")
  segments = vocabulary is not None and vocabulary.pad_id is None
  return ({"encoder_segment_ids": Feature((inputs_length,), "int32")} if segments else {}) | {
    "encoder_input_tokens": Feature((inputs_length,), "int32"),
    "decoder_input_tokens": targets,
    "decoder_target_tokens": targets,
    "decoder_loss_weights": Feature((targets_length,), "float32"),
  }


def decoder(length: int, *more: str) -> Features:
  """Describe a decoder's row of `length` tokens, with further features of int32."""
  names = ("input_tokens", "target_tokens", *more)
  described = {f"decoder_{name}": Feature((length,), "int32") for name in names}
  return described | {"decoder_loss_weights": Feature((length,), "float32")}


def encoder(length: int, *more: str) -> Features:
  """Describe an encoder's row of `length` tokens, with further features of int32."""
  names = ("input_tokens", "token_types", *more)
  return {f"encoder_{name}": Feature((length,), "int32") for name in names}


def rows_of(length: int, architecture: str, rows: int | None) -> Features:
  """Describe the rows of labelled texts; without `rows`, an encoder has a single row and no axis
  for it."""
  described = encoder(length) if architecture == "encoder" else decoder(length, "segment_ids")
  if rows is None and architecture == "encoder":
    return described
  return {name: Feature((rows or 1, *one.shape), one.dtype) for name, one in described.items()}
