"""Random arrays and generators of parameters for tests, and comparisons of trees of arrays."""

import jax
import numpy as np
from flax import nnx


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
  """Return float32 draws from N(0, scale²)."""
  return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def rngs(seed: int = 0) -> nnx.Rngs:
  """Return a source of keys for the parameters of a module."""
  return nnx.Rngs(params=jax.random.key(seed))


def assert_trees_close(actual, expected, *, rtol: float, atol: float):
  """Assert that two trees have as many arrays, and that these are equal within the tolerances."""
  for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(a, e, rtol=rtol, atol=atol)


def assert_gradients_close(actual: dict, expected: dict, *, rtol: float, atol: float):
  """Assert that gradients by name are equal; `atol` is a share of each one's largest value."""
  assert actual.keys() == expected.keys()
  for name, gradient in expected.items():
    scale = np.abs(gradient).max()
    np.testing.assert_allclose(actual[name], gradient, rtol=rtol, atol=atol * scale, err_msg=name)
