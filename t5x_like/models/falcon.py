"""Falcon (Almazrouei et al. 2023, arXiv:2311.16867).

Attention and feed-forward layer run in parallel; LayerNorm, GELU, rotary positions, no biases, a
token table shared with the output. 7B has one norm for both and a single key/value head; 40B and
180B have a norm each and eight key/value heads. Falcon RW has ALiBi (Penedo et al. 2023,
arXiv:2306.01116) and biases, and its sublayers follow each other as in GPT.
"""

from dataclasses import replace

from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Design, Tokens, Variant
from t5x_like.nn.dims import Dims

DESIGN = Design(
  norm="layernorm",
  norm_epsilon=1e-5,
  norm_position="pre",
  parallel="one_norm",
  activation="gelu",
  position={"name": "rope", "theta": 1e4},
  init_stddev=0.02,
  tied=True,
)
TWO_NORMS = replace(DESIGN, parallel="two_norms")
TOKENS = Tokens(pad=None, start=11, eos=11)  # one id ends and begins texts; no padding


def _falcon(design, embed, heads, kv_heads, layers) -> Variant:
  return Variant(
    Dims(embed, heads, kv_heads, embed // heads, 4 * embed, layers), design, 65_024, TOKENS
  )


VARIANTS = {
  #                             embed heads kv layers
  "tiny": _falcon(DESIGN,         256,    4, 1,     4),
  "7b":   _falcon(DESIGN,        4544,   71, 1,    32),
  "40b":  _falcon(TWO_NORMS,     8192,  128, 8,    60),
  "180b": _falcon(TWO_NORMS,    14848,  232, 8,    80),
}  # fmt: skip


class Model(Decoder):
  """A Falcon in one of its `VARIANTS`, with the features and arguments of every decoder."""

  VARIANTS = VARIANTS
