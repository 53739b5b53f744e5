"""Detection matches and costs boxes as numpy and scipy do, and ignores padding."""

import jax
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from t5x_like.contrib.detection.objectives import detection

generator = np.random.default_rng(0)


def giou(a, b) -> float:
  """Return GIoU of two boxes by centre and size, in plain Python."""
  (ax0, ay0, ax1, ay1) = (a[0] - a[2] / 2, a[1] - a[3] / 2, a[0] + a[2] / 2, a[1] + a[3] / 2)
  (bx0, by0, bx1, by1) = (b[0] - b[2] / 2, b[1] - b[3] / 2, b[0] + b[2] / 2, b[1] + b[3] / 2)
  intersection = max(0.0, min(ax1, bx1) - max(ax0, bx0)) * max(0.0, min(ay1, by1) - max(ay0, by0))
  union = (ax1 - ax0) * (ay1 - ay0) + (bx1 - bx0) * (by1 - by0) - intersection
  hull = (max(ax1, bx1) - min(ax0, bx0)) * (max(ay1, by1) - min(ay0, by0))
  return intersection / union - (hull - union) / hull


def reference(outputs, batch, no_object=0.1, l1=5.0, giou_weight=2.0) -> dict[str, float]:
  """Return DETR's losses by loops: sums over layers of means over boxes."""
  logits = np.concatenate([outputs["earlier_logits"], outputs["logits"][:, None]], 1).astype(
    np.float64
  )
  boxes = np.concatenate([outputs["earlier_boxes"], outputs["boxes"][:, None]], 1).astype(
    np.float64
  )
  B, L, Q, V = logits.shape
  p = np.exp(logits - logits.max(-1, keepdims=True))
  p /= p.sum(-1, keepdims=True)
  number = int((batch["box_labels"] >= 0).sum())
  total = 0.0
  last = {}
  for layer in range(L):
    weighted = weights = far = wide = 0.0
    for row in range(B):
      real = np.flatnonzero(batch["box_labels"][row] >= 0)
      labels = batch["box_labels"][row, real]
      y0, x0, y1, x1 = batch["boxes"][row, real].astype(np.float64).T
      targets = np.stack([(x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0], 1)
      predicted_boxes = boxes[row, layer]
      box_distance = np.array(
        [[np.abs(f - t).sum() for t in targets] for f in predicted_boxes]
      ).reshape(Q, len(real))
      overlap = np.array([[giou(f, t) for t in targets] for f in predicted_boxes]).reshape(
        Q, len(real)
      )
      queries, chosen = linear_sum_assignment(
        l1 * box_distance - p[row, layer][:, labels] - giou_weight * overlap
      )
      classes = np.full(Q, V - 1)
      classes[queries] = labels[chosen]
      weight = np.where(classes == V - 1, no_object, 1.0)
      weighted += (-np.log(p[row, layer, np.arange(Q), classes]) * weight).sum()
      weights += weight.sum()
      far += box_distance[queries, chosen].sum()
      wide += (1 - overlap[queries, chosen]).sum()
    total += weighted / weights + (l1 * far + giou_weight * wide) / number
    last = {"class_loss": weighted / weights, "l1_loss": far / number, "giou_loss": wide / number}
  return {"loss": total} | last


class Fixed:
  """Stand in for a model with fixed outputs."""

  def __init__(self, outputs):
    self.given = outputs

  def outputs(self, batch, key=None):
    return self.given


@jax.jit
def losses(outputs, batch):
  return detection.Objective()(Fixed(outputs), batch)


def case(B=3, L=3, Q=9, M=6, V=5):

  def f32(*shape):
    return generator.standard_normal(shape).astype(np.float32)

  def boxes(*shape):
    return np.asarray(jax.nn.sigmoid(f32(*shape)))

  outputs = {"logits": 2 * f32(B, Q, V), "boxes": boxes(B, Q, 4)}
  outputs |= {"earlier_logits": 2 * f32(B, L - 1, Q, V), "earlier_boxes": boxes(B, L - 1, Q, 4)}
  low = generator.uniform(0, 0.6, (B, M, 2))
  corners = np.concatenate([low, low + generator.uniform(0.05, 0.4, (B, M, 2))], -1).astype(
    np.float32
  )
  labels = generator.integers(0, V - 1, (B, M)).astype(np.int32)
  labels[0, 4:] = -1
  labels[1] = -1  # an image without boxes
  batch = {"boxes": corners, "box_labels": labels, "example_weights": np.ones(B, np.float32)}
  return outputs, batch


def test_losses_equal_those_of_scipys_matching():
  for _ in range(5):
    outputs, batch = case()
    expected = reference(outputs, batch)
    loss, sums = losses(outputs, batch)
    assert sums["weights"] == 10
    assert float(loss / sums["weights"]) == pytest.approx(expected["loss"], rel=1e-5)
    assert float(sums["class_loss"] / sums["class_weights"]) == pytest.approx(
      expected["class_loss"], rel=1e-5
    )
    for name in ("l1_loss", "giou_loss"):
      assert float(sums[name] / sums["weights"]) == pytest.approx(expected[name], rel=1e-5)


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
  padding = {
    "boxes": np.pad(batch["boxes"], ((0, 0), (0, 3), (0, 0)), constant_values=0.7),
    "box_labels": np.pad(batch["box_labels"], ((0, 0), (0, 3)), constant_values=-1),
  }
  graded = jax.jit(jax.value_and_grad(lambda outputs, batch: losses(outputs, batch)[0]))
  for wide in (
    batch | padding,
    batch | {"boxes": np.where(batch["box_labels"][..., None] < 0, np.nan, batch["boxes"])},
  ):
    value, gradient = graded(outputs, wide)
    assert value == pytest.approx(float(loss), rel=1e-6)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradient))
  two = jax.tree.map(lambda x: np.concatenate([x, x[:1]]), (outputs, batch))
  two[1]["example_weights"][3] = 0
  again, its_sums = losses(*two)
  assert float(again) == pytest.approx(float(loss), rel=1e-6)
  assert all(float(its_sums[name]) == pytest.approx(float(x), rel=1e-6) for name, x in sums.items())


def test_values_that_are_not_finite_end_in_a_loss_that_is_not():
  outputs, batch = case()
  outputs["logits"][0, 0] = np.nan
  assert np.isnan(losses(outputs, batch)[0])
