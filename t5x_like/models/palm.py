"""PaLM (Chowdhery et al. 2022, arXiv:2204.02311).

The attention and the feed-forward layer of a block read the same normalised input, and their
outputs are added (section 2). PaLM has multi-query attention, SwiGLU, rotary positions, and no
biases in LayerNorm and projections. The output projection shares the token table, and its input is
scaled by 1/sqrt(D). The table is initialised from N(0, 1), kernels from N(0, 1/fan_in) (section 5).
With the vocabulary of 256,000 tokens, parameter counts match table 1.
"""

from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Design, Variant
from t5x_like.nn.dims import Dims

DESIGN = Design(
  norm="layernorm_no_bias",
  norm_epsilon=1e-6,
  norm_position="pre",
  parallel="one_norm",
  activation="swiglu",
  position={"name": "rope", "theta": 1e4, "interleaved": True},
  embed_init=1.0,
  tied=True,
  logits_scale=True,
)


def _palm(embed, heads, layers, head_dim=256) -> Variant:
  return Variant(Dims(embed, heads, 1, head_dim, 4 * embed, layers), DESIGN, vocab_size=256_000)


VARIANTS = {
  #             embed heads layers
  "tiny": _palm(  256,   4,    4, head_dim=64),
  "8b":   _palm( 4096,  16,   32),
  "62b":  _palm( 8192,  32,   64),
  "540b": _palm(18432,  48,  118),
}  # fmt: skip


class Model(Decoder):
  """A PaLM in one of its `VARIANTS`, with the features and arguments of every decoder."""

  VARIANTS = VARIANTS
