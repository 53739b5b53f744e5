"""Group relative policy optimisation: favour completions that beat others of their prompt.

Shao et al. 2024 (DeepSeekMath, arXiv:2402.03300, section 4.1); Liu et al. 2025 (Dr. GRPO,
arXiv:2503.20783); Yu et al. 2025 (DAPO, arXiv:2503.14476); Zheng et al. 2025 (GSPO,
arXiv:2507.18071).
"""

import dataclasses
from typing import Literal

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
from t5x_like.slots import PositiveFloat, PositiveInt

_EPSILON = 1e-4  # added to a group's standard deviation


@dataclasses.dataclass(frozen=True)
class Objective(RewardObjective):
  """`-min(r A, clip(r, 1 - clip, 1 + clip_high) A) + beta * KL` at each token (equation 3).

  The divergence KL is equation 4.

  r is the token's probability by the model over that in the rollout. The advantage A of a
  completion is its reward minus the mean of its prompt's K completions. There are four forms:

    grpo      A is divided by the K rewards' standard deviation (of a sample, K - 1); the loss is
              the mean of each completion's tokens, and the mean of these.
    dr_grpo   A is not divided, and each completion's sum is divided by the maximum length N: no
              weight depends on the spread of a prompt's rewards or on the length of a completion
              (section 3.1).
    dapo      A as for `grpo`; the loss is the mean over all tokens of the batch, so the tokens of
              long completions count as much as others (Yu et al., section 3.3).
    gspo      as `grpo`, but r is one ratio of the completion, the geometric mean of its tokens'
              ratios (Zheng et al., equations 5 to 7); it moves little, and is clipped at 3e-4 and
              4e-4 in the paper.

  With several updates, the rollout's log-probabilities are kept, and clipping bounds the move away
  from them; in the first, r is 1 up to rounding.

  Attributes:
    reward: a name in `contrib.feedback.rewards` or `module:function`, or such a name and arguments.
    form: `grpo`, `dr_grpo`, `dapo` or `gspo`.
    clip: the paper's epsilon.
    clip_high: the same above 1; None is `clip`. A higher one lets unlikely tokens grow (Yu et al.,
      section 3.1: 0.28).
    beta: the weight of the KL divergence from the reference; 0 needs no reference.
    updates: updates from each batch of rollouts, the paper's mu.
  """

  reported_sums = (*RewardObjective.reported_sums, "clip_fraction")

  reward: str | dict
  form: Literal["grpo", "dr_grpo", "dapo", "gspo"] = "grpo"
  clip: float = 0.2
  clip_high: PositiveFloat | None = None
  beta: float = 0.04
  updates: PositiveInt = 1

  def __post_init__(self):
    if not 0 < self.clip < 1 or self.beta < 0:
      raise UserError(
        f"config.objective: found clip {self.clip} and beta {self.beta}, expected clip between 0 "
        "and 1, and beta at least 0"
      )
    check_reward(self.reward)

  def advantages(self, reward_BK: jax.Array) -> jax.Array:
    """Return the advantage of each of the K completions of B prompts, [B, K]."""
    # equal rewards are then exactly their mean, whatever their size
    difference_BK = reward_BK - reward_BK[:, :1]
    A_BK = difference_BK - jnp.mean(difference_BK, axis=1, keepdims=True)
    if self.form == "dr_grpo":
      return A_BK
    return A_BK / (jnp.std(difference_BK, axis=1, keepdims=True, ddof=1) + _EPSILON)

  def __call__(self, model, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, Sums]:
    """Run the model on a batch.

    Args:
      model, batch: see `RewardObjective.completions`.
      key: not used.
    Returns:
      (loss sum, sums), sums over completions, of `dapo` a loss over tokens: see
      `RewardObjective.sum_completions`; `clip_fraction` and, with a reference, `kl` are means
      over each completion's tokens.
    """
    completions = self.completions(model, batch)
    A_BK1 = self.advantages(completions.reward_BK)[..., None]
    log_ratio_BKN = completions.policy_BKN - completions.rollout_BKN
    if self.form == "gspo":
      log_ratio_BKN = mean_over_tokens(log_ratio_BKN, completions.weights_BKN)[..., None]
    ratio_BKN = jnp.exp(log_ratio_BKN)
    high = self.clip if self.clip_high is None else self.clip_high
    unclipped_BKN = ratio_BKN * A_BK1
    clipped_BKN = jnp.clip(ratio_BKN, 1 - self.clip, 1 + high) * A_BK1
    loss_BKN = jnp.broadcast_to(
      -jnp.minimum(unclipped_BKN, clipped_BKN), completions.policy_BKN.shape
    )
    metrics = {
      "clip_fraction": mean_over_tokens(clipped_BKN < unclipped_BKN, completions.weights_BKN)
    }
    if self.needs_reference:
      kl_BKN = k3(completions.policy_BKN, completions.reference_BKN)
      loss_BKN += self.beta * kl_BKN
      metrics["kl"] = mean_over_tokens(kl_BKN, completions.weights_BKN)
    if self.form in ("grpo", "gspo"):
      return self.sum_completions(
        completions, mean_over_tokens(loss_BKN, completions.weights_BKN), **metrics
      )
    loss_BK = jnp.sum(loss_BKN * completions.weights_BKN, axis=-1)
    if self.form == "dr_grpo":
      return self.sum_completions(completions, loss_BK / loss_BKN.shape[-1], **metrics)
    return self.sum_completions(completions, loss_BK, jnp.sum(completions.weights_BKN), **metrics)
