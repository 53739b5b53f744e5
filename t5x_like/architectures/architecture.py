"""The base of the three text architectures.

A family in `models/` is one of them with a table of variants. All are called as `model(batch, key)
-> {"logits", …}` with the batch features of T5X; see docs/explanation/architecture.md. Objectives
call `model.outputs` instead and compute logits over the vocabulary themselves. Padding is segment 0
in batches with segment ids, and id `tokens.pad` in others.
"""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.build import resolve_variant, stack_options
from t5x_like.architectures.design import Variant
from t5x_like.nn.embed import Embed
from t5x_like.nn.mask import positions
from t5x_like.nn.vocabulary_logits import materialise_logits
from t5x_like.slots import PositiveInt, Rate

Batch = dict[str, jax.Array]
Dtype = Literal["float32", "bfloat16", "auto"]
Layers = Literal["scan", "loop", "auto"]


class Architecture(nnx.Module):
  """A variant with a recipe's changes, the token table, and the parts that `build` adds.

  Args:
    variant: a name in `VARIANTS`, or a `Variant`. All arguments but `rngs` are keys of
      `config.model`.
    vocab_size: rows of the token table; None for the published number.
    dropout: rate, wherever the design applies dropout.
    dtype: compute dtype; parameters are float32.
    remat: activations kept for the backward pass: one of `nn.remat`, a name or {"name": …} with its
      arguments.
    layers: see `nn.stack.Stack`.
    pipeline: see `nn.pipeline.Pipeline`.
    design, tokens: changes to the variant's design and special ids.
  Raises:
    UserError: names the key, its value and the expected one.
  """

  VARIANTS: ClassVar[dict[str, Variant]] = {}
  # required batch features; outputs are aligned with the last
  REQUIRED_FEATURES: ClassVar[tuple[str, ...]] = ()

  def __init__(
    self,
    rngs: nnx.Rngs,
    *,
    variant: str | Variant,
    vocab_size: PositiveInt | None = None,
    dropout: Rate = 0.0,
    dtype: Dtype = "float32",
    remat: str | dict = "none",
    layers: Layers = "scan",
    pipeline: dict = {},
    design: dict = {},
    tokens: dict = {},
  ):
    self.variant = variant = resolve_variant(
      self.VARIANTS, variant, design, tokens, vocab_size=vocab_size
    )
    self.dtype = jnp.dtype(dtype)
    self.embed = Embed(
      variant.vocab_size,
      variant.embed or variant.dims.embed,
      rngs,
      init=variant.design.table_init(),
    )
    self.build(rngs, **stack_options(dropout, remat, layers, pipeline))

  def build(self, rngs: nnx.Rngs, **options) -> None:
    """Build everything after the token table; `options` go to `StackBuilder`."""
    raise TypeError(f"{type(self).__name__} must define `build`")

  def __call__(self, batch: Batch, key: jax.Array | None = None) -> dict[str, jax.Array]:
    """Return `outputs` with float32 logits: {"logits" [B, T, V], …} for language models."""
    return materialise_logits(self.outputs(batch, key))

  def outputs(self, batch: Batch, key: jax.Array | None = None) -> dict:
    """Return the head's outputs and auxiliary scalars.

    Logits over the vocabulary are `VocabularyLogits`.

    Args:
      batch: the model's features.
      key: dropout key, or None for evaluation.
    """
    raise TypeError(f"{type(self).__name__} must define `outputs`")

  def _features(self, batch: Batch, side: str):
    """Return (tokens, positions, segments, validity) of one side of a batch."""
    tokens_BT = batch[f"{side}_input_tokens"]
    pos = batch.get(f"{side}_positions", positions(tokens_BT.shape[1]))
    segments = batch.get(f"{side}_segment_ids")
    pad = self.variant.tokens.pad
    valid = None
    if segments is not None:
      valid = segments > 0
    elif pad is not None:
      valid = tokens_BT != pad
    return tokens_BT, pos, segments, valid


def has_aligned_positions(batch: Batch, side: str) -> bool:
  """Return whether positions grow by one from slot to slot within a segment (`Mask.aligned`).

  Default positions do, and so do positions that come with segments.
  """
  return f"{side}_positions" not in batch or f"{side}_segment_ids" in batch
