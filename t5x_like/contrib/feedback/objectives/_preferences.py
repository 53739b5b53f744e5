"""Base and sums of the objectives on pairs of answers."""

from collections.abc import Collection

import jax
import jax.numpy as jnp

from t5x_like.objectives._cross_entropy import statistics
from t5x_like.objectives._losses import Batch, DecoderTargets, Sums, add_auxiliary


class PreferenceObjective(DecoderTargets):
  """The base of objectives on pairs of answers, features [B, 2, …]."""

  multi_row = True

  @classmethod
  def missing_features(cls, features: Collection[str]) -> list[str]:
    """Return the required features that `features` lacks."""
    missing = super().missing_features(features)
    if "decoder_log_probabilities" in features:  # a task of prompts, which has no answers
      missing.append("a chosen and a rejected answer")
    return missing


def answer_log_probabilities(logits, rows: Batch) -> jax.Array:
  """Sum the log-probabilities of each row's weighted targets: float32 [B, 2]."""
  log_z_RT, target_logit_RT, *_ = statistics(logits, rows["decoder_target_tokens"], total=False)
  return jnp.sum((target_logit_RT - log_z_RT) * rows["decoder_loss_weights"], axis=1).reshape(-1, 2)


def sum_over_pairs(
  weights_B2T: jax.Array, loss_B: jax.Array, figures: dict[str, jax.Array], outputs: dict
) -> tuple[jax.Array, Sums]:
  """Sum over the pairs that are not padding, which have a weighted token.

  Args:
    weights_B2T: weights of the tokens of both answers.
    loss_B, figures: the loss and further figures of every pair, [B].
    outputs: the model's.
  Returns:
    (loss sum, sums): `loss`, `weights` (pairs), `figures`, and the scalars of the model.
  """
  pairs_B = jnp.any(weights_B2T > 0, axis=(1, 2)).astype(jnp.float32)
  loss = jnp.sum(loss_B * pairs_B)
  sums = {"loss": loss, "weights": jnp.sum(pairs_B)} | {
    name: jnp.sum(x * pairs_B) for name, x in figures.items()
  }
  return add_auxiliary(loss, sums, outputs)
