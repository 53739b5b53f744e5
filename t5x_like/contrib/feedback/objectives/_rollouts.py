"""The base of the objectives that learn from rewards of completions, and their shared sums."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from t5x_like import slots
from t5x_like.contrib.feedback import rewards
from t5x_like.errors import UserError
from t5x_like.nn.linear import without_adapters
from t5x_like.nn.vocabulary_logits import VocabularyLogits
from t5x_like.objectives import flatten_rows
from t5x_like.objectives._cross_entropy import statistics
from t5x_like.objectives._losses import Batch, DecoderTargets, Sums, add_auxiliary


class Completions(NamedTuple):
  """K completions of B prompts, of at most N tokens; float32.

  Attributes:
    policy_BKN, rollout_BKN, reference_BKN: log-probabilities of the model, of the rollout and of
      the reference, 0 after the end; without a reference, `reference_BKN` is `rollout_BKN`.
    weights_BKN: 1 on tokens, 0 after the end.
    reward_BK: the rewards.
    real_BK: 0 for the padding of a batch.
    outputs: the outputs of the model.
  """

  policy_BKN: jax.Array
  rollout_BKN: jax.Array
  reference_BKN: jax.Array
  weights_BKN: jax.Array
  reward_BK: jax.Array
  real_BK: jax.Array
  outputs: dict


class RewardObjective(DecoderTargets):
  """The base of objectives on rollouts; `training/rollouts.py` makes their batches.

  The model runs without dropout, as it does in the rollout. Subclasses have the fields `reward` (a
  name in `contrib.feedback.rewards` or `module:function`, or such a name and arguments) and `beta`
  (the cost of departing from the reference, which has the run's initial weights; at 0 there is
  none).
  """

  extra_features = ("decoder_log_probabilities", "rewards")
  reported_sums = ("loss", "reward", "groups_with_signal", "kl", "completion_length")
  multi_row = True
  step_module = "rollouts"
  predict_inputs = ("texts",)
  updates: ClassVar[int] = 1  # of the model from each batch of rollouts
  min_completions: ClassVar[int] = 2  # completions of a prompt

  @property
  def needs_reference(self) -> bool:
    return self.beta > 0

  def check(self, model, features: dict) -> None:
    rewards.find_reward(self.reward)
    (completions,) = features["rewards"].shape
    if completions < self.min_completions:
      raise UserError(
        f"config.task.completions: found {completions}, expected at least {self.min_completions}, "
        "as completions of the same prompt are compared with one another"
      )
    experts = model.variant.design.experts
    if not experts or experts.dispatch != "capacity":
      return
    needed_factor = experts.experts / experts.top_k
    if (experts.eval_capacity_factor or experts.capacity_factor) < needed_factor:
      raise UserError(
        "config.model.design.experts.dispatch: found 'capacity', which drops tokens in updates "
        "and none in rollouts, so that their probabilities differ; set it to 'dropless', or "
        f"eval_capacity_factor to {needed_factor:g} or more"
      )

  def completions(self, model, batch: Batch) -> Completions:
    """Run the model, and its reference if there is one, on the rows of a batch.

    Args:
      model: a decoder or an encoder-decoder with adapters, or with `model.reference`.
      batch: features of `completions.py`, [B, K, …], and `rewards` float32 [B, K]; the
        reference is not run if it has `reference_log_probabilities` float32 [B, K, N].
    """
    rows = flatten_rows(batch)
    outputs = model.outputs(rows)
    shape = batch["decoder_log_probabilities"].shape
    weights_BKN = batch[self.weights][..., -shape[-1] :]
    policy_BKN = completion_log_probabilities(outputs["logits"], rows, shape) * weights_BKN
    rollout_BKN = batch["decoder_log_probabilities"] * weights_BKN
    reference_BKN = batch.get("reference_log_probabilities", rollout_BKN)
    if self.needs_reference and "reference_log_probabilities" not in batch:
      reference = getattr(model, "reference", None) or without_adapters(model, merged=False)
      reference_BKN = jax.lax.stop_gradient(
        completion_log_probabilities(reference.outputs(rows)["logits"], rows, shape) * weights_BKN
      )
    real_BK = jnp.any(weights_BKN > 0, axis=-1).astype(jnp.float32)
    return Completions(
      policy_BKN, rollout_BKN, reference_BKN, weights_BKN, batch["rewards"], real_BK, outputs
    )

  def sum_completions(
    self,
    completions: Completions,
    loss_BK: jax.Array,
    tokens: jax.Array | None = None,
    **metrics: jax.Array,
  ) -> tuple[jax.Array, Sums]:
    """Sum the loss and further metrics [B, K] over completions.

    Args:
      tokens: the number of tokens, which divides the loss; None divides it by the number of
        completions.
    Returns:
      (loss sum, sums): `loss`, `weights` (completions or tokens), `reward`, `groups_with_signal`
      (completions of prompts whose rewards differ), `completion_length` (tokens, their end
      included) and `metrics`, each with its own weights if `tokens` are given, and the scalars of
      the model.
    """
    spread_B1 = jnp.ptp(completions.reward_BK, axis=1, keepdims=True)
    metrics |= {
      "reward": completions.reward_BK,
      "groups_with_signal": jnp.broadcast_to(spread_B1 > 0, loss_BK.shape),
      "completion_length": jnp.sum(completions.weights_BKN, axis=-1),
    }
    loss = jnp.sum(loss_BK * completions.real_BK)
    count = jnp.sum(completions.real_BK)
    sums = {name: jnp.sum(x * completions.real_BK) for name, x in metrics.items()}
    if tokens is not None:
      sums |= {f"{name}_weights": count for name in metrics}
    sums |= {"loss": loss, "weights": count if tokens is None else tokens}
    return add_auxiliary(loss, sums, completions.outputs)


def completion_log_probabilities(logits, rows: Batch, shape: tuple[int, int, int]) -> jax.Array:
  """Return the log-probabilities of the last N targets of each row, [B, K, N].

  Args:
    rows: features of rows [B * K, T].
    shape: (B, K, N).
  """
  N = shape[-1]
  if isinstance(logits, VocabularyLogits):
    last = dataclasses.replace(logits, x=logits.x[:, -N:])
  else:
    last = logits[:, -N:]
  log_z_RN, target_RN, *_ = statistics(last, rows["decoder_target_tokens"][:, -N:])
  return (target_RN - log_z_RN).reshape(shape)


def k3(policy_BKN: jax.Array, reference_BKN: jax.Array) -> jax.Array:
  """Return an estimate of KL(model || reference) at each token.

  It is `r - log r - 1` with `r = reference / model`.

  Schulman 2020, "Approximating KL divergence": unbiased for tokens of the model, and never
  negative.
  """
  log_r_BKN = reference_BKN - policy_BKN
  return jnp.expm1(log_r_BKN) - log_r_BKN


def mean_over_tokens(x_BKN: jax.Array, weights_BKN: jax.Array) -> jax.Array:
  """Return the mean of each completion's tokens, [B, K]; 0 for a completion without any."""
  return jnp.sum(x_BKN * weights_BKN, axis=-1) / jnp.maximum(jnp.sum(weights_BKN, axis=-1), 1.0)


def check_reward(reward: str | dict) -> None:
  """Raise UserError for an unknown built-in reward or wrong arguments of it.

  Other rewards are imported when they are needed.
  """
  name, _ = slots.name_and_arguments("config.objective.reward", reward)
  if ":" not in (name or ""):
    rewards.find_reward(reward)
