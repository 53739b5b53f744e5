"""Embeddings of texts, shared by the evaluators of models of images and texts."""

import jax
import numpy as np

from t5x_like.evals import Setting
from t5x_like.rows import in_batches


def of_texts(setting: Setting, run, arrays: dict[str, jax.Array], tokens_CT: np.ndarray) -> np.ndarray:
  """Embed texts with `run(parameters, batch) -> (array,)`: float32 [C, P]."""
  rows = in_batches(
    lambda batch: run(arrays, batch),
    setting.rules,
    setting.batch_size,
    [tokens_CT.shape[1]] * len(tokens_CT),
    lambda chosen, _: {"text_input_tokens": tokens_CT[chosen]},
  )
  return np.stack([row for (row,) in rows])
