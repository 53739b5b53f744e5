"""Multi-token prediction: cross-entropy of the next token and of the token after it.

A model with `mtp_depth` predicts the second (DeepSeek-AI 2024, arXiv:2412.19437, section 2.2).
"""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_like.errors import UserError
from t5x_like.objectives._losses import Batch, DecoderTargets, Sums, add_auxiliary, token_losses
from t5x_like.slots import NonNegativeFloat


@dataclasses.dataclass(frozen=True)
class Objective(DecoderTargets):
  """Sums over target tokens; see `_losses.token_losses`.

  Attributes:
    next_weight: factor of the second loss (equation 25); DeepSeek-V3 has 0.3 for 10 trillion
      tokens, then 0.1.
    label_smoothing, z_loss: see `decoder`; of both losses.
  """

  unit = "nats per target token"
  likelihood = True
  predict_inputs = ("texts",)
  outputs = {"logits": 3, "next_logits": 3}
  reported_sums = ("loss", "z_loss", "correct", "next_loss", "next_correct")

  next_weight: NonNegativeFloat = 0.3
  label_smoothing: float = 0.0
  z_loss: float = 0.0

  @classmethod
  def check(cls, model, features: dict) -> None:
    if not getattr(model, "mtp_depth", 0):
      raise UserError(
        "config.objective: multi_token needs the block of the second token; set "
        "--config.model.mtp_depth=1"
      )

  def __call__(self, model, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, Sums]:
    """Return (loss sum, sums), as `DecoderTargets` does.

    `next_loss` and `next_correct` are of the token after the next. Predictions from the last token
    of a sequence, which has no token after the next, do not count.
    """
    outputs = model.outputs(batch, key)
    targets_BT = batch[self.targets]
    weights_BT = batch[self.weights]
    loss, sums = token_losses(
      outputs["logits"], targets_BT, weights_BT, self.label_smoothing, self.z_loss
    )
    weights_BT = _shift_left(weights_BT)
    if "decoder_segment_ids" in batch:
      segments_BT = batch["decoder_segment_ids"]
      weights_BT = weights_BT * (segments_BT == _shift_left(segments_BT))
    next_loss, next_sums = token_losses(
      outputs["next_logits"],
      _shift_left(targets_BT),
      weights_BT,
      self.label_smoothing,
      self.z_loss,
    )
    sums |= {f"next_{name}": next_sums[name] for name in ("loss", "correct", "weights")}
    return add_auxiliary(loss + self.next_weight * next_loss, sums, outputs)


def _shift_left(x_BT: jax.Array) -> jax.Array:
  """Shift the values of each row by one towards its start; the last is 0."""
  return jnp.pad(x_BT[:, 1:], ((0, 0), (0, 1)))
