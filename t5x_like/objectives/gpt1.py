"""GPT-1's fine-tuning: labels from a row's last token, with auxiliary language modelling (Radford
et al. 2018)."""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_like.objectives import Base, flatten_rows
from t5x_like.objectives._losses import Batch, Sums, add_auxiliary, spread_evenly, token_losses


@dataclasses.dataclass(frozen=True)
class Objective(Base):
  """L2 + lambda * L1 (equation 5): the labels' mean loss over examples + lambda * the language
  model's over tokens.

  An example has one row; or two rows, a pair in both orders, whose scores are added; or one row per
  option, with a softmax over the options' scores. As in `objectives.mlm`, `prepare` weights every
  token so that one division serves both means.

  Attributes:
    language_model: lambda; 0 drops L1.
  """

  model_inputs = ("decoder_input_tokens",)
  targets = "label"
  weights = "example_weights"
  extra_features = ("decoder_target_tokens", "decoder_loss_weights")
  outputs = {"scores": 2}
  unit = "mean of examples"
  likelihood = True  # of the labels
  reported_sums = ("loss", "correct", "language_model_loss", "language_model_accuracy")
  advice = "set --config.task.architecture=decoder"

  language_model: float = 0.5

  multi_row = True

  def prepare(self, batch: Batch, model) -> Batch:
    """Add `language_model_weights` float32 [B, R, S]: examples per predicted token of their
    rows."""
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
      kinds_BR = batch["option_labels"]
      option_scores_BR = jnp.where(kinds_BR > 0, scores_BRC[..., 0], -1e9)
      right_scores_BR = jnp.where(kinds_BR == 2, option_scores_BR, -1e9)
      loss_B = jax.nn.logsumexp(option_scores_BR, axis=1) - jax.nn.logsumexp(
        right_scores_BR, axis=1
      )
      correct_B = jnp.max(right_scores_BR, axis=1) >= jnp.max(option_scores_BR, axis=1)
    else:
      log_p_BC = jax.nn.log_softmax(scores_BRC.sum(axis=1))
      loss_B = -jnp.take_along_axis(log_p_BC, label_B[:, None], axis=1)[:, 0]
      correct_B = jnp.argmax(log_p_BC, axis=1) == label_B
    loss = jnp.sum(loss_B * weights_B)
    sums = {"loss": loss, "weights": jnp.sum(weights_B)}
    if correct_B is not None:
      sums["correct"] = jnp.sum(correct_B * weights_B)
    # the same for all tokens
    token_weights_RS = batch["language_model_weights"].reshape(rows["decoder_loss_weights"].shape)
    real_RS = (token_weights_RS > 0).astype(jnp.float32)
    token_loss, token_sums = token_losses(
      outputs["logits"], rows["decoder_target_tokens"], real_RS, 0.0, 0.0
    )
    sums |= {
      "language_model_loss": token_sums["loss"],
      "language_model_accuracy": token_sums["correct"],
      "language_model_weights": token_sums["weights"],
    }
    return add_auxiliary(
      loss + self.language_model * jnp.max(token_weights_RS) * token_loss, sums, outputs
    )
