"""Convert ids of a vocabulary to the form in which stores keep them."""

from typing import Any

import numpy as np

from t5x_like import vocabularies
from t5x_like.errors import UserError
from t5x_like.store.manifest import Array, vocabulary_facts
from t5x_like.store.tokens import TOKENS
from t5x_like.vocabularies import Vocabulary


def array(vocabulary: Vocabulary, name: str = TOKENS) -> Array:
  """Return an array of ids: uint16 for a vocabulary of at most 65,536 ids, otherwise int32."""
  return Array(name, "uint16" if vocabulary.size <= 2**16 else "int32")


def facts(vocabulary: Vocabulary, append_eos: Any) -> dict[str, Any]:
  """Return the facts of a store of ids.

  Args:
    vocabulary: the vocabulary.
    append_eos: whether EOS ends the items (of each array).
  """
  return {"vocabulary": vocabulary_facts(vocabulary), "append_eos": append_eos}


def prepare(
  vocabulary: Vocabulary,
  append_eos: bool,
  tokens_N: np.ndarray,
  lengths_D: np.ndarray,
  where: object,
) -> tuple[np.ndarray, np.ndarray]:
  """Return the ids and lengths of documents as a store keeps them.

  Args:
    vocabulary: the vocabulary.
    append_eos: whether EOS is appended to each document that is not empty.
    tokens_N: the ids of all documents, one after the other.
    lengths_D: the number of ids of each document.
    where: the beginning of messages.

  Raises:
    UserError: an id is padding or outside the vocabulary.
  """
  tokens_N = np.asarray(tokens_N)
  lengths_D = np.asarray(lengths_D, np.int64)
  if tokens_N.size:
    problem = vocabularies.describe_invalid_id(vocabulary, tokens_N)
    if problem:
      raise UserError(f"{where}: {problem}")
  tokens_N = tokens_N.astype(array(vocabulary).dtype)
  if append_eos:
    is_filled_D = lengths_D > 0
    tokens_N = np.insert(tokens_N, np.cumsum(lengths_D)[is_filled_D], vocabulary.eos_id)
    lengths_D = lengths_D + is_filled_D
  return tokens_N, lengths_D
