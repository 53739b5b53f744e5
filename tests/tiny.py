"""Small T5s, batches and runs for tests: real code at sizes that compile in a second or two."""

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
  """A tiny T5 of either version; `changes` are fields of `Dims`."""
  fields = dict(embed=16, heads=4, head_dim=4, mlp=32, layers=2) | changes
  return Variant(
    Dims(kv_heads=fields["heads"], **fields), t5.V1_1 if version == "1.1" else t5.V1_0, VOCAB
  )


def maker(size: Variant, *, family=t5, **arguments):
  """`key -> model` for a size that is not among the published ones; the family is a module of
  `models/`."""
  return lambda key: family.Model(nnx.Rngs(params=key), variant=size, **arguments)


def model(size: Variant, *, noisy: bool = True, **arguments):
  """A model with random weights; see `maker`."""
  made = jax.jit(maker(size, **arguments))(jax.random.key(7))
  return add_noise(made) if noisy else made


def abstract(size: Variant, **arguments):
  """The model without weights; see `maker`."""
  return jax.eval_shape(maker(size, **arguments), jax.random.key(0))


def add_noise(made):
  """The model with norm scales moved off one and tables and biases off zero, so that none can
  hide."""
  generator = np.random.default_rng(3)
  arrays = {n: np.asarray(a) for n, a in params.arrays(made).items()}
  moved = {
    n: jnp.asarray(a + 0.1 * generator.standard_normal(a.shape), jnp.float32)
    for n, a in arrays.items()
  }
  return params.with_arrays(made, moved)


def batch(
  rows: int, S: int, T: int, *, vocab: int = VOCAB, seed: int = 0, padded: bool = True
) -> dict:
  """Random features of an encoder-decoder; rows end in padding of different lengths."""
  generator = np.random.default_rng(seed)
  encoder = generator.integers(2, vocab, (rows, S)).astype(np.int32)
  targets = generator.integers(2, vocab, (rows, T)).astype(np.int32)
  weights = np.ones((rows, T), np.float32)
  if padded:
    for row in range(rows):
      encoder[row, S - generator.integers(0, S // 2) :] = 0
      end = T - generator.integers(0, T // 2)
      targets[row, end:], weights[row, end:] = 0, 0.0
  decoder = np.concatenate([np.zeros((rows, 1), np.int32), targets[:, :-1]], axis=1)
  return {
    "encoder_input_tokens": encoder,
    "decoder_input_tokens": decoder,
    "decoder_target_tokens": targets,
    "decoder_loss_weights": weights,
  }


def relative_error(actual: dict, expected: dict) -> float:
  """The largest distance between two trees of arrays, each leaf measured against its own norm."""
  errors = jax.tree.map(
    lambda a, b: (
      float(np.linalg.norm(np.asarray(a, np.float64) - np.asarray(b, np.float64)))
      / max(float(np.linalg.norm(np.asarray(b, np.float64))), 1e-30)
    ),
    actual,
    expected,
  )
  return max(jax.tree.leaves(errors))
