"""Contrastive training of an image and a text encoder (CLIP, Radford et al. 2021, figure 3)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

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
  """Cross-entropy of each image's text among all texts, and of each text's image among all images.

  "All" means all of the global batch.

  Attributes:
    chunks: the number of parts in which a batch is encoded and compared; memory holds one part at a
      time.
  """

  unit = "nats per image or text"

  chunks: PositiveInt = 1

  def __call__(self, model, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, Sums]:
    """Run the model on a batch.

    Args:
      batch: the model's features and `example_weights` float32 [B]; rows of weight 0 are left out
        of the comparison.

    Returns:
      (loss sum, sums): `loss`, the mean of both directions; `correct` (an image's own text is
      likeliest) and `weights`; and the scalars of the model.
    """
    outputs = embed_in_chunks(model, batch, key, self.chunks)
    scale = outputs["logit_scale"]
    weights_B = batch["example_weights"]
    image_BP = outputs["image_embeddings"]
    text_BP = outputs["text_embeddings"]
    padding_mask_B = jnp.where(gather_rows(weights_B) > 0, 0.0, MASKED)

    def compare(candidates_BP, a_bP, match_bP):
      logits_bB = scale * inner_products(a_bP, candidates_BP) + padding_mask_B
      match_logit_b = scale * jnp.sum(a_bP * match_bP, axis=-1)
      loss_b = jax.nn.logsumexp(logits_bB, axis=1) - match_logit_b
      # the match is among the candidates; the two products may round differently
      return loss_b, match_logit_b >= jnp.max(logits_bB, axis=1) - 1e-5 * scale

    compare_to_texts = functools.partial(compare, gather_rows(text_BP))
    loss_B, correct_B = map_chunks(compare_to_texts, self.chunks, image_BP, text_BP)
    compare_to_images = functools.partial(compare, gather_rows(image_BP))
    reverse_loss_B, _ = map_chunks(compare_to_images, self.chunks, text_BP, image_BP)
    loss = jnp.sum((loss_B + reverse_loss_B) / 2 * weights_B)
    sums = {"loss": loss, "correct": jnp.sum(correct_B * weights_B), "weights": jnp.sum(weights_B)}
    return add_auxiliary(loss, sums, outputs)
