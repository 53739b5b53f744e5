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
    batch: `label` int32 [B] and `example_weights` float32 [B]; for mixed examples also `other_label` int32 [B] and
      `label_share` float32 [B], the share of `label`, which weights the losses of the two labels.
    loss: one of `LABEL_LOSSES`: cross-entropy, or the mean of the binary cross-entropies of all classes (DeiT III).
  """
  label_B, weights_B = batch["label"], batch["example_weights"]
  shares = [(label_B, weights_B)]
  if "other_label" in batch:
    share_B = batch["label_share"]
    shares = [(label_B, weights_B * share_B), (batch["other_label"], weights_B * (1.0 - share_B))]
  found = [LABEL_LOSSES[loss](logits_BV.astype(jnp.float32), *one, label_smoothing) for one in shares]
  total, sums = jax.tree.map(lambda *x: sum(x), *found)
  return total, {name: sums[name] for name in ("loss", "correct", "weights")}


def _softmax(logits_BV: jax.Array, label_B: jax.Array, weights_B: jax.Array, label_smoothing: float):
  return token_losses(logits_BV[:, None], label_B[:, None], weights_B[:, None], label_smoothing, 0.0)


def _sigmoid(logits_BV: jax.Array, label_B: jax.Array, weights_B: jax.Array, label_smoothing: float):
  V = logits_BV.shape[-1]
  target_B = jnp.take_along_axis(logits_BV, label_B[:, None], axis=-1)[:, 0]
  low, high = label_smoothing / max(V - 1, 1), 1.0 - label_smoothing
  # The binary cross-entropy of a target y is softplus(x) - y x.
  softplus_B, total_B = jnp.mean(jax.nn.softplus(logits_BV), axis=-1), jnp.sum(logits_BV, axis=-1)
  smoothed_B = softplus_B - ((high - low) * target_B + low * total_B) / V
  each = {"loss": softplus_B - target_B / V, "correct": target_B >= jnp.max(logits_BV, axis=-1), "weights": 1.0}
  return jnp.sum(smoothed_B * weights_B), {name: jnp.sum(x * weights_B) for name, x in each.items()}


LABEL_LOSSES = {"softmax": _softmax, "sigmoid": _sigmoid}
