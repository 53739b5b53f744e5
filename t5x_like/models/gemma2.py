"""Gemma 2 (Gemma Team 2024, arXiv:2408.00118).

Norms before and after every sublayer, whose scales are stored minus one; GeGLU, rotary positions,
no biases; every second layer, starting with the first, sees a window of 4,096 tokens. Attention
logits are capped at 50, output logits at 30. Token vectors are multiplied by sqrt(D) and shared
with the output. Attention is scaled by 1/sqrt(256) in the two smaller sizes, in 27B by 1/sqrt(4608
/ 32).
"""

from dataclasses import replace

from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Design, Tokens, Variant
from t5x_like.nn.dims import Dims

DESIGN = Design(
  norm="rmsnorm_plus_one",
  norm_epsilon=1e-6,
  norm_position="sandwich",
  activation="geglu_tanh",
  position={"name": "rope", "theta": 1e4},
  softcap=50.0,
  windows=(4096, None),
  init_stddev=0.02,
  embed_scale=True,
  tied=True,
  logits_softcap=30.0,
)


def _gemma2(embed, mlp, heads, kv_heads, head_dim, layers, scalar) -> Variant:
  dims = Dims(embed, heads, kv_heads, head_dim, mlp, layers)
  return Variant(
    dims, replace(DESIGN, attention_scale=scalar**-0.5), 256_000, Tokens(pad=0, start=2, eos=1)
  )


VARIANTS = {
  #               embed    mlp heads kv head_dim layers scalar
  "tiny": _gemma2(  256,  1024,    4, 2,      64,     4,    64),
  "2b":   _gemma2( 2304,  9216,    8, 4,     256,    26,   256),
  "9b":   _gemma2( 3584, 14336,   16, 8,     256,    42,   256),
  "27b":  _gemma2( 4608, 36864,   32, 16,    128,    46,   144),
}  # fmt: skip


class Model(Decoder):
  """A Gemma 2 in one of its `VARIANTS`, with the features and arguments of every decoder."""

  VARIANTS = VARIANTS
