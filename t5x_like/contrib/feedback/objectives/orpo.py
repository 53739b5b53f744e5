"""Odds-ratio preference optimisation: fine-tune on the preferred answer, and prefer it.

Hong et al. 2024 (arXiv:2403.07691).
"""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_like.contrib.feedback.objectives._preferences import (
  PreferenceObjective,
  answer_log_probabilities,
  sum_over_pairs,
)
from t5x_like.errors import UserError
from t5x_like.objectives import flatten_rows
from t5x_like.objectives._losses import Batch, Sums


@dataclasses.dataclass(frozen=True)
class Objective(PreferenceObjective):
  """`-log P(chosen) - beta * log sigmoid(log odds(chosen)/odds(rejected))`.

  Equations 4 to 7 of arXiv:2403.07691.

  P is the geometric mean of the probabilities of an answer's tokens, odds are `P / (1 - P)`. There
  is no reference model. Each pair counts alike, whatever the length of its answers.

  Attributes:
    beta: the weight of the second term, the paper's lambda.
  """

  predict_inputs = ("texts",)
  reported_sums = (
    "loss",
    "correct",
    "language_model_loss",
    "log_odds_ratio",
    "chosen_log_probability",
    "rejected_log_probability",
  )

  beta: float = 0.1

  def __post_init__(self):
    if self.beta <= 0:
      raise UserError(f"config.objective.beta: found {self.beta}, expected a number above 0")

  def __call__(self, model, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, Sums]:
    """Run the model on a batch.

    Args:
      model: a decoder.
      batch: as for `objectives.dpo`: features of the chosen and the rejected answer, [B, 2, …].
    Returns:
      (loss sum, sums), sums over pairs: `loss`, `correct` (pairs whose chosen answer is likelier),
      `weights` (pairs), `language_model_loss` (the first term), `log_odds_ratio`, the mean
      log-probabilities of both answers' tokens, and the scalars of the model.
    """
    rows = flatten_rows(batch)
    outputs = model.outputs(rows, key)
    tokens_B2 = jnp.maximum(jnp.sum(batch[self.weights], axis=-1), 1.0)
    mean_B2 = answer_log_probabilities(outputs["logits"], rows) / tokens_B2
    odds_B2 = mean_B2 - jnp.log(-jnp.expm1(jnp.minimum(mean_B2, -1e-6)))  # log P - log(1 - P)
    ratio_B = odds_B2[:, 0] - odds_B2[:, 1]
    loss_B = -mean_B2[:, 0] + self.beta * jax.nn.softplus(-ratio_B)
    metrics = {
      "correct": ratio_B > 0,
      "language_model_loss": -mean_B2[:, 0],
      "log_odds_ratio": ratio_B,
      "chosen_log_probability": mean_B2[:, 0],
      "rejected_log_probability": mean_B2[:, 1],
    }
    return sum_over_pairs(batch[self.weights], loss_B, metrics, outputs)
