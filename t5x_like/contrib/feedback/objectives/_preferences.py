"""The base class of the objectives on pairs of answers, and the sums that they share."""

from collections.abc import Collection

import jax
import jax.numpy as jnp

from t5x_like.objectives._cross_entropy import statistics
from t5x_like.objectives._losses import Batch, DecoderTargets, Sums, add_auxiliary


class PreferenceObjective(DecoderTargets):
  """The base of objectives on pairs of answers, whose features are [B, 2, …], chosen first."""

  multi_row = True

  @classmethod
  def missing_features(cls, features: Collection[str]) -> list[str]:
    """Return the required features that `features` lacks."""
    missing = super().missing_features(features)
    if "decoder_log_probabilities" in features:  # a task of prompts, which has no answers
      missing.append("a chosen and a rejected answer")
    return missing


def answer_log_probabilities(logits, rows: Batch) -> jax.Array:
  """Sum the log-probabilities of each row's weighted targets: float32 [B, 2].

  Args:
    logits: logits of R = 2 B rows; the two answers of a pair are adjacent.
    rows: the features of these rows.
  """
  log_z_RT, target_logit_RT, *_ = statistics(logits, rows["decoder_target_tokens"], total=False)
  log_probability_RT = (target_logit_RT - log_z_RT) * rows["decoder_loss_weights"]
  return jnp.sum(log_probability_RT, axis=1).reshape(-1, 2)


def sum_over_pairs(
  weights_B2T: jax.Array, loss_B: jax.Array, metrics: dict[str, jax.Array], outputs: dict
) -> tuple[jax.Array, Sums]:
  """Sum over the pairs that have a weighted token; the others are padding.

  Args:
    weights_B2T: weights of the tokens of both answers.
    loss_B: the loss of each pair.
    metrics: further values of each pair, [B], by name.
    outputs: the outputs of the model, whose auxiliary scalars are added.
  Returns:
    (loss sum, sums): `loss`, `weights` (number of pairs), the `metrics`, and the auxiliary scalars.
  """
  pairs_B = jnp.any(weights_B2T > 0, axis=(1, 2)).astype(jnp.float32)
  loss = jnp.sum(loss_B * pairs_B)
  sums = {"loss": loss, "weights": jnp.sum(pairs_B)}
  for name, value_B in metrics.items():
    sums[name] = jnp.sum(value_B * pairs_B)
  return add_auxiliary(loss, sums, outputs)
