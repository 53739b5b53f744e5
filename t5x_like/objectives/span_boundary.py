"""SpanBERT: masked language modelling of spans, and their prediction from the spans' boundaries."""

import dataclasses

import jax
import jax.numpy as jnp

from t5x_like.errors import UserError
from t5x_like.nn.dims import subkey
from t5x_like.objectives._losses import (
  EncoderTargets,
  Sums,
  add_auxiliary,
  gather_masked,
  masked_targets,
  token_losses,
)


@dataclasses.dataclass(frozen=True)
class Objective(EncoderTargets):
  """The sum L_MLM + L_SBO (Joshi et al. 2020, sections 3.2 and 3.3).

  Both losses are over the same tokens, so one division yields both means.

  Attributes:
    span_boundary: weight of L_SBO.
  """

  unit = "nats per target token"
  likelihood = True
  predict_inputs = ("texts",)
  extra_features = ("encoder_span_starts", "encoder_span_ends")
  reported_sums = (*EncoderTargets.reported_sums, "span_boundary_loss", "span_boundary_accuracy")
  advice = "set --config.task.masking=spans"

  span_boundary: float = 1.0

  def __call__(
    self, model, batch: dict[str, jax.Array], key: jax.Array | None = None
  ) -> tuple[jax.Array, Sums]:
    """Run an encoder with the head `span_boundary` on a batch.

    Args:
      batch: as for `objectives.mlm`, with `encoder_span_starts` and `encoder_span_ends` int32 [B,
        S], the positions before and after the span of each predicted token.

    Returns:
      (loss sum, sums): `loss`, `z_loss`, `correct`, `weights` of the masked language model,
      `span_boundary_loss` and `span_boundary_accuracy`.

    Raises:
      UserError: the model has no such head.
    """
    if not hasattr(model.head, "predict_from_boundary"):
      raise UserError(
        "objective span_boundary: the model has no head for it; set "
        "--config.model.head=span_boundary"
      )
    x_BSD, valid, aux = model.encode(batch, subkey(key, 0))
    all_positions_BS = jnp.broadcast_to(jnp.arange(x_BSD.shape[1]), x_BSD.shape[:2])
    positions_BK = batch.get("encoder_masked_positions", all_positions_BS)
    targets_BK, weights_BK = masked_targets(batch)
    outputs = model.head(x_BSD, model.embed, valid, subkey(key, 1), positions_BK) | aux
    loss, sums = token_losses(outputs["logits"], targets_BK, weights_BK, 0.0, 0.0)
    loss, sums = add_auxiliary(loss, sums, outputs)
    starts_BK = gather_masked(batch, "encoder_span_starts")
    ends_BK = gather_masked(batch, "encoder_span_ends")
    logits_BKV = model.head.predict_from_boundary(
      x_BSD, positions_BK, starts_BK, ends_BK, model.embed
    )
    boundary_loss, boundary = token_losses(logits_BKV, targets_BK, weights_BK, 0.0, 0.0)
    sums |= {"span_boundary_loss": boundary["loss"], "span_boundary_accuracy": boundary["correct"]}
    return loss + self.span_boundary * boundary_loss, sums
