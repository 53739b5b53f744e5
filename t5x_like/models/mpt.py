"""MPT: a decoder with ALiBi and no biases (MosaicML 2023, mosaicml.com/blog/mpt-7b).

Pre-norm, LayerNorm and projections without biases, GELU, a tied output. Kernels start from N(0,
2/fan in), divided by sqrt(2 L) if they write to the residual stream, and the table from N(0, 2/D)
(LLM Foundry). The vocabulary of GPT-NeoX (50,277 tokens) is padded to 50,432 rows.
"""

from dataclasses import replace

from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Design, Variant
from t5x_like.nn.dims import Dims

DESIGN = Design(
  norm="layernorm_no_bias",
  norm_epsilon=1e-5,
  norm_position="pre",
  activation="gelu",
  position={"name": "alibi", "mpt": True},
  kernel_scales=(2.0, 2.0, 2.0, 2.0),
  residual_init=True,
  tied=True,
)


def _mpt(embed, heads, layers) -> Variant:
  design = replace(DESIGN, embed_init=(2 / embed) ** 0.5)
  return Variant(
    Dims(embed, heads, heads, embed // heads, 4 * embed, layers), design, vocab_size=50_432
  )


VARIANTS = {
  #            embed heads layers
  "tiny": _mpt(  256,    4,     4),
  "7b":   _mpt( 4096,   32,    32),
  "30b":  _mpt( 7168,   64,    48),
}  # fmt: skip


class Model(Decoder):
  """An MPT in one of its `VARIANTS`, with the features and arguments of every decoder."""

  VARIANTS = VARIANTS
