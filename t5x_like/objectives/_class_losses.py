"""Classification losses shared by objectives."""

import jax
import jax.numpy as jnp

from t5x_like.objectives._losses import Batch, Sums, token_losses


def label_losses(
  logits_BV: jax.Array, batch: Batch, label_smoothing: float = 0.0, loss: str = "softmax"
) -> tuple[jax.Array, Sums]:
  """Return (loss sum, sums) of classification: `loss` without smoothing, `correct` and `weights`.

  Args:
    logits_BV: any float dtype; computed in float32.
    batch: `label` int32 [B] and `example_weights` float32 [B]; for mixed examples also
      `other_label` int32 [B] and `label_share` float32 [B], the share of `label` in the image.
    label_smoothing: probability spread evenly over all classes, the label's among them, as in torch
      and timm.
    loss: one of `LABEL_LOSSES`: cross-entropy, weighted by the shares of the two labels, or the
      mean of the binary cross-entropies of all classes, where both labels are right whatever their
      shares (DeiT III).
  """
  shares = [(batch["label"], jnp.ones_like(batch["example_weights"]))]
  if "other_label" in batch:
    share_B = batch["label_share"]
    shares = [(batch["label"], share_B), (batch["other_label"], 1.0 - share_B)]
  logits_BV = logits_BV.astype(jnp.float32)
  smoothing = label_smoothing * (1.0 - 1.0 / logits_BV.shape[-1])  # the part that leaves the label
  # the first of equal logits: all are equal in a new head, and often in bfloat16
  best_B = jnp.argmax(logits_BV, axis=-1)
  total = 0
  sums = {"loss": 0, "correct": 0, "weights": 0}
  for label_B, share_B in shares:
    weights_B = batch["example_weights"] * share_B
    label_total, label_sums = _cross_entropy(logits_BV, label_B, weights_B, smoothing)
    total += label_total
    sums["loss"] += label_sums["loss"]
    sums["correct"] += jnp.sum((best_B == label_B) * weights_B)
    sums["weights"] += label_sums["weights"]
  if loss == "sigmoid":
    total, sums["loss"] = _binary_cross_entropy(
      logits_BV, shares, batch["example_weights"], label_smoothing
    )
  return total, sums


def _cross_entropy(
  logits_BV: jax.Array, label_B: jax.Array, weights_B: jax.Array, label_smoothing: float
):
  return token_losses(
    logits_BV[:, None], label_B[:, None], weights_B[:, None], label_smoothing, 0.0
  )


def _binary_cross_entropy(
  logits_BV: jax.Array, shares: list, weights_B: jax.Array, label_smoothing: float
) -> tuple[jax.Array, jax.Array]:
  """Return the sum of the losses with smoothing, and without.

  Args:
    shares: (label [B], its share of the example [B]) for each label of an example.
  """
  V = logits_BV.shape[-1]
  right_BV = sum((share_B > 0)[:, None] * jax.nn.one_hot(label_B, V) for label_B, share_B in shares)
  right_BV = jnp.minimum(right_BV, 1.0)  # two images of one class
  smooth_BV = (1.0 - label_smoothing) * right_BV + label_smoothing / V

  def weighted_sum(target_BV):
    # The binary cross-entropy of a target y is softplus(x) - y x.
    loss_B = jnp.mean(jax.nn.softplus(logits_BV) - target_BV * logits_BV, axis=-1)
    return jnp.sum(loss_B * weights_B)

  return weighted_sum(smooth_BV), weighted_sum(right_BV)


LABEL_LOSSES = ("softmax", "sigmoid")
