"""Extractive question answering: the answer's start and end (Devlin et al. 2019, section 4.2)."""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_like.objectives import BaseObjective
from t5x_like.objectives._losses import Sums, add_auxiliary, token_losses


@dataclasses.dataclass(frozen=True)
class Objective(BaseObjective):
  """The mean of the cross-entropies of the answer's start and end.

  Both softmaxes are over all positions but padding.
  """

  unit = "nats per example"
  model_inputs = ("encoder_input_tokens",)
  targets = "span_start"
  weights = "example_weights"
  extra_features = ("span_end",)
  outputs = {"start_logits": 2, "end_logits": 2}
  reported_sums = ("loss", "correct")

  def __call__(
    self, model, batch: dict[str, jax.Array], key: jax.Array | None = None
  ) -> tuple[jax.Array, Sums]:
    """Run a model with a span head on a batch.

    Args:
      batch: the model's features, `span_start` and `span_end` int32 [B] (0, the first token, if
        there is no answer) and `example_weights` float32 [B].

    Returns:
      (loss sum, sums): `loss`, `correct` (both ends), `weights`, and the scalars of the model.
    """
    outputs = model(batch, key)
    weights_B1 = batch["example_weights"][:, None]
    tokens_BS = batch["encoder_input_tokens"]
    is_padding_BS = (tokens_BS == model.variant.tokens.pad) & (jnp.arange(tokens_BS.shape[1]) > 0)
    losses = []
    hits = []
    for end in ("start", "end"):
      logits_BS = jnp.where(is_padding_BS, -1e9, outputs[f"{end}_logits"].astype(jnp.float32))
      target_B = batch[f"span_{end}"]
      loss, _ = token_losses(logits_BS[:, None], target_B[:, None], weights_B1, 0.0, 0.0)
      losses.append(loss)
      hits.append(jnp.argmax(logits_BS, axis=1) == target_B)
    loss = 0.5 * (losses[0] + losses[1])
    correct = jnp.sum((hits[0] & hits[1]).astype(jnp.float32) * weights_B1[:, 0])
    return add_auxiliary(
      loss, {"loss": loss, "correct": correct, "weights": jnp.sum(weights_B1)}, outputs
    )
