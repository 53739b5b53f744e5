"""Shared by the objectives on pairs of answers."""

import jax
import jax.numpy as jnp

from t5x_like.objectives._cross_entropy import statistics
from t5x_like.objectives._losses import Batch


def log_probabilities(logits, rows: Batch) -> jax.Array:
  """Sum the log-probabilities of each row's weighted targets: float32 [B, 2]."""
  log_z_RT, target_logit_RT, *_ = statistics(logits, rows["decoder_target_tokens"], total=False)
  return jnp.sum((target_logit_RT - log_z_RT) * rows["decoder_loss_weights"], axis=1).reshape(-1, 2)
