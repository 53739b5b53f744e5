"""Detection matches and costs boxes as numpy and scipy do, and ignores padding."""

import jax
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.special import expit, log_softmax

from t5x_like.contrib.detection.objectives import detection

generator = np.random.default_rng(0)


def generalised_iou(a_Q4, b_M4) -> np.ndarray:
  """Return the GIoU of each two boxes, [Q, M], by centres and sizes."""
  a_low = (a_Q4[:, :2] - a_Q4[:, 2:] / 2)[:, None]
  a_high = (a_Q4[:, :2] + a_Q4[:, 2:] / 2)[:, None]
  b_low = b_M4[:, :2] - b_M4[:, 2:] / 2
  b_high = b_M4[:, :2] + b_M4[:, 2:] / 2
  shared_sides = np.maximum(np.minimum(a_high, b_high) - np.maximum(a_low, b_low), 0)
  shared = shared_sides.prod(-1)
  union = (a_high - a_low).prod(-1) + (b_high - b_low).prod(-1) - shared
  hull = (np.maximum(a_high, b_high) - np.minimum(a_low, b_low)).prod(-1)
  return shared / union - (hull - union) / hull


def reference(outputs, batch, no_object=0.1, l1=5.0, giou_weight=2.0) -> dict[str, float]:
  """Return DETR's losses: sums over layers of means over boxes."""
  logits = np.concatenate([outputs["earlier_logits"], outputs["logits"][:, None]], 1)
  boxes = np.concatenate([outputs["earlier_boxes"], outputs["boxes"][:, None]], 1)
  boxes = boxes.astype(np.float64)
  B, L, Q, V = logits.shape
  log_p = log_softmax(logits.astype(np.float64), axis=-1)
  num_boxes = (batch["box_labels"] >= 0).sum()
  total = 0.0
  for layer in range(L):
    class_loss = class_weights = l1_loss = giou_loss = 0.0
    for row in range(B):
      is_real = batch["box_labels"][row] >= 0
      labels = batch["box_labels"][row, is_real]
      y0, x0, y1, x1 = batch["boxes"][row, is_real].astype(np.float64).T
      targets = np.stack([(x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0], 1)
      distance = np.abs(boxes[row, layer][:, None] - targets).sum(-1)
      overlap = generalised_iou(boxes[row, layer], targets)
      class_cost = -np.exp(log_p[row, layer][:, labels])
      cost = l1 * distance + class_cost - giou_weight * overlap
      queries, chosen = linear_sum_assignment(cost)
      classes = np.full(Q, V - 1)
      classes[queries] = labels[chosen]
      weight = np.where(classes == V - 1, no_object, 1.0)
      class_loss -= (log_p[row, layer, np.arange(Q), classes] * weight).sum()
      class_weights += weight.sum()
      l1_loss += distance[queries, chosen].sum()
      giou_loss += (1 - overlap[queries, chosen]).sum()
    last_layer = {
      "class_loss": class_loss / class_weights,
      "l1_loss": l1_loss / num_boxes,
      "giou_loss": giou_loss / num_boxes,
    }
    total += last_layer["class_loss"]
    total += l1 * last_layer["l1_loss"] + giou_weight * last_layer["giou_loss"]
  return last_layer | {"loss": total}


class Fixed:
  """Stand in for a model with fixed outputs."""

  def __init__(self, outputs):
    self._outputs = outputs

  def outputs(self, batch, key=None):
    return self._outputs


@jax.jit
def losses(outputs, batch):
  return detection.Objective()(Fixed(outputs), batch)


def case(B=3, L=3, Q=9, M=6, V=5):
  """Return (random outputs, a batch whose second image has no boxes)."""

  def normal(*shape):
    return generator.standard_normal(shape).astype(np.float32)

  outputs = {
    "logits": 2 * normal(B, Q, V),
    "boxes": expit(normal(B, Q, 4)),
    "earlier_logits": 2 * normal(B, L - 1, Q, V),
    "earlier_boxes": expit(normal(B, L - 1, Q, 4)),
  }
  low = generator.uniform(0, 0.6, (B, M, 2))
  corners = np.concatenate([low, low + generator.uniform(0.05, 0.4, (B, M, 2))], -1)
  labels = generator.integers(0, V - 1, (B, M)).astype(np.int32)
  labels[0, 4:] = -1
  labels[1] = -1
  weights = np.ones(B, np.float32)
  boxes = {"boxes": corners.astype(np.float32), "box_labels": labels}
  return outputs, boxes | {"example_weights": weights}


def test_losses_equal_those_of_scipys_matching():
  for _ in range(5):
    outputs, batch = case()
    expected = reference(outputs, batch)
    loss, sums = losses(outputs, batch)
    assert sums["weights"] == 10
    means = {
      "loss": loss / sums["weights"],
      "class_loss": sums["class_loss"] / sums["class_weights"],
      "l1_loss": sums["l1_loss"] / sums["weights"],
      "giou_loss": sums["giou_loss"] / sums["weights"],
    }
    assert jax.tree.map(float, means) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (4, 9), (7, 7), (12, 13)])
def test_the_assignment_costs_as_little_as_scipys(shape):
  cost = generator.standard_normal((2, 3, *shape)).astype(np.float32)
  cost[0, 1, shape[0] // 2 :] = 0  # boxes that are padding
  assignment = np.asarray(jax.jit(detection.assign_queries)(cost))
  assert (assignment.sum(-1) == 1).all()
  assert (assignment.sum(-2) <= 1).all()
  for cost_matrix, chosen in zip(cost.reshape(-1, *shape), assignment.reshape(-1, *shape)):
    assert (cost_matrix * chosen).sum() == pytest.approx(
      cost_matrix[linear_sum_assignment(cost_matrix)].sum(), abs=1e-5
    )


def test_padding_and_images_without_weight_change_no_loss():
  outputs, batch = case()
  loss, sums = losses(outputs, batch)
  is_padding = batch["box_labels"][..., None] < 0
  more_padding = {
    "boxes": np.pad(batch["boxes"], ((0, 0), (0, 3), (0, 0)), constant_values=0.7),
    "box_labels": np.pad(batch["box_labels"], ((0, 0), (0, 3)), constant_values=-1),
  }
  other_padding = {"boxes": np.where(is_padding, np.nan, batch["boxes"])}
  grade = jax.jit(jax.value_and_grad(lambda outputs, batch: losses(outputs, batch)[0]))
  for padding in (more_padding, other_padding):
    value, gradients = grade(outputs, batch | padding)
    assert value == pytest.approx(float(loss), rel=1e-6)
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())
  outputs, batch = jax.tree.map(lambda x: np.concatenate([x, x[:1]]), (outputs, batch))
  batch["example_weights"][3] = 0
  loss_of_four, sums_of_four = losses(outputs, batch)
  assert float(loss_of_four) == pytest.approx(float(loss), rel=1e-6)
  expected = jax.tree.map(float, sums)
  assert jax.tree.map(float, sums_of_four) == pytest.approx(expected, rel=1e-6)


def test_values_that_are_not_finite_end_in_a_loss_that_is_not():
  outputs, batch = case()
  outputs["logits"][0, 0] = np.nan
  assert np.isnan(losses(outputs, batch)[0])
