"""The objective of encoder-decoders: cross-entropy of the decoder's targets."""

import dataclasses

from t5x_like.objectives._losses import DecoderTargets


@dataclasses.dataclass(frozen=True)
class Objective(DecoderTargets):
  """The cross-entropy of the decoder's targets, with optional label smoothing and z-loss.

  `_losses.token_losses` computes it.

  Attributes:
    label_smoothing: probability moved from the target to the other tokens (Szegedy et al. 2016).
    z_loss: coefficient of `log(Z)^2`; T5 uses 1e-4.
  """

  unit = "nats per target token"
  likelihood = True
  predict_inputs = ("texts",)

  label_smoothing: float = 0.0
  z_loss: float = 0.0
