"""Accuracy counts the first of several likeliest classes as the prediction, as top-1 does."""

import jax.numpy as jnp

from t5x_like.objectives._class_losses import label_losses


def test_equal_logits_are_right_for_the_first_class_only():
  batch = {"label": jnp.arange(4), "example_weights": jnp.array([1.0, 1.0, 1.0, 0.0])}
  _, sums = label_losses(jnp.zeros((4, 4), jnp.bfloat16), batch)
  assert (sums["correct"], sums["weights"]) == (1, 3)
  mixed = batch | {
    "other_label": jnp.array([1, 0, 2, 0]),
    "label_share": jnp.array([0.75, 0.75, 0.75, 0.5]),
  }
  # 0.75 of the first, 0.25 of the second
  assert label_losses(jnp.zeros((4, 4)), mixed)[1]["correct"] == 1.0
