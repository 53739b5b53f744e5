"""GPT-1's fine-tuning: classification with auxiliary language modelling (Radford et al. 2018).

The labels are predicted from a row's last token.
"""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_like.objectives import BaseObjective, flatten_rows
from t5x_like.objectives._losses import Batch, Sums, add_auxiliary, spread_evenly, token_losses


@dataclasses.dataclass(frozen=True)
class Objective(BaseObjective):
  """The loss `L2 + lambda * L1` of fine-tuning (equation 5).

  L2 is the labels' loss, a mean over examples. L1 is the language model's loss, a mean over tokens.
  The trainer divides the sum of both by the number of examples. Therefore `prepare` gives every
  token the weight examples / tokens, which makes L1 a mean too, as in `objectives.mlm`.

  An example has one row; or two rows, a pair of texts in both orders, whose scores are added; or
  one row per option, with a softmax over the options' scores.

  Attributes:
    language_model: lambda; 0 drops L1.
  """

  model_inputs = ("decoder_input_tokens",)
  targets = "label"
  weights = "example_weights"
  extra_features = ("decoder_target_tokens", "decoder_loss_weights")
  outputs = {"scores": 2}
  unit = "mean of examples"
  likelihood = True  # the reported `loss` is the loss of the labels only
  reported_sums = ("loss", "correct", "language_model_loss", "language_model_accuracy")
  advice = "set --config.task.architecture=decoder"
  multi_row = True

  language_model: float = 0.5

  def prepare(self, batch: Batch, model) -> Batch:
    """Add `language_model_weights` float32 [B, R, S], the weight of every predicted token.

    It is the number of examples divided by the number of predicted tokens, and 0 elsewhere.
    """
    weights_B = batch["example_weights"]
    real_BRS = batch["decoder_loss_weights"] * (weights_B > 0)[:, None, None]
    return batch | {"language_model_weights": spread_evenly(jnp.sum(weights_B), real_BRS)}

  def __call__(self, model, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, Sums]:
    """Run a decoder with scores on a batch.

    Args:
      model: a decoder with `config.model.scores` scores: the number of classes, or 1 for regression
        and options.
      batch: the model's features, `decoder_target_tokens` and `decoder_loss_weights`, all [B, R,
        S]; `label` [B], `example_weights` float32 [B], and for options `option_labels` int32 [B,
        R], as `multiple_choice` makes them.

    Returns:
      (loss sum, sums): `loss`, `correct` (not for regression) and `weights` of the examples,
      `language_model_loss`, `language_model_accuracy` and `language_model_weights` of the tokens,
      and the scalars of the model.
    """
    if "language_model_weights" not in batch:
      batch = self.prepare(batch, model)
    rows = flatten_rows(batch)
    B, R, _ = batch["decoder_input_tokens"].shape
    outputs = model.outputs(rows, key)
    scores_BRC = outputs["scores"].reshape(B, R, -1)
    label_B = batch["label"]
    weights_B = batch["example_weights"]
    if jnp.issubdtype(label_B.dtype, jnp.floating):
      loss_B = jnp.square(scores_BRC[..., 0].sum(axis=1) - label_B)
      correct_B = None
    elif "option_labels" in batch:
      loss_B, correct_B = _score_options(scores_BRC[..., 0], batch["option_labels"])
    else:
      log_p_BC = jax.nn.log_softmax(scores_BRC.sum(axis=1))
      loss_B = -jnp.take_along_axis(log_p_BC, label_B[:, None], axis=1)[:, 0]
      correct_B = jnp.argmax(log_p_BC, axis=1) == label_B
    loss = jnp.sum(loss_B * weights_B)
    sums = {"loss": loss, "weights": jnp.sum(weights_B)}
    if correct_B is not None:
      sums["correct"] = jnp.sum(correct_B * weights_B)
    # All predicted tokens have the same weight, which multiplies their sum below.
    token_weights_RS = batch["language_model_weights"].reshape(rows["decoder_loss_weights"].shape)
    real_RS = (token_weights_RS > 0).astype(jnp.float32)
    token_loss, token_sums = token_losses(
      outputs["logits"],
      rows["decoder_target_tokens"],
      real_RS,
      label_smoothing=0.0,
      z_loss=0.0,
    )
    sums |= {
      "language_model_loss": token_sums["loss"],
      "language_model_accuracy": token_sums["correct"],
      "language_model_weights": token_sums["weights"],
    }
    total_loss = loss + self.language_model * jnp.max(token_weights_RS) * token_loss
    return add_auxiliary(total_loss, sums, outputs)


def _score_options(scores_BR: jax.Array, labels_BR: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Return the loss [B] and whether the best option is right [B].

  Args:
    scores_BR: scores of the options.
    labels_BR: 2 for a right option, 1 for a wrong one, 0 where an example has no more options.
  """
  option_scores_BR = jnp.where(labels_BR > 0, scores_BR, -1e9)
  right_scores_BR = jnp.where(labels_BR == 2, option_scores_BR, -1e9)
  log_z_B = jax.nn.logsumexp(option_scores_BR, axis=1)
  loss_B = log_z_B - jax.nn.logsumexp(right_scores_BR, axis=1)
  correct_B = jnp.max(right_scores_BR, axis=1) >= jnp.max(option_scores_BR, axis=1)
  return loss_B, correct_B
