"""BART and mBART: denoising encoder-decoders.

Lewis et al. 2020, https://arxiv.org/abs/1910.13461; Liu et al. 2020.

BART is the post-norm Transformer with GELU, learned positions (two rows of the table are reserved
for padding) and a norm on the embeddings. mBART is pre-norm, with a norm at the end of each stack,
and scales embeddings by sqrt(D).
"""

from dataclasses import replace

from t5x_like.architectures.design import Design, Tokens, Variant
from t5x_like.architectures.encoder_decoder import EncoderDecoder
from t5x_like.nn.dims import Dims

BART = Design(
  norm="layernorm",
  norm_epsilon=1e-5,
  norm_position="post",
  activation="gelu",
  biases=("qkv", "out", "mlp"),
  position={"name": "learned", "length": 1024, "offset": 2},
  embed_norm=True,
  init_stddev=0.02,
  tied=True,
  logits_bias=True,
)
MBART = replace(BART, norm_position="pre", embed_scale=True)
MBART50 = replace(MBART, activation="relu")
TOKENS = Tokens(pad=1, start=2, eos=2)

VARIANTS = {
  #                              embed heads kv head_dim  mlp layers
  # for debugging
  "bart-tiny":        Variant(Dims( 128,  2,  2, 64,  512,  2), BART, 50265, TOKENS),
  "bart-base":        Variant(Dims( 768, 12, 12, 64, 3072,  6), BART, 50265, TOKENS),
  "bart-large":       Variant(Dims(1024, 16, 16, 64, 4096, 12), BART, 50265, TOKENS),
  "mbart-large-cc25": Variant(Dims(1024, 16, 16, 64, 4096, 12), MBART, 250_027, TOKENS),
  "mbart-large-50":   Variant(Dims(1024, 16, 16, 64, 4096, 12), MBART50, 250_054, TOKENS),
}  # fmt: skip


class Model(EncoderDecoder):
  """A BART or mBART, one of `VARIANTS`, called as every encoder-decoder."""

  VARIANTS = VARIANTS
