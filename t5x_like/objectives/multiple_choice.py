"""Multiple choice: cross-entropy of the right option among an example's options."""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_like.errors import UserError
from t5x_like.objectives import BaseObjective, flatten_rows
from t5x_like.objectives._losses import Batch, Sums, add_auxiliary


@dataclasses.dataclass(frozen=True)
class Objective(BaseObjective):
  """Cross-entropy of the right option, by a softmax over the scores of an example's options.

  Devlin et al. 2019, section 4.4; Radford et al. 2018, section 3.3. The probabilities of several
  right options are added.
  """

  unit = "nats per example"
  likelihood = True
  model_inputs = ("encoder_input_tokens",)
  targets = "label"
  weights = "example_weights"
  extra_features = ("option_labels",)
  outputs = {"logits": 2}
  reported_sums = ("loss", "correct")
  multi_row = True

  @classmethod
  def check(cls, model, features) -> None:
    """Raise UserError if the head is for another number of options."""
    choices = getattr(model.head, "choices", None)
    (options,) = features["option_labels"].shape
    if choices is not None and choices != options:
      raise UserError(
        f"config.model.head.choices: found {choices}, but the task has {options}; set "
        f"--config.model.head.choices={options}"
      )

  def __call__(self, model, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, Sums]:
    """Run the model on a batch.

    Args:
      model: a model with the head `multiple_choice`.
      batch: the model's features, [B, C, …], of C options; `option_labels` int32 [B, C], 2 for
        right, 1 for wrong and 0 for missing options; `example_weights` float32 [B].

    Returns:
      (loss sum, sums): `loss`, `correct` (the best option is a right one), `weights`, and the
      scalars of the model.
    """
    outputs = model(flatten_rows(batch), key)
    labels_BC = batch["option_labels"]
    weights_B = batch["example_weights"]
    scores_BC = jnp.where(labels_BC > 0, outputs["logits"].astype(jnp.float32), -1e9)
    right_BC = jnp.where(labels_BC == 2, scores_BC, -1e9)
    loss_B = jax.nn.logsumexp(scores_BC, axis=1) - jax.nn.logsumexp(right_BC, axis=1)
    correct_B = (jnp.max(right_BC, axis=1) >= jnp.max(scores_BC, axis=1)).astype(jnp.float32)
    loss = jnp.sum(loss_B * weights_B)
    sums = {"loss": loss, "correct": jnp.sum(correct_B * weights_B), "weights": jnp.sum(weights_B)}
    return add_auxiliary(loss, sums, outputs)
