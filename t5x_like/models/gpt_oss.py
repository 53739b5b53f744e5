"""gpt-oss (OpenAI 2025, model card, arXiv:2508.10925).

Pre-norm with RMSNorm, biases everywhere, an untied output. Every second layer, starting with the
first, sees a window of 128 tokens; each head has a learned sink in addition to the keys. Rotary
positions of base 150,000, stretched from 4,096 to 131,072 tokens by YaRN. Each token uses 4
experts, weighted by a softmax over the chosen; their SwiGLU is clamped, and one is added to its
linear factor. The weight of the balance loss is transformers' default; the card has none.
"""

from dataclasses import replace

from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Design, Tokens, Variant
from t5x_like.nn.dims import Dims
from t5x_like.nn.feed_forward import Experts

YARN = {"factor": 32.0, "original_length": 4096, "fast": 32.0, "slow": 1.0, "truncate": False}
DESIGN = Design(
  norm="rmsnorm",
  norm_epsilon=1e-5,
  norm_position="pre",
  activation="swiglu_clamped",
  biases=("qkv", "out", "mlp"),
  position={"name": "rope", "theta": 150_000.0, "yarn": YARN},
  windows=(128, None),
  core="sinks",
  init_stddev=0.02,
  tied=False,
)
TOKENS = Tokens(pad=199_999, start=199_998, eos=200_002)


def _gpt_oss(embed, mlp, heads, kv_heads, head_dim, layers, experts) -> Variant:
  routing = Experts(experts=experts, top_k=4, normalise=True, balance_loss=0.001, z_loss=0.0)
  dims = Dims(embed, heads, kv_heads, head_dim, mlp, layers)
  return Variant(dims, replace(DESIGN, experts=routing), 201_088, TOKENS)


VARIANTS = {
  #                 embed   mlp heads kv head_dim layers experts
  "tiny": _gpt_oss(   256,  256,    4, 2,      64,     4,      8),
  "20b":  _gpt_oss(  2880, 2880,   64, 8,      64,    24,     32),
  "120b": _gpt_oss(  2880, 2880,   64, 8,      64,    36,    128),
}  # fmt: skip


class Model(Decoder):
  """A gpt-oss in one of its `VARIANTS`, with the features and arguments of every decoder."""

  VARIANTS = VARIANTS
