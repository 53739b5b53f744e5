"""The objective of decoder-only models: cross-entropy of the next token, with label smoothing and z-loss.

One and the same for a causal LM, a prefix LM and a packed batch: what is predicted, and at what weight, is in the
batch (`decoder_target_tokens`, `decoder_loss_weights`), and what a token may see is the model's reading of the other
features. The arithmetic is that of `objectives/encoder_decoder.py`.
"""

import dataclasses

from t5x_like.objectives import encoder_decoder


@dataclasses.dataclass(frozen=True)
class Objective(encoder_decoder.Objective):
  """Sums over target tokens, never means: whoever has all sums of a global batch divides once.

  Attributes:
    label_smoothing: probability moved from the target to the other tokens (Szegedy et al. 2016).
    z_loss: coefficient of `log(Z)^2`; PaLM uses 1e-4 (Chowdhery et al. 2022, section 5).
  """
