"""Command R and Aya 23: decoders whose layers run attention and MLP in parallel.

Cohere 2024, model cards of CohereForAI; Aryabumi et al. 2024, arXiv:2405.15032.

Attention and feed-forward layer run in parallel after one LayerNorm without a bias; SwiGLU,
interleaved rotary positions, no biases, a token table shared with the output, and a factor of the
logits. Command R+ normalises queries and keys, with separate scales for each head.
"""

from dataclasses import replace

from flax import nnx
from jax import numpy as jnp

from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Design, Tokens, Variant
from t5x_like.nn.dims import Dims

DESIGN = Design(
  norm="layernorm_no_bias",
  norm_epsilon=1e-5,
  norm_position="pre",
  parallel="one_norm",
  activation="swiglu",
  position={"name": "rope", "theta": 8e6, "interleaved": True},
  init_stddev=0.02,
  tied=True,
  logits_scale=0.0625,
)
TOKENS = Tokens(pad=0, start=5, eos=255_001)


def _command(embed, mlp, heads, kv_heads, layers, theta=8e6, **changes) -> Variant:
  design = replace(
    DESIGN, position={"name": "rope", "theta": theta, "interleaved": True}, **changes
  )
  return Variant(Dims(embed, heads, kv_heads, embed // heads, mlp, layers), design, 256_000, TOKENS)


VARIANTS = {
  #                                  embed    mlp heads kv layers
  "tiny":                 _command(    256,   704,    4,  2,    4),
  "command-r-plus":       _command(  12288, 33792,   96,  8,   64, theta=75e6, qk_norm=True,
                                     logits_scale=0.8333333),
  "aya-23-8b":            _command(   4096, 14336,   32,  8,   32, theta=1e4),
  "command-r":            _command(   8192, 22528,   64, 64,   40),
  "command-r-08-2024":    _command(   8192, 24576,   64,  8,   40, theta=4e6),
}  # fmt: skip


class Model(Decoder):
  """A Command R in one of its `VARIANTS`, with the features and arguments of every decoder."""

  VARIANTS = VARIANTS

  def build(self, rngs: nnx.Rngs, **options) -> None:
    super().build(rngs, **options)
    if self.variant.design.qk_norm:
      attention = self.decoder.blocks.parallel.layer.self_attention
      dims = self.variant.dims
      attention.q_norm.scale = self._make_scales(dims.heads, "heads")
      attention.k_norm.scale = self._make_scales(dims.kv_heads, "kv_heads")

  def _make_scales(self, heads: int, axis: str) -> nnx.Param:
    """Make the scales of the norms of all layers, [L, heads, H]."""
    shape = (self.decoder.repeats, heads, self.variant.dims.head_dim)
    ones = jnp.ones(shape, jnp.float32)
    return nnx.Param(ones, axes=("layers", axis, None), unit=(1, 1, 1))
