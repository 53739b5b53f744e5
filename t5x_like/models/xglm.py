"""XGLM (Lin et al. 2021, arXiv:2112.10668): multilingual decoders of 30 languages.

Pre-norm, LayerNorm, GELU, biases everywhere; token vectors times sqrt(D), to which the sines and
cosines of fairseq are added; a token table shared with the output.
"""

from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Design, Tokens, Variant
from t5x_like.nn.dims import Dims

DESIGN = Design(
  norm="layernorm",
  norm_epsilon=1e-5,
  norm_position="pre",
  activation="gelu",
  biases=("qkv", "out", "mlp"),
  position={"name": "sinusoidal", "interleaved": False, "offset": 2, "last_frequency": 1e-4},
  init_stddev=0.02,
  embed_scale=True,
  tied=True,
)
TOKENS = Tokens(pad=1, start=2, eos=2)


def _xglm(embed, mlp, heads, layers) -> Variant:
  return Variant(Dims(embed, heads, heads, embed // heads, mlp, layers), DESIGN, 256_008, TOKENS)


VARIANTS = {
  #              embed    mlp heads layers
  "tiny": _xglm(   256,  1024,    4,     4),
  "564m": _xglm(  1024,  4096,   16,    24),
  "1.7b": _xglm(  2048,  8192,   16,    24),
  "2.9b": _xglm(  2048,  8192,   16,    48),
  "7.5b": _xglm(  4096, 16384,   32,    32),
}  # fmt: skip


class Model(Decoder):
  """An XGLM in one of its `VARIANTS`, with the features and arguments of every decoder."""

  VARIANTS = VARIANTS
