"""The Transformer of Vaswani et al. 2017 (https://arxiv.org/abs/1706.03762), for translation.

Post-norm with LayerNorm, ReLU, sinusoidal positions, embeddings scaled by sqrt(D) and shared with
the output. Marian's translation models (`opus-mt`) are the base size with SiLU and biases
everywhere, including the output.
"""

from dataclasses import replace

from t5x_like.architectures.design import Design, Tokens, Variant
from t5x_like.architectures.encoder_decoder import EncoderDecoder
from t5x_like.nn.dims import Dims

VASWANI = Design(
  norm="layernorm",
  norm_epsilon=1e-6,
  norm_position="post",
  activation="relu",
  biases=("mlp",),
  position="sinusoidal",
  attention_dropout="none",  # section 5.4: after sublayers and embeddings alone
  # variances of one over the mean of fan in and fan out, as in Tensor2Tensor
  kernel_scales=(1.0, 1.0, 0.4, 1.6),
  embed_scale=True,
  tied=True,
)
MARIAN = replace(
  VASWANI,
  norm_epsilon=1e-5,
  activation="silu",
  biases=("qkv", "out", "mlp"),
  position={"name": "sinusoidal", "interleaved": False},
  init_stddev=0.02,
  logits_bias=True,
)


def _vaswani(embed, heads, mlp, layers=6) -> Variant:
  """Build a variant with the paper's sizes and 37,000 pieces.

  Initial token vectors have length one, before they are scaled by sqrt(D).
  """
  design = replace(VASWANI, embed_init=embed**-0.5)
  return Variant(Dims(embed, heads, heads, embed // heads, mlp, layers), design, 37_000)


VARIANTS = {
  #                           embed heads  mlp
  "transformer-tiny": _vaswani( 256,    4, 1024, layers=2),
  "transformer-base": _vaswani( 512,    8, 2048),
  "transformer-big":  _vaswani(1024,   16, 4096),
  "opus-mt":  Variant(Dims(512, 8, 8, 64, 2048, 6), MARIAN, 58_101,
                      Tokens(pad=58_100, start=58_100, eos=0)),
}  # fmt: skip


class Model(EncoderDecoder):
  """A Transformer in one of its `VARIANTS`, called as every encoder-decoder."""

  VARIANTS = VARIANTS
