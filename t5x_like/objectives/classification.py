"""Classification or regression of whole sequences, and classification of images."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from t5x_like.objectives import BaseObjective
from t5x_like.objectives._class_losses import LABEL_LOSSES, label_losses
from t5x_like.objectives._losses import Sums, add_auxiliary
from t5x_like.slots import Rate


@dataclasses.dataclass(frozen=True)
class Objective(BaseObjective):
  """The cross-entropy of classes, or the squared error of a regression.

  The dtype of `label` decides: int32 [B] for classes, float32 [B] for a regression, whose head has
  one output.

  Attributes:
    label_smoothing: probability spread evenly over all classes, including the label.
    loss: the loss of a classification. `softmax` is the cross-entropy. `sigmoid` is the mean of the
      binary cross-entropies of all classes; mixed examples belong to both classes, whatever their
      shares (DeiT III, Touvron et al. 2022, section 3.2).
  """

  unit = "mean of examples"
  predict_inputs = ("texts", "images")
  model_inputs = ("encoder_input_tokens", "image")
  targets = "label"
  weights = "example_weights"
  outputs = {"logits": 2}
  reported_sums = ("loss", "correct")

  label_smoothing: Rate = 0.0
  loss: Literal[*LABEL_LOSSES] = "softmax"

  @property
  def likelihood(self) -> bool:
    """Whether the loss is a negative log-likelihood."""
    return self.loss == "softmax"

  def __call__(
    self, model, batch: dict[str, jax.Array], key: jax.Array | None = None
  ) -> tuple[jax.Array, Sums]:
    """Run the model on a batch and return the sum of its losses.

    Args:
      batch: the model's features, `label` [B] and `example_weights` float32 [B]; for mixed examples
        also `other_label` int32 [B] and `label_share` float32 [B], the share of `label` in the
        image.

    Returns:
      (loss sum, sums): `loss`, `correct` (classification only), `weights`, and the scalars among
      the model's outputs.
    """
    outputs = model(batch, key)
    label_B = batch["label"]
    weights_B = batch["example_weights"]
    if jnp.issubdtype(label_B.dtype, jnp.floating):
      error_B = jnp.square(outputs["logits"].astype(jnp.float32)[:, 0] - label_B)
      loss = jnp.sum(error_B * weights_B)
      return add_auxiliary(loss, {"loss": loss, "weights": jnp.sum(weights_B)}, outputs)
    loss, sums = label_losses(outputs["logits"], batch, self.label_smoothing, self.loss)
    return add_auxiliary(loss, sums, outputs)
