"""Embed texts with encoders: one vector of norm 1 for each text."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from t5x_like.evals import _embeddings
from t5x_like.rows import Runner, padded_length

_DEFAULT_LENGTH = 512  # tokens of a row, for models with unlimited positions


class Embedding:
  """A predictor of sentence embeddings; texts longer than the model's positions are cut.

  Args:
    model: the abstract model.
    vocabulary: the vocabulary of its training.
    pooling: the mean of a row's last hidden states, or the state of its first token.
  Raises:
    UserError: the model is no encoder.
  """

  def __init__(self, model, vocabulary, pooling: _embeddings.Pooling = "mean"):
    _embeddings.check_text_encoder(model, "--embed")
    self.vocabulary = vocabulary
    self.pooling = pooling
    position = model.variant.design.position
    self.longest = _DEFAULT_LENGTH
    if isinstance(position, dict):
      self.longest = position.get("length", _DEFAULT_LENGTH)
    self.dense = model.variant.design.core in ("auto", "dense")

  def encode(self, texts: Sequence[str], origin: str) -> list[list[int]]:
    """Encode each text between CLS and SEP."""
    return [_embeddings.encode_text(self.vocabulary, text, self.longest) for text in texts]

  def __call__(
    self, run: Runner, ids: Sequence[Sequence[int]], texts: Sequence[str]
  ) -> list[dict[str, Any]]:
    """Return `input` and `embedding`, a list of numbers, for each text."""
    answers = []
    for text, embedding_D in zip(texts, self.rows(run, ids)):
      answers.append({"input": text, "embedding": [float(f"{x:.7g}") for x in embedding_D]})
    return answers

  def rows(self, run: Runner, ids: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the embeddings of encoded texts, float32 [N, D]."""
    return np.stack([row for (row,) in run(self._pool, ids, {}, self._pad_length)])

  def _pad_length(self, length: int) -> int:
    return padded_length(length, self.longest) if self.dense else self.longest

  def _pool(self, model, batch: dict[str, jax.Array]) -> tuple[jax.Array]:
    features = {"encoder_input_tokens": batch["tokens"], "encoder_segment_ids": batch["valid"]}
    return (_embeddings.pool(model, features, self.pooling),)
