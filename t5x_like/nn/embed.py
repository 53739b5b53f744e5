"""Token embeddings and the projection back to the vocabulary."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.nn import params
from t5x_like.nn.linear import matmul
from t5x_like.parallel.constrain import constrain


class Embed(nnx.Module):
  """A table of V vectors of width D."""

  def __init__(self, vocab: int, embed: int, rngs: nnx.Rngs, *, init: Callable):
    self.table = params.param(rngs, init, (vocab, embed), ("vocab", "embed"))

  def __call__(self, ids_BT: jax.Array, dtype: jnp.dtype) -> jax.Array:
    # Whole vectors before the lookup: left to itself, the partitioner looks up parts of them for the global batch on
    # every device and then moves the result ("involuntary full rematerialization").
    table_VD = constrain(self.table[...], "vocab", "activation_embed")
    x_BTD = jnp.take(table_VD, ids_BT, axis=0, mode="clip").astype(dtype)
    return constrain(x_BTD, "batch", "length", "activation_embed")

  def attend(self, x_BTD: jax.Array) -> jax.Array:
    """Logits float32 [B, T, V] against the same table (tied embeddings)."""
    return vocabulary_logits(x_BTD, self.table[...].T)


class LogitsHead(nnx.Module):
  """An output projection of its own (untied)."""

  def __init__(self, embed: int, vocab: int, rngs: nnx.Rngs, *, init: Callable):
    self.kernel = params.param(rngs, init, (embed, vocab), ("embed", "vocab"))

  def __call__(self, x_BTD: jax.Array) -> jax.Array:
    return vocabulary_logits(x_BTD, self.kernel[...])


def vocabulary_logits(x_BTD: jax.Array, kernel_DV: jax.Array) -> jax.Array:
  """float32 [B, T, V]: inputs in the compute dtype, accumulated and returned in float32."""
  logits = matmul(x_BTD, kernel_DV.astype(x_BTD.dtype), jnp.float32)
  return constrain(logits, "batch", "length", "activation_vocab")
