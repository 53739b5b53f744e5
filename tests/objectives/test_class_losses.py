"""When several classes tie for the largest logit, accuracy takes the first as the prediction."""

import jax.numpy as jnp

from t5x_like.objectives._class_losses import label_losses


def test_tied_logits_predict_the_first_class():
  batch = {"label": jnp.arange(4), "example_weights": jnp.array([1.0, 1.0, 1.0, 0.0])}
  _, sums = label_losses(jnp.zeros((4, 4), jnp.bfloat16), batch)
  assert sums["correct"] == 1
  assert sums["weights"] == 3
  mixed = batch | {
    "other_label": jnp.array([1, 0, 2, 0]),
    "label_share": jnp.array([0.75, 0.75, 0.75, 0.5]),
  }
  # Example 0 has class 0 with share 0.75; example 1 has it as the other label with share 0.25.
  assert label_losses(jnp.zeros((4, 4)), mixed)[1]["correct"] == 1.0
