"""The encoder-decoder objective: cross-entropy of the decoder's targets, with label smoothing and z-loss."""

import dataclasses

import jax
import jax.numpy as jnp

Sums = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Objective:
  """Sums over target tokens, never means: whoever has all sums of a global batch divides once.

  Attributes:
    label_smoothing: probability moved from the target to the other V - 1 tokens (Szegedy et al. 2016), with the
      constant that makes a perfect prediction cost zero, as in T5X.
    z_loss: coefficient of `log(Z)^2`, which keeps the logits from drifting (Mesh TensorFlow; T5 uses 1e-4).
  """

  label_smoothing: float = 0.0
  z_loss: float = 0.0

  def __call__(self, model, batch: dict[str, jax.Array], key: jax.Array | None = None) -> tuple[jax.Array, Sums]:
    """Runs the model on a batch.

    Args:
      batch: the model's features and `decoder_target_tokens` [B, T] int32, `decoder_loss_weights` [B, T] float32.
      key: dropout key; None evaluates.
    Returns:
      (sum of the weighted losses, sums): the sums are `loss` (cross-entropy alone), `z_loss`, `correct` and `weights`,
      and what the model says of itself; see `add_auxiliary`.
    """
    outputs = model(batch, key)
    targets_BT, weights_BT = batch["decoder_target_tokens"], batch["decoder_loss_weights"]
    loss, sums = token_losses(outputs["logits"], targets_BT, weights_BT, self.label_smoothing, self.z_loss)
    return add_auxiliary(loss, sums, outputs)


def add_auxiliary(loss: jax.Array, sums: Sums, outputs: dict[str, jax.Array]) -> tuple[jax.Array, Sums]:
  """Adds the scalars among a model's outputs, such as those of a router, to an objective's (loss sum, sums).

  They are means, so each counts once for every unit of weight; those named `…_loss` are trained on, as they are.
  """
  scalars = {name: value * sums["weights"] for name, value in outputs.items() if jnp.ndim(value) == 0}
  losses = [value for name, value in scalars.items() if name.endswith("_loss")]
  return sum(losses, loss), sums | scalars


def token_losses(
  logits_BTV: jax.Array, targets_BT: jax.Array, weights_BT: jax.Array, label_smoothing: float, z_loss: float
) -> tuple[jax.Array, Sums]:
  """Weighted sums of cross-entropy in nats; see `Objective`."""
  logits_BTV = logits_BTV.astype(jnp.float32)
  V = logits_BTV.shape[-1]
  log_z_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
  # A masked sum rather than a gather: it fuses, and its gradient needs no scatter when the vocabulary is split.
  at_target_BTV = jax.lax.broadcasted_iota(jnp.int32, logits_BTV.shape, 2) == targets_BT[..., None]
  target_logit_BT = jnp.sum(jnp.where(at_target_BTV, logits_BTV, 0.0), axis=-1)
  cross_entropy_BT = log_z_BT - target_logit_BT
  loss_BT = cross_entropy_BT
  if label_smoothing:
    low = label_smoothing / (V - 1)
    high = 1.0 - label_smoothing
    # -sum_v p_v log softmax_v  =  log Z - (high - low) * logit_target - low * sum_v logit_v
    loss_BT = log_z_BT - (high - low) * target_logit_BT - low * jnp.sum(logits_BTV, axis=-1)
    loss_BT += high * jnp.log(high) + (V - 1) * low * jnp.log(low)
  z_BT = z_loss * jnp.square(log_z_BT)
  correct_BT = (target_logit_BT >= jnp.max(logits_BTV, axis=-1)).astype(jnp.float32)
  sums = {
    "loss": jnp.sum(cross_entropy_BT * weights_BT),
    "z_loss": jnp.sum(z_BT * weights_BT),
    "correct": jnp.sum(correct_BT * weights_BT),
    "weights": jnp.sum(weights_BT),
  }
  return jnp.sum((loss_BT + z_BT) * weights_BT), sums
