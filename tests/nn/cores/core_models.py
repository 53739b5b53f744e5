"""Build models with a given attention core, and their batches."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_like.architectures.design import Design, Variant
from t5x_like.nn.dims import Dims

T = 30
DIMS = Dims(embed=16, heads=4, kv_heads=2, head_dim=4, mlp=32, layers=2)


def build_model(kind, core, position="rope", **options):
  variant = Variant(DIMS, Design(norm="rmsnorm", position=position), 32)
  return jax.jit(
    lambda key: kind(nnx.Rngs(params=key), variant=variant, design={"core": core}, **options)
  )(jax.random.key(0))


def batch(side):
  tokens = np.random.default_rng(0).integers(2, 32, (2, T)).astype(np.int32)
  tokens[1, 25:] = 0
  return {f"{side}_input_tokens": jnp.asarray(tokens)}
