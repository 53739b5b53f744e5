"""Direct preference optimisation: make the preferred of two answers to a prompt likelier.

Rafailov et al. 2023 (arXiv:2305.18290).
"""

import dataclasses

import jax

from t5x_like.contrib.feedback.objectives._preferences import (
  PreferenceObjective,
  answer_log_probabilities,
  sum_over_pairs,
)
from t5x_like.errors import UserError
from t5x_like.nn.linear import without_adapters
from t5x_like.objectives import flatten_rows
from t5x_like.objectives._losses import Batch, Sums


@dataclasses.dataclass(frozen=True)
class Objective(PreferenceObjective):
  """`-log sigmoid(margin)`, equation 7.

  The margin is `beta * (log p(chosen)/r(chosen) - log p(rejected)/r(rejected))`.

  p is the model, r the reference, which has the run's initial weights. These are kept next to the
  trained weights; if only adapters are trained, the model without them is the reference, and there
  is no second copy. Log-probabilities are sums over the answer's tokens. The step runs the
  reference without dropout and without a backward pass.

  Attributes:
    beta: the cost of departing from the reference.
    label_smoothing: the probability that a preference is reversed ("conservative DPO", Mitchell
      2023).
  """

  unit = "nats per pair of answers"
  predict_inputs = ("texts",)
  reported_sums = (
    "loss",
    "correct",
    "margin",
    "chosen_reward",
    "rejected_reward",
    "chosen_log_probability",
    "rejected_log_probability",
    "reference_chosen_log_probability",
    "reference_rejected_log_probability",
  )
  needs_reference = True

  beta: float = 0.1
  label_smoothing: float = 0.0

  def __post_init__(self):
    if self.beta <= 0 or not 0 <= self.label_smoothing < 0.5:
      raise UserError(
        f"config.objective: found beta {self.beta} and label_smoothing {self.label_smoothing}, "
        "expected beta above 0 and label_smoothing at least 0 and less than 0.5"
      )

  def __call__(self, model, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, Sums]:
    """Run the model and its reference on a batch.

    Args:
      model: a decoder with adapters, or with `model.reference`.
      batch: the model's features, [B, 2, …], of the chosen and the rejected answer;
        `decoder_target_tokens` int32 and `decoder_loss_weights` float32, 1 on the tokens of the
        answer, both [B, 2, T].
    Returns:
      (loss sum, sums), sums over pairs: `loss`, `correct` (pairs with a positive margin), `margin`,
      `weights` (pairs), the rewards `beta * log p/r` of both answers and their log-probabilities,
      and the scalars of the model.
    """
    rows = flatten_rows(batch)
    outputs = model.outputs(rows, key)
    reference = getattr(model, "reference", None) or without_adapters(model, merged=False)
    policy_B2 = answer_log_probabilities(outputs["logits"], rows)
    reference_B2 = jax.lax.stop_gradient(
      answer_log_probabilities(reference.outputs(rows)["logits"], rows)
    )
    reward_B2 = self.beta * (policy_B2 - reference_B2)
    margin_B = reward_B2[:, 0] - reward_B2[:, 1]
    # -log sigmoid(x) = softplus(-x)
    loss_B = (1.0 - self.label_smoothing) * jax.nn.softplus(-margin_B)
    loss_B += self.label_smoothing * jax.nn.softplus(margin_B)
    metrics = {
      "correct": margin_B > 0,
      "margin": margin_B,
      "chosen_reward": reward_B2[:, 0],
      "rejected_reward": reward_B2[:, 1],
      "chosen_log_probability": policy_B2[:, 0],
      "rejected_log_probability": policy_B2[:, 1],
      "reference_chosen_log_probability": reference_B2[:, 0],
      "reference_rejected_log_probability": reference_B2[:, 1],
    }
    return sum_over_pairs(batch[self.weights], loss_B, metrics, outputs)
