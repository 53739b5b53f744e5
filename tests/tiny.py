"""Small models and batches for tests, of sizes that compile in a second or two."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_like.architectures.design import Variant
from t5x_like.models import t5
from t5x_like.nn import params
from t5x_like.nn.dims import Dims

VOCAB = 64


def sizes(version: str = "1.1", **changes) -> Variant:
  """Return the sizes of a tiny T5 of either version; `changes` are fields of `Dims`."""
  fields = dict(embed=16, heads=4, head_dim=4, mlp=32, layers=2) | changes
  design = t5.V1_1 if version == "1.1" else t5.V1_0
  return Variant(Dims(kv_heads=fields["heads"], **fields), design, VOCAB)


def maker(size: Variant, *, family=t5, **arguments):
  """Return a function from a random key to a model; `family` is a module of `models/`."""
  return lambda key: family.Model(nnx.Rngs(params=key), variant=size, **arguments)


def model(size: Variant, *, noisy: bool = True, **arguments):
  """Return a model with random weights; see `maker`."""
  random_model = jax.jit(maker(size, **arguments))(jax.random.key(7))
  return add_noise(random_model) if noisy else random_model


def abstract(size: Variant, **arguments):
  """Return the model without weights; see `maker`."""
  return jax.eval_shape(maker(size, **arguments), jax.random.key(0))


def add_noise(model):
  """Return the model with noise on all arrays, so that no scale is one and no bias is zero."""
  generator = np.random.default_rng(3)
  arrays = {n: np.asarray(a) for n, a in params.arrays(model).items()}
  noisy = {}
  for name, array in arrays.items():
    noise = 0.1 * generator.standard_normal(array.shape)
    noisy[name] = jnp.asarray(array + noise, jnp.float32)
  return params.with_arrays(model, noisy)


def batch(
  rows: int, S: int, T: int, *, vocab: int = VOCAB, seed: int = 0, padded: bool = True
) -> dict:
  """Return random features of an encoder-decoder; rows end in padding of different lengths."""
  generator = np.random.default_rng(seed)
  encoder = generator.integers(2, vocab, (rows, S)).astype(np.int32)
  targets = generator.integers(2, vocab, (rows, T)).astype(np.int32)
  weights = np.ones((rows, T), np.float32)
  if padded:
    for row in range(rows):
      encoder[row, S - generator.integers(0, S // 2) :] = 0
      end = T - generator.integers(0, T // 2)
      targets[row, end:] = 0
      weights[row, end:] = 0.0
  decoder = np.concatenate([np.zeros((rows, 1), np.int32), targets[:, :-1]], axis=1)
  return {
    "encoder_input_tokens": encoder,
    "decoder_input_tokens": decoder,
    "decoder_target_tokens": targets,
    "decoder_loss_weights": weights,
  }


def relative_error(actual: dict, expected: dict) -> float:
  """Return the largest distance between leaves of two trees, relative to the expected norm."""

  def leaf_error(actual_leaf, expected_leaf) -> float:
    expected_leaf = np.asarray(expected_leaf, np.float64)
    distance = np.linalg.norm(np.asarray(actual_leaf, np.float64) - expected_leaf)
    return float(distance / max(np.linalg.norm(expected_leaf), 1e-30))

  errors = jax.tree.map(leaf_error, actual, expected)
  return max(jax.tree.leaves(errors))
