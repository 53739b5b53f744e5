"""Reward models: the preferred of two answers to a prompt scores higher (Bradley & Terry 1952)."""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_like.contrib.feedback.objectives._preferences import PreferenceObjective, sum_over_pairs
from t5x_like.errors import UserError
from t5x_like.objectives import flatten_rows
from t5x_like.objectives._losses import Batch, Sums


@dataclasses.dataclass(frozen=True)
class Objective(PreferenceObjective):
  """`-log sigmoid(r(chosen) - r(rejected) - gap)`.

  Ouyang et al. 2022, equation 1; Touvron et al. 2023, section 3.2.2.

  The reward r of a row is the score of its last token. A pair fixes differences only, so `centre`
  draws the sum of a pair's rewards towards 0 (Eisenstein et al. 2023, section 3).

  Attributes:
    centre: the weight of `(r(chosen) + r(rejected))^2`.
    gap: the least difference of rewards without loss; a pair's `margin` is added, if the task has
      it.
  """

  unit = "nats per pair of answers"
  outputs = {"scores": 2}
  reported_sums = ("loss", "correct", "margin", "chosen_reward", "rejected_reward")

  centre: float = 0.0
  gap: float = 0.0

  def __post_init__(self):
    if self.centre < 0 or self.gap < 0:
      raise UserError(
        f"config.objective: found centre {self.centre} and gap {self.gap}, expected neither below "
        "0; correct it"
      )

  def __call__(self, model, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, Sums]:
    """Run the model on a batch.

    Args:
      model: a decoder with `config.model.scores=1`.
      batch: as for `objectives.dpo`: features of the chosen and the rejected answer, [B, 2, …]; and
        `margin` float32 [B], or none.
    Returns:
      (loss sum, sums), sums over pairs: `loss`, `correct` (pairs in the right order), `margin`, the
      rewards of both answers and `weights` (pairs), and the scalars of the model.
    """
    outputs = model.outputs(flatten_rows(batch), key)
    reward_B2 = outputs["scores"][:, 0].reshape(-1, 2)
    margin_B = reward_B2[:, 0] - reward_B2[:, 1]
    gap_B = self.gap + batch.get("margin", 0.0)
    sum_B = jnp.sum(reward_B2, axis=1)
    loss_B = jax.nn.softplus(gap_B - margin_B) + self.centre * jnp.square(sum_B)
    metrics = {
      "correct": margin_B > 0,
      "margin": margin_B,
      "chosen_reward": reward_B2[:, 0],
      "rejected_reward": reward_B2[:, 1],
    }
    return sum_over_pairs(batch[self.weights], loss_B, metrics, outputs)
