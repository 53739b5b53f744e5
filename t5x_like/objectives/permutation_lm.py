"""Permutation language modelling (Yang et al. 2019).

Each chosen token is predicted from the tokens before it in a random order.
"""

import dataclasses

import jax

from t5x_like.objectives._losses import (
  Batch,
  EncoderTargets,
  Sums,
  add_auxiliary,
  masked_targets,
  token_losses,
)


@dataclasses.dataclass(frozen=True)
class Objective(EncoderTargets):
  """Cross-entropy averaged over the predicted tokens (equation 5).

  They are the last tokens of the order, as `tasks.permutation_lm` chooses them.

  Attributes:
    z_loss: coefficient of `log(Z)^2` of the predictions.
  """

  unit = "nats per target token"
  likelihood = True
  extra_features = ("encoder_order", "encoder_masked_positions")
  outputs = {"permutation_logits": 3}
  advice = "config.task.name=permutation_lm"

  z_loss: float = 0.0

  def __call__(self, model, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, Sums]:
    """Run the model on a batch.

    Args:
      model: `models.xlnet`.
      batch: the model's features, `encoder_target_tokens` int32 [B, S] and `encoder_loss_weights`
        float32 [B, S].

    Returns:
      (loss sum, sums): `loss`, `z_loss`, `correct` and `weights`, and the scalars of the model.
    """
    outputs = model.outputs(batch, key)
    loss, sums = token_losses(
      outputs["permutation_logits"], *masked_targets(batch), 0.0, self.z_loss
    )
    return add_auxiliary(loss, sums, outputs)
