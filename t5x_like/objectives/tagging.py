"""The objective of tagging: cross-entropy of each word's tag, predicted at its first token."""

import dataclasses

import jax

from t5x_like.objectives._losses import EncoderTargets, Sums, add_auxiliary, token_losses


@dataclasses.dataclass(frozen=True)
class Objective(EncoderTargets):
  """Cross-entropy of tags, summed over the first tokens of words.

  Attributes:
    label_smoothing: probability moved from the target to the other tags (Szegedy et al. 2016).
  """

  unit = "nats per target token"
  likelihood = True
  reported_sums = ("loss", "correct")

  label_smoothing: float = 0.0

  def __call__(
    self, model, batch: dict[str, jax.Array], key: jax.Array | None = None
  ) -> tuple[jax.Array, Sums]:
    """Run a model with a token head on a batch.

    Args:
      batch: the model's features, `encoder_target_tokens` int32 [B, S] (tags) and
        `encoder_loss_weights` float32 [B, S].

    Returns:
      (loss sum, sums): `loss`, `correct` and `weights`, and the scalar outputs of the model.
    """
    outputs = model(batch, key)
    loss, sums = token_losses(
      outputs["logits"],
      batch["encoder_target_tokens"],
      batch["encoder_loss_weights"],
      self.label_smoothing,
      z_loss=0.0,
    )
    del sums["z_loss"]
    return add_auxiliary(loss, sums, outputs)
