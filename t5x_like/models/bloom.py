"""BLOOM: a decoder with ALiBi (BigScience Workshop 2022, arXiv:2211.05100).

Pre-norm, LayerNorm, GELU (tanh), biases everywhere, a norm on the token vectors, and a token table
shared with the output.

Kernels of every published size start from N(0, 0.0048^2), with the deviation 1/sqrt(3 D) of 176B,
divided by sqrt(2 L) if they write to the residual stream (the scripts of
bigscience-workshop/bigscience). The table has rows for 250,680 tokens and 200 spare rows. Padding
is id 0, as in vocabularies built here; the published tokenizer pads with 3.
"""

from dataclasses import replace

from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Design, Variant
from t5x_like.nn.dims import Dims

DESIGN = Design(
  norm="layernorm",
  norm_epsilon=1e-5,
  norm_position="pre",
  activation="gelu_tanh",
  biases=("qkv", "out", "mlp"),
  position="alibi",
  residual_init=True,
  embed_norm=True,
  tied=True,
)


def _bloom(embed, heads, layers, stddev=0.0048) -> Variant:
  dims = Dims(embed, heads, heads, embed // heads, 4 * embed, layers)
  return Variant(dims, replace(DESIGN, init_stddev=stddev), vocab_size=250_880)


VARIANTS = {
  #              embed heads layers
  "tiny": _bloom(  256,    4,     4, stddev=0.036),
  "560m": _bloom( 1024,   16,    24),
  "1b1":  _bloom( 1536,   16,    24),
  "1b7":  _bloom( 2048,   16,    24),
  "3b":   _bloom( 2560,   32,    30),
  "7b1":  _bloom( 4096,   32,    30),
  "176b": _bloom(14336,  112,    70),
}  # fmt: skip


class Model(Decoder):
  """A BLOOM in one of its `VARIANTS`, with the features and arguments of every decoder."""

  VARIANTS = VARIANTS
