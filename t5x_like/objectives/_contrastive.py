"""Embed batches of pairs, optionally in parts, and compare all rows of the global batch."""

import jax
import jax.numpy as jnp

from t5x_like.errors import UserError
from t5x_like.nn.dims import subkey
from t5x_like.objectives import BaseObjective
from t5x_like.objectives._losses import Batch
from t5x_like.parallel.constrain import constrain

# the logit of a masked pair; finite, so that rows without weight keep finite gradients
MASKED = -1e9


class ImageTextObjective(BaseObjective):
  """The base of objectives on pairs, where image i belongs to text i.

  Subclasses have a field `chunks`.
  """

  model_inputs = ("text_input_tokens",)
  targets = "text_input_tokens"
  weights = "example_weights"
  extra_features = ("image",)
  outputs = {"image_embeddings": 2, "text_embeddings": 2}
  reported_sums = ("loss", "correct")
  uses_batch_negatives = True
  predict_inputs = ("images with texts",)


def embed_in_chunks(
  model, batch: Batch, key: jax.Array | None, chunks: int
) -> dict[str, jax.Array]:
  """Return the outputs of a model for a batch, encoded in `chunks` parts one after the other.

  The backward pass encodes each part again, so memory holds the activations of only one part at a
  time (Pham et al. 2021, section 4). The gradient is the same as if the batch were encoded at once;
  the computation grows by a third.
  """
  if chunks == 1:
    return model.outputs(batch, key)

  def encode_part(indexed_part):
    index, part = indexed_part
    return model.outputs(part, subkey(key, index))

  features = {name: batch[name] for name in model.REQUIRED_FEATURES}
  parts = jax.tree.map(lambda x: split_rows(x, chunks), features)
  outputs = jax.lax.map(jax.checkpoint(encode_part), (jnp.arange(chunks), parts))
  return {name: merge_rows(x) if x.ndim > 2 else x.mean() for name, x in outputs.items()}


def split_rows(x: jax.Array, chunks: int) -> jax.Array:
  """Reshape [B, …] to [chunks, B / chunks, …]; every device keeps its rows.

  Raises:
    UserError: `chunks` does not divide the batch size.
  """
  if len(x) % chunks:
    raise UserError(
      f"config.objective.chunks: found {chunks}, expected a divisor of the batch size {len(x)}"
    )
  x = jnp.swapaxes(x.reshape(len(x) // chunks, chunks, *x.shape[1:]), 0, 1)
  return constrain(x, None, "batch", *[None] * (x.ndim - 2))


def merge_rows(x: jax.Array) -> jax.Array:
  """Reverse `split_rows`."""
  return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])


def map_chunks(function, chunks: int, *arrays: jax.Array) -> jax.Array:
  """Apply `function(*rows) -> arrays [b]` to the rows of arrays in `chunks` parts.

  The backward pass computes each part again.
  """
  if chunks == 1:
    return function(*arrays)
  parts = tuple(split_rows(x, chunks) for x in arrays)
  outputs = jax.lax.map(jax.checkpoint(lambda rows: function(*rows)), parts)
  return jax.tree.map(merge_rows, outputs)


def gather_rows(x: jax.Array) -> jax.Array:
  """Gather all rows of the global batch on every device."""
  return constrain(x, *[None] * x.ndim)


def inner_products(a_bP: jax.Array, b_BP: jax.Array) -> jax.Array:
  """Return the inner products of all pairs, float32 [b, B]; the cosines of unit vectors.

  They have full precision, because losses multiply them by up to 100.
  """
  return jnp.einsum(
    "bP,BP->bB", a_bP, b_BP, precision="highest", preferred_element_type=jnp.float32
  )
