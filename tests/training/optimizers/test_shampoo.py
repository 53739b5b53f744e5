"""Shampoo equals its formula in NumPy, with updates as large as Adam's."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.optimizers.test_soap import compute_updates, draw_gradients


def matrix_power(x, power):
  values, vectors = np.linalg.eigh(x)
  return (vectors * (values + 1e-3 * values[-1]) ** power) @ vectors.T


@pytest.mark.parametrize("widest", [9, 5], ids=["both", "one"])
def test_updates_follow_the_formula(widest):
  """Roots are computed at every second step and reused at the next one."""
  gradients = draw_gradients((6, 4))[:4]
  b1 = 0.9
  b2 = 0.99
  updates = compute_updates(gradients, "shampoo", b1=b1, b2=b2, every=2, widest=widest, ridge=1e-3)
  left_statistics = np.zeros((6, 6))
  right = np.zeros((4, 4))
  mu = 0.0
  nu = 0.0
  for step, g in enumerate(np.asarray(g, np.float64) for g in gradients):
    left_statistics = b2 * left_statistics + (1 - b2) * g @ g.T
    right = b2 * right + (1 - b2) * g.T @ g
    mu = b1 * mu + (1 - b1) * g
    nu = b2 * nu + (1 - b2) * g**2
    scale = 1 - b2 ** (step + 1)
    if step % 2 == 0:
      power = -1 / 4 if widest == 9 else -1 / 2
      roots = (
        (matrix_power(left_statistics / scale, power) if widest == 9 else np.eye(6)),
        matrix_power(right / scale, power),
      )
    adam = mu / (1 - b1 ** (step + 1)) / (np.sqrt(nu / scale) + 1e-8)
    direction = roots[0] @ mu @ roots[1]
    expected = -0.1 * direction * np.linalg.norm(adam) / np.linalg.norm(direction)
    np.testing.assert_allclose(
      updates[step], expected, rtol=5e-3, atol=5e-4 * np.abs(expected).max()
    )


def test_shampoo_without_preconditioners_equals_adam():
  gradients = draw_gradients((6, 4))
  for expected, update in zip(
    compute_updates(gradients, "adamw"), compute_updates(gradients, "shampoo", widest=1)
  ):
    np.testing.assert_allclose(update, expected, rtol=1e-5, atol=1e-7)


def test_updates_of_zero_gradients_are_zero():
  assert not np.any(compute_updates([jnp.zeros((3, 2))] * 2, "shampoo"))
