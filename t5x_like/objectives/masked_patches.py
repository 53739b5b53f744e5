"""Reconstruction of masked patches of images (MAE, He et al. 2022, arXiv:2111.06377)."""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_like.architectures.image_encoder import patchify
from t5x_like.objectives import BaseObjective
from t5x_like.objectives._losses import Sums, add_auxiliary


@dataclasses.dataclass(frozen=True)
class Objective(BaseObjective):
  """The mean squared error of each image's masked pixels.

  Attributes:
    normalised: whether the pixels of each target patch are normalised by their own mean and
      standard deviation (section 4.1).
  """

  unit = "squared error of masked pixels"
  model_inputs = ("masked_patches",)
  targets = "image"
  weights = "example_weights"
  extra_features = ("visible_patches", "masked_patches")
  reported_sums = ("loss",)

  normalised: bool = True

  def __call__(
    self, model, batch: dict[str, jax.Array], key: jax.Array | None = None
  ) -> tuple[jax.Array, Sums]:
    """Run the model on a batch and return the sum of its losses.

    Args:
      batch: `image` float32 [B, Y, X, C], `visible_patches` int32 [B, K], `masked_patches` int32
        [B, M], `example_weights` float32 [B].

    Returns:
      (loss sum, sums): `loss`, `weights`, and the scalars among the model's outputs.
    """
    outputs = model.outputs(batch, key)
    target_BTP = patchify(batch["image"].astype(jnp.float32), model.variant)
    target_BMP = jnp.take_along_axis(target_BTP, batch["masked_patches"][..., None], axis=1)
    if self.normalised:
      mean = target_BMP.mean(-1, keepdims=True)
      variance = target_BMP.var(-1, ddof=1, keepdims=True)
      target_BMP = (target_BMP - mean) * jax.lax.rsqrt(variance + 1e-6)
    error_B = jnp.mean(jnp.square(outputs["logits"] - target_BMP), axis=(1, 2))
    loss = jnp.sum(error_B * batch["example_weights"])
    return add_auxiliary(
      loss, {"loss": loss, "weights": jnp.sum(batch["example_weights"])}, outputs
    )
