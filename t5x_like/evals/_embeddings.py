"""Embeddings of texts, shared by evaluators and predictions."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.errors import UserError
from t5x_like.evals import EvalContext
from t5x_like.rows import run_in_batches
from t5x_like.vocabularies import special_id

Pooling = Literal["mean", "cls"]


def embed_texts(
  context: EvalContext, run, arrays: dict[str, jax.Array], tokens_CT: np.ndarray
) -> np.ndarray:
  """Embed texts with `run(parameters, batch) -> (array,)`: float32 [C, P]."""
  rows = run_in_batches(
    lambda batch: run(arrays, batch),
    context.rules,
    context.batch_size,
    [tokens_CT.shape[1]] * len(tokens_CT),
    lambda row_numbers, _: {"text_input_tokens": tokens_CT[row_numbers]},
  )
  return np.stack([embedding_P for (embedding_P,) in rows])


def check_text_encoder(model, where: str) -> None:
  """Raise UserError if the model has no encoder of texts; `where` begins the message."""
  has_encoder = "encoder_input_tokens" in model.REQUIRED_FEATURES and hasattr(model, "encode")
  if not has_encoder or "decoder_input_tokens" in model.REQUIRED_FEATURES:
    architecture = type(model).__module__.rpartition(".")[2]
    raise UserError(
      f"{where}: found the model {architecture!r}, expected an encoder of texts, such as BERT"
    )


def encode_text(vocabulary, text: str, longest: int) -> list[int]:
  """Encode a text between CLS and SEP, cut to `longest` ids."""
  cls_id = special_id(vocabulary, "cls")
  sep_id = special_id(vocabulary, "sep")
  return [cls_id, *vocabulary.encode(text)[: longest - 2], sep_id]


def pool(model, batch: dict[str, jax.Array], pooling: Pooling) -> jax.Array:
  """Return the embeddings of rows, float32 [B, D], of length one.

  Args:
    batch: `encoder_input_tokens` int32 [B, S], and `encoder_segment_ids` int32 [B, S], 0 for
      padding.
    pooling: the mean of a row's last hidden states, or its first token's state.
  """
  x_BSD = model.encode(batch)[0].astype(jnp.float32)
  valid_BS1 = (batch["encoder_segment_ids"] > 0).astype(jnp.float32)[..., None]
  sums_BD = x_BSD[:, 0] if pooling == "cls" else jnp.sum(x_BSD * valid_BS1, axis=1)
  return sums_BD / jnp.maximum(jnp.linalg.norm(sums_BD, axis=-1, keepdims=True), 1e-12)
