"""Weighted sums of cross-entropy that objectives share.

`spread_evenly` computes weights by which one division yields two means.
"""

import jax
import jax.numpy as jnp

from t5x_like.nn.vocabulary_logits import VocabularyLogits
from t5x_like.objectives import BaseObjective
from t5x_like.objectives._cross_entropy import statistics

Batch = dict[str, jax.Array]
Sums = dict[str, jax.Array]


class EncoderTargets(BaseObjective):
  """The base of objectives that predict some or all tokens of an encoder."""

  model_inputs = ("encoder_input_tokens",)
  targets = "encoder_target_tokens"
  weights = "encoder_loss_weights"


class DecoderTargets(BaseObjective):
  """Cross-entropy of a decoder's targets.

  Subclasses have the fields `label_smoothing` and `z_loss`.
  """

  model_inputs = ("decoder_input_tokens",)
  targets = "decoder_target_tokens"
  weights = "decoder_loss_weights"

  def __call__(self, model, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, Sums]:
    """Run the model on a batch.

    Args:
      batch: the model's features and `decoder_target_tokens` [B, T] int32, `decoder_loss_weights`
        [B, T] float32.

    Returns:
      (sum of the weighted losses, sums): `loss` (cross-entropy alone), `z_loss`, `correct` and
      `weights`, and the scalars of the model; see `add_auxiliary`.
    """
    outputs = model.outputs(batch, key)
    targets_BT = batch[self.targets]
    weights_BT = batch[self.weights]
    loss, sums = token_losses(
      outputs["logits"], targets_BT, weights_BT, self.label_smoothing, self.z_loss
    )
    return add_auxiliary(loss, sums, outputs)


def add_auxiliary(loss: jax.Array, sums: Sums, outputs: dict) -> tuple[jax.Array, Sums]:
  """Add the scalars among a model's outputs, such as a router's losses, to an objective's sums.

  The scalars are means, so each is multiplied by the sum of weights. Scalars named `…_loss` are
  also added to the loss.

  Returns:
    (loss sum, sums).
  """
  scalars = {name: value * sums["weights"] for name, value in outputs.items() if value.ndim == 0}
  losses = [value for name, value in scalars.items() if name.endswith("_loss")]
  return sum(losses, loss), sums | scalars


def token_losses(
  logits: jax.Array | VocabularyLogits,
  targets_BT: jax.Array,
  weights_BT: jax.Array,
  label_smoothing: float,
  z_loss: float,
) -> tuple[jax.Array, Sums]:
  """Compute weighted sums of cross-entropy, in nats.

  Args:
    logits: [B, T, V], any float dtype; computed in float32. `VocabularyLogits` are computed in
      chunks.
    targets_BT: int32; weights_BT: float32.
    label_smoothing: probability moved from the target to the other V - 1 tokens (Szegedy et al.
      2016), with the constant that makes a perfect prediction cost zero, as in T5X.
    z_loss: coefficient of `log(Z)^2`, which keeps the logits from drifting (Mesh TensorFlow; T5
      uses 1e-4).

  Returns:
    (sum of the losses, sums): `loss` (cross-entropy alone), `z_loss`, `correct` and `weights`.
  """
  V = logits.shape[-1]
  log_z_BT, target_logit_BT, total_BT, peak_BT = statistics(
    logits, targets_BT, total=label_smoothing > 0
  )
  cross_entropy_BT = log_z_BT - target_logit_BT
  loss_BT = cross_entropy_BT
  if label_smoothing:
    low = label_smoothing / (V - 1)
    high = 1.0 - label_smoothing
    # -sum_v p_v log softmax_v  =  log Z - (high - low) * logit_target - low * sum_v logit_v
    loss_BT = log_z_BT - (high - low) * target_logit_BT - low * total_BT
    loss_BT += high * jnp.log(high) + (V - 1) * low * jnp.log(low)
  z_BT = z_loss * jnp.square(log_z_BT)
  correct_BT = (target_logit_BT >= peak_BT).astype(jnp.float32)
  sums = {
    "loss": jnp.sum(cross_entropy_BT * weights_BT),
    "z_loss": jnp.sum(z_BT * weights_BT),
    "correct": jnp.sum(correct_BT * weights_BT),
    "weights": jnp.sum(weights_BT),
  }
  return jnp.sum((loss_BT + z_BT) * weights_BT), sums


def masked_targets(batch: Batch) -> tuple[jax.Array, jax.Array]:
  """Return targets int32 and weights float32 [B, K] at `encoder_masked_positions`.

  Without this feature, return the targets and weights of all positions, [B, S]. Unused slots of a
  row point to position 0, which holds [CLS] and has no weight.
  """
  return gather_masked(batch, "encoder_target_tokens"), gather_masked(batch, "encoder_loss_weights")


def gather_masked(batch: Batch, name: str) -> jax.Array:
  """Gather a feature [B, S] at the batch's `encoder_masked_positions` [B, K].

  The feature is unchanged if the batch has no such positions.
  """
  if "encoder_masked_positions" not in batch:
    return batch[name]
  return jnp.take_along_axis(batch[name], batch["encoder_masked_positions"], axis=1)


def spread_evenly(total: jax.Array, real: jax.Array) -> jax.Array:
  """Divide `total` equally among the positions where `real` is 1.

  A sum with these weights, divided by `total`, is a mean over these positions.
  """
  return real * (total / jnp.maximum(jnp.sum(real), 1.0))
