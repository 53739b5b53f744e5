"""Proximal policy optimisation with a value head, which credits tokens with their reward.

Schulman et al. 2017 (arXiv:1707.06347), for language models as by Ziegler et al. 2019
(arXiv:1909.08593, section 2.1) and Stiennon et al. 2020 (arXiv:2009.01325, section 3.4).
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.contrib.feedback.objectives._rollouts import RewardObjective, check_reward, k3
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.linear import Linear
from t5x_like.objectives._losses import Batch, Sums, add_auxiliary
from t5x_like.slots import PositiveInt

_EPSILON = 1e-8  # added to the variance of advantages


@dataclasses.dataclass(frozen=True)
class Objective(RewardObjective):
  """`-min(r A, clip(r) A) + value_weight / 2 * max((V - R)^2, (clip(V) - R)^2)`.

  The loss is the mean over the batch's tokens.

  r is the token's probability by the model over that in the rollout, clipped to 1 ± clip (Schulman
  et al., equation 7). V is the value of the state before the token: a linear layer on the hidden
  state that the token's logits come from, clipped to ± value_clip around its value in the rollout.
  The reward of a token is `-beta * log p/q`, where p is its probability in the rollout and q its
  probability by the reference; the completion's reward is added to the last token's (Ziegler et
  al., equation 2).
  Advantages A are Schulman et al.'s equation 11 (generalised advantage estimation), R = A + V, and
  then A is whitened over all tokens of the rollout. All but r and V are computed once for a
  rollout.

  Attributes:
    reward: a name in `contrib.feedback.rewards` or `module:function`, or such a name and arguments.
    clip: the paper's epsilon.
    value_clip: the same for values.
    value_weight: the paper's c1, of half the squared error.
    gamma: the discount of rewards by token.
    gae_lambda: the trade of bias (0) for variance (1) in advantages.
    beta: the cost of departing from the reference; 0 needs no reference.
    updates: passes over each rollout, its epochs.
    minibatches: updates in a pass, each of an equal share of the prompts, drawn anew in every pass.
  """

  reported_sums = (
    "loss",
    "policy_loss",
    "value_loss",
    "reward",
    "kl",
    "clip_fraction",
    "completion_length",
  )
  min_completions: ClassVar[int] = 1

  reward: str | dict
  clip: float = 0.2
  value_clip: float = 0.2
  value_weight: float = 0.1
  gamma: float = 1.0
  gae_lambda: float = 0.95
  beta: float = 0.05
  updates: PositiveInt = 4
  minibatches: PositiveInt = 1

  def __post_init__(self):
    fits = (
      0 < self.clip < 1
      and self.value_clip > 0
      and self.value_weight > 0
      and self.beta >= 0
      and 0 <= self.gamma <= 1
      and 0 <= self.gae_lambda <= 1
    )
    if not fits:
      raise UserError(
        f"config.objective: found clip {self.clip}, value_clip {self.value_clip}, value_weight "
        f"{self.value_weight}, beta {self.beta}, gamma {self.gamma} and gae_lambda "
        f"{self.gae_lambda}, expected clip between 0 and 1, value_clip and value_weight above 0, "
        "beta at least 0, gamma and gae_lambda from 0 to 1"
      )
    check_reward(self.reward)

  def extend_model(self, model, key: jax.Array):
    """Return the model with a value head, `model.value`, which begins at 0 everywhere."""
    variant = model.variant
    width = variant.dims.embed
    if variant.design.tied and variant.embed:
      width = variant.embed
    model.value = Linear((width, 1), ("embed", None), params.zeros, nnx.Rngs(params=key), bias=True)
    return model

  def estimate_advantages(self, model, batch: Batch) -> Batch:
    """Return a rollout with its advantages and values, computed by the model that made it.

    Args:
      batch: see `RewardObjective.completions`.
    Returns:
      The batch with `advantages`, `returns`, `values` and, with a reference,
      `reference_log_probabilities`, float32 [B, K, N]; 0 after the end of a completion.
    """
    completions = self.completions(model, batch)
    w_BKN = completions.weights_BKN
    V_BKN = predict_values(model, completions.outputs, w_BKN.shape) * w_BKN
    next_w_BKN = jnp.pad(w_BKN, ((0, 0), (0, 0), (0, 1)))[..., 1:]
    reward_BKN = (
      -self.beta * (completions.rollout_BKN - completions.reference_BKN)
      + (w_BKN - next_w_BKN) * completions.reward_BK[..., None]
    )

    def step_back(next_token, token):
      A_BK, V_BK = next_token
      reward_BK, value_BK, w_BK = token
      A_BK = (reward_BK + self.gamma * V_BK - value_BK + self.gamma * self.gae_lambda * A_BK) * w_BK
      return (A_BK, value_BK), A_BK

    by_token = jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), (reward_BKN, V_BKN, w_BKN))
    zeros_BK = jnp.zeros(w_BKN.shape[:2])
    _, A_NBK = jax.lax.scan(step_back, (zeros_BK, zeros_BK), by_token, reverse=True)
    A_BKN = jnp.moveaxis(A_NBK, 0, -1)
    estimates = {"advantages": whiten(A_BKN, w_BKN), "returns": A_BKN + V_BKN, "values": V_BKN}
    if self.needs_reference:
      estimates["reference_log_probabilities"] = completions.reference_BKN
    return batch | jax.lax.stop_gradient(estimates)

  def __call__(self, model, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, Sums]:
    """Run the model on a batch.

    Args:
      model: see `RewardObjective.completions`, with a value head.
      batch: see `estimate_advantages`, which the model applies to a batch without advantages.
      key: not used.
    Returns:
      (loss sum, sums), sums over tokens: `loss`, `policy_loss`, `value_loss` (without its weight),
      `clip_fraction`, with a reference `kl`, and `weights` (tokens); over completions `reward` and
      `completion_length`, with their weights; and the scalars of the model.
    """
    if "advantages" not in batch:
      batch = self.estimate_advantages(model, batch)
    completions = self.completions(model, batch)
    A_BKN = batch["advantages"]
    R_BKN = batch["returns"]
    rollout_V_BKN = batch["values"]
    w_BKN = completions.weights_BKN
    ratio_BKN = jnp.exp(completions.policy_BKN - completions.rollout_BKN)
    unclipped_BKN = ratio_BKN * A_BKN
    clipped_BKN = jnp.clip(ratio_BKN, 1 - self.clip, 1 + self.clip) * A_BKN
    V_BKN = predict_values(model, completions.outputs, w_BKN.shape)
    clipped_V_BKN = jnp.clip(
      V_BKN, rollout_V_BKN - self.value_clip, rollout_V_BKN + self.value_clip
    )
    metrics = {
      "policy_loss": -jnp.minimum(unclipped_BKN, clipped_BKN),
      "value_loss": 0.5 * jnp.maximum(jnp.square(V_BKN - R_BKN), jnp.square(clipped_V_BKN - R_BKN)),
      "clip_fraction": (clipped_BKN < unclipped_BKN).astype(jnp.float32),
    }
    if self.needs_reference:
      metrics["kl"] = k3(completions.policy_BKN, completions.reference_BKN)
    sums = {name: jnp.sum(x_BKN * w_BKN) for name, x_BKN in metrics.items()}
    loss = sums["policy_loss"] + self.value_weight * sums["value_loss"]
    tokens = w_BKN.sum()
    count = completions.real_BK.sum()
    sums |= {
      "loss": loss,
      "weights": tokens,
      "completion_length": tokens,
      "completion_weights": count,
    }
    sums |= {
      "reward": jnp.sum(completions.reward_BK * completions.real_BK),
      "reward_weights": count,
    }
    return add_auxiliary(loss, sums, completions.outputs)


def predict_values(model, outputs: dict, shape: tuple[int, int, int]) -> jax.Array:
  """Return the values of the states before the last N tokens, float32 [B, K, N].

  Args:
    outputs: the outputs of the model on rows [B * K, T].
    shape: (B, K, N).
  """
  x_RND = outputs["logits"].x[:, -shape[-1] :]
  return model.value(x_RND.astype(jnp.float32)).reshape(shape)


def whiten(x_BKN: jax.Array, weights_BKN: jax.Array) -> jax.Array:
  """Scale numbers to mean 0 and variance 1 where the weight is 1; return 0 elsewhere.

  The variance is a sample's, with n - 1.
  """
  n = jnp.sum(weights_BKN)
  mean = jnp.sum(x_BKN * weights_BKN) / jnp.maximum(n, 1.0)
  centred_BKN = (x_BKN - mean) * weights_BKN
  variance = jnp.sum(jnp.square(centred_BKN)) / jnp.maximum(n - 1.0, 1.0)
  return centred_BKN * jax.lax.rsqrt(variance + _EPSILON)
