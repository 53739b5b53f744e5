"""Mixtral: a decoder whose feed-forward layers use two of eight experts.

Jiang et al. 2024, arXiv:2401.04088.

Otherwise it is Mistral without its window: pre-norm with RMSNorm, SwiGLU, rotary positions of base
1e6, eight key/value heads, no biases, an untied output. The weight of the balance loss is
transformers', though of another sum.
"""

from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Design, Tokens, Variant
from t5x_like.nn.dims import Dims
from t5x_like.nn.feed_forward import Experts

DESIGN = Design(
  norm="rmsnorm",
  norm_epsilon=1e-5,
  norm_position="pre",
  activation="swiglu",
  position={"name": "rope", "theta": 1e6},
  experts=Experts(experts=8, top_k=2, normalise=True, balance_loss=0.001, z_loss=0.0),
  init_stddev=0.02,
  tied=False,
)
TOKENS = Tokens(pad=0, start=1, eos=2)  # published without padding: id 0 is the unknown piece


def _mixtral(embed, mlp, heads, kv_heads, layers, vocab_size) -> Variant:
  return Variant(
    Dims(embed, heads, kv_heads, embed // heads, mlp, layers), DESIGN, vocab_size, TOKENS
  )


VARIANTS = {
  #                 embed    mlp heads kv layers  vocab
  "tiny":  _mixtral( 256,   512,    4, 2,     4, 32000),
  "8x7b":  _mixtral(4096, 14336,   32, 8,    32, 32000),
  "8x22b": _mixtral(6144, 16384,   48, 8,    56, 32000),
}  # fmt: skip


class Model(Decoder):
  """A Mixtral in one of its `VARIANTS`, with the features and arguments of every decoder."""

  VARIANTS = VARIANTS
