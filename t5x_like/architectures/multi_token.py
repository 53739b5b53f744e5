"""The decoder that also predicts the token after the next.

It follows DeepSeek-AI 2024 (arXiv:2412.19437, section 2.2).
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.architectures.build import StackBuilder, deepnorm_weights
from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Variant
from t5x_like.errors import UserError
from t5x_like.nn.dims import subkey
from t5x_like.nn.layer import Context
from t5x_like.nn.linear import Linear


class MultiTokenDecoder(Decoder):
  """A decoder that also predicts the token after the next if `mtp_depth` is 1.

  One more block (equations 21 to 23) reads the decoder's output and the next token. It shares the
  token table and the head. Only the objective `multi_token` reads its logits; evaluation and
  generation do not run the block.

  Args:
    mtp_depth: number of further tokens that are predicted.
    options: the arguments of `Decoder`.
  """

  def __init__(
    self, rngs: nnx.Rngs, *, variant: str | Variant, mtp_depth: Literal[0, 1] = 0, **options
  ):
    self.mtp_depth = mtp_depth
    super().__init__(rngs, variant=variant, **options)

  def build(self, rngs: nnx.Rngs, **options) -> None:
    super().build(rngs, **options)
    design = dataclasses.replace(self.variant.design, dense_layers=0)
    dims = self.variant.dims
    one_layer = dataclasses.replace(dims, layers=1)
    deepnorm = deepnorm_weights(0, dims.layers)["decoder"]
    builder = self.STACK_BUILDER(design, one_layer, causal=True, deepnorm=deepnorm, **options)
    if self.mtp_depth and (builder.period > 1 or not design.final_norm):
      raise UserError(
        "config.model.mtp_depth: found 1, expected 0 for a design whose layers "
        "alternate or that has no final norm"
      )
    self.mtp = _NextTokenBlock(builder, rngs) if self.mtp_depth else None

  def predict_ahead(
    self, tokens_BT: jax.Array, x_BTD: jax.Array, context: Context, key: jax.Array | None
  ) -> dict:
    if self.mtp is None:
      return {}
    # The last position has no next token; the objective gives its prediction no weight.
    next_BT = jnp.roll(tokens_BT, -1, axis=1)
    next_BTD = self.embed(next_BT, self.dtype)
    x_BTD, aux = self.mtp(next_BTD, x_BTD, context, key)
    next_logits = self.head(x_BTD, self.embed, context.valid)["logits"]
    return {"next_logits": next_logits} | aux


class _NextTokenBlock(nnx.Module):
  """A block that maps the stack's output and the next tokens' vectors to the head's input."""

  def __init__(self, builder: StackBuilder, rngs: nnx.Rngs):
    D = builder.dims.embed
    design = builder.design
    self.embed_norm = design.make_norm(D, rngs)
    self.state_norm = design.make_norm(D, rngs)
    self.project = Linear((2 * D, D), ("embed", None), design.kernel_init(2 * D), rngs)
    self.inputs = builder.inputs(rngs)
    self.stack = builder.stack(rngs)

  def __call__(
    self, next_BTD: jax.Array, x_BTD: jax.Array, context: Context, key: jax.Array | None
  ):
    next_pos = context.mask.q_pos + 1
    next_BTD = self.inputs(next_BTD, next_pos, key=subkey(key, 0))
    joined_BTX = jnp.concatenate([self.embed_norm(next_BTD), self.state_norm(x_BTD)], axis=-1)
    y_BTD, aux, _ = self.stack(self.project(joined_BTX), context, key=subkey(key, 1))
    return y_BTD, aux
