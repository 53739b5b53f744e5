"""Contrastive training of an image and a text encoder (CLIP, Radford et al. 2021, figure 3)."""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_like.objectives._contrastive import (
  MASKED,
  ImageTextObjective,
  cosines,
  embed_in_chunks,
  gather_rows,
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

    def compare(a_bP, own_bP, b_BP):
      logits_bB = scale * cosines(a_bP, b_BP) + padding_mask_B
      own_b = scale * jnp.sum(a_bP * own_bP, axis=-1)
      loss_b = jax.nn.logsumexp(logits_bB, axis=1) - own_b
      return loss_b, own_b >= jnp.max(logits_bB, axis=1) - 1e-5 * scale

    every_text_BP = gather_rows(text_BP)
    loss_B, correct_B = map_chunks(
      lambda a, own: compare(a, own, every_text_BP), self.chunks, image_BP, text_BP
    )
    every_image_BP = gather_rows(image_BP)
    reverse_loss_B, _ = map_chunks(
      lambda a, own: compare(a, own, every_image_BP), self.chunks, text_BP, image_BP
    )
    loss = jnp.sum((loss_B + reverse_loss_B) / 2 * weights_B)
    sums = {"loss": loss, "correct": jnp.sum(correct_B * weights_B), "weights": jnp.sum(weights_B)}
    return add_auxiliary(loss, sums, outputs)
