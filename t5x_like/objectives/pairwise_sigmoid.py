"""SigLIP: classification of each image-text pair as matching or not (Zhai et al. 2023)."""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_like.errors import UserError
from t5x_like.objectives._contrastive import (
  MASKED,
  ImageTextObjective,
  embed_in_chunks,
  gather_rows,
  inner_products,
  map_chunks,
)
from t5x_like.objectives._losses import Batch, Sums, add_auxiliary
from t5x_like.slots import PositiveInt


@dataclasses.dataclass(frozen=True)
class Objective(ImageTextObjective):
  """Logistic loss of all image-text pairs in the global batch.

  The loss of a pair is `-log sigmoid(z (scale cosine + bias))`; z is 1 for matching pairs, else -1.
  A row's loss is the sum over its pairs (algorithm 1).

  Attributes:
    chunks: the number of parts in which a batch is encoded and compared; memory holds one part at a
      time.
  """

  unit = "nats per image or text"

  chunks: PositiveInt = 1

  @classmethod
  def check(cls, model, features: dict) -> None:
    """Refuse a model without a bias.

    The many pairs that do not match would dominate its initial loss.
    """
    if getattr(model, "bias", None) is None:
      raise UserError(
        "config.model.bias: found None, pairwise_sigmoid needs one; set --config.model.bias=-10"
      )

  def __call__(self, model, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, Sums]:
    """Run the model on a batch; like `contrastive`, except for the loss."""
    outputs = embed_in_chunks(model, batch, key, self.chunks)
    scale = outputs["logit_scale"]
    bias = outputs["logit_bias"]
    weights_B = batch["example_weights"]
    padding_mask_B = jnp.where(gather_rows(weights_B) > 0, 0.0, MASKED)
    text_BP = gather_rows(outputs["text_embeddings"])

    def compare(a_bP, match_bP, rows_b):
      logits_bB = scale * inner_products(a_bP, text_BP) + bias + padding_mask_B
      match_logit_b = scale * jnp.sum(a_bP * match_bP, axis=-1) + bias
      is_match_bB = rows_b[:, None] == jnp.arange(len(text_BP))
      loss_bB = jnp.where(is_match_bB, 0.0, jax.nn.softplus(logits_bB))
      loss_b = jax.nn.softplus(-match_logit_b) + jnp.sum(loss_bB, axis=1)
      return loss_b, match_logit_b >= jnp.max(logits_bB, axis=1) - 1e-5 * scale

    rows_B = jnp.arange(len(weights_B))
    arrays = outputs["image_embeddings"], outputs["text_embeddings"], rows_B
    loss_B, correct_B = map_chunks(compare, self.chunks, *arrays)
    loss = jnp.sum(loss_B * weights_B)
    sums = {"loss": loss, "correct": jnp.sum(correct_B * weights_B), "weights": jnp.sum(weights_B)}
    return add_auxiliary(loss, sums, outputs)
