"""OLMo 2 (OLMo Team 2025, arXiv:2501.00656) and OLMo 3 (OLMo Team 2025).

A norm after every sublayer and none before it; queries and keys are normalised over all heads
together. RMSNorm, SwiGLU, rotary positions of base 5e5, no biases, an untied output. OLMo 3 sees a
window of 4,096 tokens in three of four layers; the fourth stretches its wavelengths by eight
(YaRN).
"""

import math
from dataclasses import replace

from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Design, Tokens, Variant
from t5x_like.nn.dims import Dims

OLMO2 = Design(
  norm="rmsnorm",
  norm_epsilon=1e-6,
  norm_position="output",
  activation="swiglu",
  position={"name": "rope", "theta": 5e5},
  qk_norm="all_heads",
  init_stddev=0.02,
  tied=False,
)
LOCAL = {"name": "rope", "theta": 5e5}
STRETCHED = LOCAL | {
  "yarn": {
    "factor": 8.0,
    "original_length": 8192,
    "attention": 0.1 * math.log(8) + 1,
    "fast": 32.0,
    "slow": 1.0,
  }
}
OLMO3 = replace(OLMO2, windows=(4096, 4096, 4096, None), position=(LOCAL, LOCAL, LOCAL, STRETCHED))
TOKENS = Tokens(pad=100_277, start=100_257, eos=100_257)  # sequences have no start token


def _olmo(design, embed, mlp, heads, kv_heads, layers, vocab_size=100_352) -> Variant:
  return Variant(
    Dims(embed, heads, kv_heads, embed // heads, mlp, layers), design, vocab_size, TOKENS
  )


VARIANTS = {
  #                           embed    mlp heads kv layers
  "tiny":      _olmo(OLMO2,     256,   704,    4,  2,  4),
  "olmo2-1b":  _olmo(OLMO2,    2048,  8192,   16, 16, 16),
  "olmo2-7b":  _olmo(OLMO2,    4096, 11008,   32, 32, 32),
  "olmo2-13b": _olmo(OLMO2,    5120, 13824,   40, 40, 40),
  "olmo2-32b": _olmo(OLMO2,    5120, 27648,   40,  8, 64),
  "olmo3-7b":  _olmo(OLMO3,    4096, 11008,   32, 32, 32, 100_278),
  "olmo3-32b": _olmo(OLMO3,    5120, 27648,   40,  8, 64, 100_278),
}  # fmt: skip


class Model(Decoder):
  """An OLMo in one of its `VARIANTS`, with the features and arguments of every decoder."""

  VARIANTS = VARIANTS
