"""REINFORCE with a leave-one-out baseline.

Ahmadian et al. 2024 (arXiv:2402.14740); Kool et al. 2019.
"""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_like.contrib.feedback.objectives._rollouts import (
  RewardObjective,
  check_reward,
  k3,
  mean_over_tokens,
)
from t5x_like.errors import UserError
from t5x_like.objectives._losses import Batch, Sums


@dataclasses.dataclass(frozen=True)
class Objective(RewardObjective):
  """`-A log p(completion)`, where the advantage A is relative to the prompt's other completions.

  A is the completion's reward minus the mean reward of the other K - 1 (section 3.1).

  The completion as a whole is one action. Its reward is lowered by `beta log p/r`, where p is its
  probability in the rollout and r its probability by the reference (equation 3). Every batch of
  rollouts gives one update.

  Attributes:
    reward: a name in `contrib.feedback.rewards` or `module:function`, or such a name and arguments.
    beta: the weight of the KL divergence from the reference; 0 needs no reference.
  """

  reward: str | dict
  beta: float = 0.03

  def __post_init__(self):
    if self.beta < 0:
      raise UserError(f"config.objective.beta: found {self.beta}, expected a number, at least 0")
    check_reward(self.reward)

  def advantages(self, reward_BK: jax.Array) -> jax.Array:
    """Return the advantage of each of the K completions of B prompts, [B, K]."""
    K = reward_BK.shape[1]
    return (reward_BK - jnp.mean(reward_BK, axis=1, keepdims=True)) * (K / (K - 1))

  def __call__(self, model, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, Sums]:
    """Run the model on a batch.

    Args:
      model, batch: see `RewardObjective.completions`.
      key: not used.
    Returns:
      (loss sum, sums), sums over completions: see `RewardObjective.sum_completions`; with a
      reference, `kl` is the mean over each completion's tokens.
    """
    completions = self.completions(model, batch)
    cost_BK = self.beta * jnp.sum(completions.rollout_BKN - completions.reference_BKN, axis=-1)
    A_BK = self.advantages(completions.reward_BK - cost_BK)
    loss_BK = -A_BK * jnp.sum(completions.policy_BKN, axis=-1)
    kl_BK = mean_over_tokens(
      k3(completions.policy_BKN, completions.reference_BKN), completions.weights_BKN
    )
    metrics = {"kl": kl_BK} if self.needs_reference else {}
    return self.sum_completions(completions, loss_BK, **metrics)
