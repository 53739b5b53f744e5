"""Shared by the objectives on pairs of an image and a text: embeddings of a batch, a part of it at a time if asked."""

import jax
import jax.numpy as jnp

from t5x_like.errors import UserError
from t5x_like.nn.dims import subkey
from t5x_like.objectives import Base
from t5x_like.objectives._losses import Batch
from t5x_like.parallel.constrain import constrain

MASKED = -1e9  # finite, so that rows without weight keep finite gradients


class Pairs(Base):
  """Images and texts, of which row i of the one belongs to row i of the other. The subclasses have a field `chunks`."""

  beside = ("text_input_tokens",)
  targets = "text_input_tokens"
  weights = "example_weights"
  also = ("image",)
  outputs = {"image_embeddings": 2, "text_embeddings": 2}
  gives = ("loss", "correct")
  among_rows = True


def embedded(model, batch: Batch, key: jax.Array | None, chunks: int) -> dict[str, jax.Array]:
  """The outputs of a model for a batch, which is encoded in `chunks` parts, one after another.

  The backward pass encodes each part again, so that activations of one part are held at a time (Pham et al. 2021,
  section 4): the gradient is that of the whole batch, for a third more work.
  """
  if chunks == 1:
    return model.outputs(batch, key)

  def encoded(indexed):
    index, part = indexed
    return model.outputs(part, subkey(key, index))

  parts = jax.tree.map(lambda x: split(x, chunks), {name: batch[name] for name in model.NEEDS})
  found = jax.lax.map(jax.checkpoint(encoded), (jnp.arange(chunks), parts))
  return {name: joined(x) if x.ndim > 2 else x.mean() for name, x in found.items()}


def split(x: jax.Array, chunks: int) -> jax.Array:
  """[B, …] -> [chunks, B / chunks, …]; every device keeps the rows that it holds.

  Raises:
    UserError: the batch does not divide.
  """
  if len(x) % chunks:
    raise UserError(f"config.objective.chunks: found {chunks}, expected a divisor of the batch size {len(x)}")
  x = jnp.swapaxes(x.reshape(len(x) // chunks, chunks, *x.shape[1:]), 0, 1)
  return constrain(x, None, "batch", *[None] * (x.ndim - 2))


def joined(x: jax.Array) -> jax.Array:
  """The inverse of `split`."""
  return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])


def by_rows(function, chunks: int, *arrays: jax.Array) -> jax.Array:
  """`function(*rows)`, arrays [b], of all rows of some arrays, in `chunks` parts, one after another; the backward pass
  computes each again."""
  if chunks == 1:
    return function(*arrays)
  found = jax.lax.map(jax.checkpoint(lambda rows: function(*rows)), tuple(split(x, chunks) for x in arrays))
  return jax.tree.map(joined, found)


def whole(x: jax.Array) -> jax.Array:
  """All rows of the global batch, on every device."""
  return constrain(x, *[None] * x.ndim)


def cosines(a_bP: jax.Array, b_BP: jax.Array) -> jax.Array:
  """float32 [b, B]; at full precision, as they are multiplied by up to 100."""
  return jnp.einsum("bP,BP->bB", a_bP, b_BP, precision="highest", preferred_element_type=jnp.float32)
