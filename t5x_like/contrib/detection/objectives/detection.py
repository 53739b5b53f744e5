"""Detection as set prediction: match each box with one query (DETR).

Source: Carion et al. 2020, section 3.1.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from t5x_like.errors import UserError
from t5x_like.objectives import BaseObjective
from t5x_like.objectives._losses import Sums
from t5x_like.parallel.constrain import per_device

_EPSILON = 1e-9
_TOTALS = "detection_totals"


@dataclasses.dataclass(frozen=True)
class Objective(BaseObjective):
  """Classify all queries, and regress the boxes of the matched ones.

  The loss is the cross-entropy of the classes of all queries, and the L1 distance and generalised
  IoU loss of the matched queries' boxes.

  The matching minimises the sum of costs: the negative probability of the class and the two box
  losses. Every decoder layer has these losses and its own matching.

  Attributes:
    class_cost, l1, giou: weights of the matching costs; `l1` and `giou` also weight the losses.
    no_object: weight of the cross-entropy of queries without a box.
    earlier: whether the decoder layers before the last have losses too.
  """

  model_inputs = ("image_size",)
  targets = "box_labels"
  weights = "example_weights"
  extra_features = ("boxes",)
  outputs = {"logits": 3, "boxes": 3}
  reported_sums = ("loss", "class_loss", "l1_loss", "giou_loss", "matched_accuracy")
  spare_classes = 1
  predict_inputs = ("images",)

  class_cost: float = 1.0
  l1: float = 5.0
  giou: float = 2.0
  no_object: float = 0.1
  earlier: bool = True

  @classmethod
  def class_count_key(cls) -> str:
    return "labels"

  @classmethod
  def check(cls, model, features: dict) -> None:
    max_boxes = features["boxes"].shape[0]
    queries = model.variant.queries
    if max_boxes > queries:
      raise UserError(
        f"config.model.queries: found {queries}, but images have up to {max_boxes} boxes "
        "(config.task.boxes), each of which needs a query of its own; set "
        f"--config.model.queries={max_boxes} or more"
      )

  def prepare(self, batch: dict[str, jax.Array], model) -> dict[str, jax.Array]:
    """Add the global batch's numbers of boxes and images, which divide the losses, to each row."""
    totals_2 = jnp.stack([jnp.sum(_box_weights(batch)), jnp.sum(batch["example_weights"])])
    return batch | {_TOTALS: jnp.broadcast_to(totals_2, (len(batch["boxes"]), 2))}

  def __call__(
    self, model, batch: dict[str, jax.Array], key: jax.Array | None = None
  ) -> tuple[jax.Array, Sums]:
    """Run the model on a batch.

    Args:
      batch: the model's features, and `boxes` float32 [B, M, 4] (ymin, xmin, ymax, xmax, as shares
        of the image), `box_labels` int32 [B, M], -1 for padding, and `example_weights` float32 [B].
    Returns:
      (loss sum, sums): `loss`, of all layers; `weights`, the number of boxes; and for the last
      layer `class_loss` with `class_weights`, `l1_loss`, `giou_loss`, and `matched_accuracy`, the
      number of matched queries whose likeliest class is right.
    """
    if _TOTALS not in batch:
      batch = self.prepare(batch, model)
    outputs = model.outputs(batch, key)
    logits_BLQV = outputs["logits"][:, None]
    boxes_BLQ4 = outputs["boxes"][:, None]
    if self.earlier and "earlier_logits" in outputs:
      logits_BLQV = jnp.concatenate([outputs["earlier_logits"], logits_BLQV], axis=1)
      boxes_BLQ4 = jnp.concatenate([outputs["earlier_boxes"], boxes_BLQ4], axis=1)
    Q, V = logits_BLQV.shape[2:]
    real_BM = _box_weights(batch)
    examples_B = batch["example_weights"]
    target_BM4 = jnp.where(real_BM[..., None] > 0, to_centre_form(batch["boxes"]), 0.5)
    label_BM = jnp.where(real_BM > 0, batch["box_labels"], 0)

    log_p_BLQV = jax.nn.log_softmax(logits_BLQV)
    matched_BLMQ = self._match(jnp.exp(log_p_BLQV), boxes_BLQ4, label_BM, target_BM4, real_BM)
    has_box_BLQ = jnp.max(matched_BLMQ, axis=2)  # 1 if a query has a box
    no_object_class = V - 1
    matched_class_BLQ = jnp.sum(matched_BLMQ * label_BM[:, None, :, None], axis=2)
    class_BLQ = (matched_class_BLQ + (1.0 - has_box_BLQ) * no_object_class).astype(jnp.int32)
    nll_BLQ = -jnp.take_along_axis(log_p_BLQV, class_BLQ[..., None], axis=-1)[..., 0]
    weight_BLQ = (has_box_BLQ + self.no_object * (1.0 - has_box_BLQ)) * examples_B[:, None, None]
    class_loss_BL = jnp.sum(nll_BLQ * weight_BLQ, axis=2)

    query_BLM = jnp.argmax(matched_BLMQ, axis=3)
    predicted_BLM4 = jnp.take_along_axis(boxes_BLQ4, query_BLM[..., None], axis=2)
    real_B1M = real_BM[:, None]
    target_B1M4 = target_BM4[:, None]
    l1_BL = jnp.sum(jnp.sum(jnp.abs(predicted_BLM4 - target_B1M4), axis=-1) * real_B1M, axis=2)
    giou_BL = jnp.sum((1.0 - generalised_iou(predicted_BLM4, target_B1M4)) * real_B1M, axis=2)

    num_boxes, num_images = batch[_TOTALS][0]
    # The loss is divided by the number of boxes later, but the class loss by the queries' weights.
    total_weight = num_boxes + self.no_object * (num_images * Q - num_boxes)
    share = jnp.maximum(num_boxes, 1.0) / jnp.maximum(total_weight, _EPSILON)
    loss = jnp.sum(share * class_loss_BL + self.l1 * l1_BL + self.giou * giou_BL)
    right_BQ = (jnp.argmax(logits_BLQV[:, -1], axis=-1) == class_BLQ[:, -1]) * has_box_BLQ[:, -1]
    return loss, {
      "loss": loss,
      "weights": jnp.sum(real_BM),
      "class_loss": jnp.sum(class_loss_BL[:, -1]),
      "class_weights": jnp.sum(weight_BLQ[:, -1]),
      "l1_loss": jnp.sum(l1_BL[:, -1]),
      "giou_loss": jnp.sum(giou_BL[:, -1]),
      "matched_accuracy": jnp.sum(right_BQ * examples_B[:, None]),
    }

  def _match(self, p_BLQV, boxes_BLQ4, label_BM, target_BM4, real_BM) -> jax.Array:
    """Return the matching, float32 [B, L, M, Q]: 1 for a box and its query.

    Padding matches no query.
    """
    label_B1M = jnp.broadcast_to(label_BM[:, None], (*p_BLQV.shape[:2], label_BM.shape[1]))
    p_BLMQ = jnp.take_along_axis(jnp.swapaxes(p_BLQV, 2, 3), label_B1M[..., None], axis=2)
    predicted_BL1Q4 = boxes_BLQ4[:, :, None]
    target_B1M14 = target_BM4[:, None, :, None]
    l1_BLMQ = jnp.sum(jnp.abs(predicted_BL1Q4 - target_B1M14), axis=-1)
    cost_BLMQ = (
      self.l1 * l1_BLMQ
      - self.class_cost * p_BLMQ
      - self.giou * generalised_iou(predicted_BL1Q4, target_B1M14)
    )
    # Padding costs the same for all queries, so it does not affect the matching of real boxes. A
    # NaN would never match.
    cost_BLMQ = jnp.nan_to_num(cost_BLMQ * real_BM[:, None, :, None])
    matched = per_device(
      assign_queries, (jax.lax.stop_gradient(cost_BLMQ),), (("batch", None, None, None),)
    )
    return matched * real_BM[:, None, :, None]


def assign_queries(cost_BLMQ: jax.Array) -> jax.Array:
  """Return the assignment of least cost of M boxes to Q queries, float32 [B, L, M, Q]; M <= Q.

  Each row of a matrix [M, Q] holds a single 1, each column at most one.
  """

  def solve(cost_MQ):
    rows, columns = optax.assignment.hungarian_algorithm(cost_MQ)
    return jnp.zeros_like(cost_MQ).at[rows, columns].set(1.0)

  return jax.vmap(jax.vmap(solve))(cost_BLMQ)


def to_centre_form(boxes: jax.Array) -> jax.Array:
  """Convert boxes from (ymin, xmin, ymax, xmax) to (centre x, centre y, width, height)."""
  y0, x0, y1, x1 = jnp.moveaxis(boxes, -1, 0)
  return jnp.stack([(x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0], axis=-1)


def generalised_iou(a: jax.Array, b: jax.Array) -> jax.Array:
  """Compute the GIoU of boxes in centre form, both [..., 4], which are broadcast.

  Source: Rezatofighi et al. 2019, algorithm 1.
  """
  low_a = a[..., :2] - a[..., 2:] / 2
  high_a = a[..., :2] + a[..., 2:] / 2
  low_b = b[..., :2] - b[..., 2:] / 2
  high_b = b[..., :2] + b[..., 2:] / 2

  def area(low, high):
    return jnp.prod(jnp.maximum(high - low, 0.0), axis=-1)

  intersection = area(jnp.maximum(low_a, low_b), jnp.minimum(high_a, high_b))
  union = area(low_a, high_a) + area(low_b, high_b) - intersection
  hull = area(jnp.minimum(low_a, low_b), jnp.maximum(high_a, high_b))
  return intersection / jnp.maximum(union, _EPSILON) - (hull - union) / jnp.maximum(hull, _EPSILON)


def _box_weights(batch: dict[str, jax.Array]) -> jax.Array:
  """Return the weight of each box, float32 [B, M]: the example's weight, 0 for padding."""
  return (batch["box_labels"] >= 0) * batch["example_weights"][:, None]
