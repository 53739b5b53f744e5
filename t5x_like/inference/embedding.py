"""Embed texts with encoders: one vector of length one for each text."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from t5x_like.evals import _embeddings
from t5x_like.rows import Runner, padded_length

_LONGEST = 512  # tokens of a row, of models whose positions have no end


class Embedding:
  """A predictor of sentence embeddings; texts longer than the model's positions are cut.

  Args:
    model: the abstract model.
    vocabulary: the vocabulary of its training.
    pooling: the mean of a row's last hidden states, or that of its first token.
  Raises:
    UserError: the model is no encoder.
  """

  def __init__(self, model, vocabulary, pooling: _embeddings.Pooling = "mean"):
    _embeddings.check_text_encoder(model, "--embed")
    self.vocabulary = vocabulary
    self.pooling = pooling
    position = model.variant.design.position
    self.longest = position.get("length", _LONGEST) if isinstance(position, dict) else _LONGEST
    self.dense = model.variant.design.core in ("auto", "dense")

  def encode(self, texts: Sequence[str], origin: str) -> list[list[int]]:
    """Encode each text between CLS and SEP."""
    return [_embeddings.encode_text(self.vocabulary, text, self.longest) for text in texts]

  def __call__(
    self, run: Runner, ids: Sequence[Sequence[int]], texts: Sequence[str]
  ) -> list[dict[str, Any]]:
    """Return `input` and `embedding`, a list of numbers, for each text."""
    return [
      {"input": text, "embedding": [float(f"{x:.7g}") for x in row]}
      for text, row in zip(texts, self.rows(run, ids))
    ]

  def rows(self, run: Runner, ids: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the embeddings of encoded texts, float32 [N, D]."""
    padded = lambda length: padded_length(length, self.longest) if self.dense else self.longest  # noqa: E731
    return np.stack([row for (row,) in run(self._pool, ids, {}, padded)])

  def _pool(self, model, batch: dict[str, jax.Array]) -> tuple[jax.Array]:
    features = {"encoder_input_tokens": batch["tokens"], "encoder_segment_ids": batch["valid"]}
    return (_embeddings.pool(model, features, self.pooling),)
