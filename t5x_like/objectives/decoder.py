"""The objective of decoder-only models: cross-entropy of the next token.

Label smoothing and z-loss are options. Causal LMs, prefix LMs and packed batches share the
objective: the batch holds the targets and their weights (`decoder_target_tokens`,
`decoder_loss_weights`), and other features define the model's attention mask.
"""

import dataclasses

from t5x_like.objectives._losses import DecoderTargets


@dataclasses.dataclass(frozen=True)
class Objective(DecoderTargets):
  """Sums over target tokens; see `_losses.token_losses`.

  Attributes:
    label_smoothing: probability moved from the target to the other tokens (Szegedy et al. 2016).
    z_loss: coefficient of `log(Z)^2`; PaLM uses 1e-4 (Chowdhery et al. 2022, section 5).
  """

  unit = "nats per target token"
  likelihood = True
  predict_inputs = ("texts",)

  label_smoothing: float = 0.0
  z_loss: float = 0.0
