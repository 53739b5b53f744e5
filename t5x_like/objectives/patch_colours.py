"""Masked patch prediction of ViT: the mean colours of corrupted patches.

Dosovitskiy et al. 2021, appendix B.1.2.
"""

import dataclasses

import jax

from t5x_like.objectives import BaseObjective
from t5x_like.objectives._losses import Sums, add_auxiliary, token_losses


@dataclasses.dataclass(frozen=True)
class Objective(BaseObjective):
  """Cross-entropy of `patch_colours`, averaged over corrupted patches.

  BERT's loss is averaged over masked tokens in the same way.
  """

  unit = "nats per patch"
  likelihood = True
  model_inputs = ("patch_sources",)
  targets = "patch_colours"
  weights = "patch_weights"
  reported_sums = ("loss", "correct")

  def __call__(
    self, model, batch: dict[str, jax.Array], key: jax.Array | None = None
  ) -> tuple[jax.Array, Sums]:
    """Run the model on a batch.

    Args:
      batch: the model's features, `patch_colours` int32 [B, T], `patch_weights` float32 [B, T] and
        `example_weights` float32 [B].

    Returns:
      (loss sum, sums): `loss`, `correct`, `weights`, and the scalars of the model.
    """
    outputs = model.outputs(batch, key)
    weights_BT = batch["patch_weights"] * batch["example_weights"][:, None]
    loss, sums = token_losses(outputs["logits"], batch["patch_colours"], weights_BT, 0.0, 0.0)
    return add_auxiliary(
      loss, {name: sums[name] for name in ("loss", "correct", "weights")}, outputs
    )
