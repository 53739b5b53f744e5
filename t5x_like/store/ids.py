"""Ids of a vocabulary, in the form in which stores keep them."""

from typing import Any

import numpy as np

from t5x_like import vocabularies
from t5x_like.errors import UserError
from t5x_like.store.manifest import Array, vocabulary_facts
from t5x_like.store.tokens import TOKENS
from t5x_like.vocabularies import Vocabulary


def array(vocabulary: Vocabulary, name: str = TOKENS) -> Array:
  """Return an array of ids of a vocabulary: uint16 if it has at most 65,536 of them, otherwise
  int32."""
  return Array(name, "uint16" if vocabulary.size <= 2**16 else "int32")


def facts(vocabulary: Vocabulary, append_eos: Any) -> dict[str, Any]:
  """Return the facts of a store of ids: the vocabulary, and whether EOS ends the items (of each
  array)."""
  return {"vocabulary": vocabulary_facts(vocabulary), "append_eos": append_eos}


def prepare(
  vocabulary: Vocabulary,
  append_eos: bool,
  tokens_N: np.ndarray,
  lengths_D: np.ndarray,
  where: object,
) -> tuple[np.ndarray, np.ndarray]:
  """Return the ids and lengths to store of documents, with EOS after each that is not empty if
  `append_eos`.

  Raises:
    UserError: an id is padding or outside the vocabulary; `where` begins the message.
  """
  tokens_N = np.asarray(tokens_N)
  lengths_D = np.asarray(lengths_D, np.int64)
  if tokens_N.size and (wrong := vocabularies.describe_invalid_id(vocabulary, tokens_N)):
    raise UserError(f"{where}: {wrong}")
  tokens_N = tokens_N.astype(array(vocabulary).dtype)
  if append_eos:
    tokens_N = np.insert(tokens_N, np.cumsum(lengths_D)[lengths_D > 0], vocabulary.eos_id)
    lengths_D = lengths_D + (lengths_D > 0)
  return tokens_N, lengths_D
