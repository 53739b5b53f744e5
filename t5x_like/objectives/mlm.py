"""Masked language modelling, with BERT's next-sentence prediction if data and model support it."""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_like.objectives._losses import (
  Batch,
  EncoderTargets,
  Sums,
  add_auxiliary,
  masked_targets,
  spread_evenly,
  token_losses,
)


@dataclasses.dataclass(frozen=True)
class Objective(EncoderTargets):
  """Mean MLM loss over predicted tokens + mean next-sentence loss over examples.

  Devlin et al. 2019, appendix A.2: "the sum of the mean masked LM likelihood and the mean next
  sentence prediction likelihood".

  A step divides the loss by one number, the predicted tokens of the global batch. So the
  next-sentence loss of every example, a pair of segments, is weighted by the mean number of
  predicted tokens per example. The quotient is then the sum of the two means. `prepare` computes
  this weight from the global batch, before a step splits it, so the weight does not depend on the
  number of devices or accumulation steps.

  Attributes:
    z_loss: coefficient of `log(Z)^2` of the token predictions.
    next_sentence: weight of the second mean.
  """

  unit = "nats per target token"
  likelihood = True
  predict_inputs = ("texts",)
  reported_sums = (*EncoderTargets.reported_sums, "next_sentence_loss", "next_sentence_accuracy")

  z_loss: float = 0.0
  next_sentence: float = 1.0

  def prepare(self, batch: Batch, model) -> Batch:
    """Add `next_sentence_weights`, the predicted tokens per pair, if there are labels.

    The weights are float32 of the labels' shape.
    """
    if "next_sentence_label" not in batch:
      return batch
    weights_BS = batch["encoder_loss_weights"]
    real = jnp.any(weights_BS > 0, axis=1)
    if "encoder_cls_positions" in batch:
      firsts_BP = batch["encoder_cls_positions"]
      real = real[:, None] & ((firsts_BP > 0) | (jnp.arange(firsts_BP.shape[1]) == 0))
    return batch | {
      "next_sentence_weights": spread_evenly(jnp.sum(weights_BS), real.astype(jnp.float32))
    }

  def __call__(self, model, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, Sums]:
    """Run the model on a batch.

    Args:
      batch: the model's features, `encoder_target_tokens` int32 [B, S], `encoder_loss_weights`
        float32 [B, S], and for next sentences `next_sentence_label` int32 [B] (0 follows, 1 is from
        elsewhere). If rows hold several pairs, it is [B, P], and the pairs begin at
        `encoder_cls_positions` int32 [B, P]; the first entry and unused entries are 0. With
        `encoder_masked_positions` int32 [B, K], logits are computed at these positions only.

    Returns:
      (loss sum, sums): `loss`, `z_loss`, `correct` and `weights` of the masked tokens; with next
      sentences `next_sentence_loss`, `next_sentence_accuracy` and `next_sentence_weights` of the
      examples; and the scalars of the model.
    """
    outputs = model.outputs(batch, key)
    loss, sums = token_losses(outputs["logits"], *masked_targets(batch), 0.0, self.z_loss)
    loss, sums = add_auxiliary(loss, sums, outputs)
    if "next_sentence_logits" not in outputs or "next_sentence_label" not in batch:
      return loss, sums
    if "next_sentence_weights" not in batch:
      batch = self.prepare(batch, model)
    weights = batch["next_sentence_weights"]
    label = batch["next_sentence_label"]
    logits = outputs["next_sentence_logits"].astype(jnp.float32)  # [B, 2] or [B, P, 2]
    log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), label[..., None], axis=-1)[..., 0]
    real = (weights > 0).astype(jnp.float32)
    sums |= {
      "next_sentence_loss": -jnp.sum(log_p * real),
      "next_sentence_accuracy": jnp.sum((jnp.argmax(logits, axis=-1) == label) * real),
      "next_sentence_weights": jnp.sum(real),
    }
    return loss - self.next_sentence * jnp.sum(log_p * weights), sums
