"""Qwen 2.5 (Qwen Team 2024, arXiv:2412.15115) and Qwen 3 (Qwen Team 2025, arXiv:2505.09388).

Both have Llama's block: pre-norm with RMSNorm, SwiGLU, rotary positions of base 1e6, grouped-query
attention. Qwen 2.5 has biases on queries, keys and values; the RMSNorm of its base models from 14B
on has an epsilon of 1e-5. Qwen 3 has no biases and normalises queries and keys over the head width
instead. Its two mixture-of-experts models route each token to 8 of 128 experts in every layer, and
have no shared expert; the weight of the balance loss is from transformers' config. In the small
sizes the embedding and the output projection are tied.
"""

from dataclasses import replace

from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Design, Tokens, Variant
from t5x_like.nn.dims import Dims
from t5x_like.nn.feed_forward import Experts

QWEN2 = Design(
  norm="rmsnorm",
  norm_epsilon=1e-6,
  norm_position="pre",
  activation="swiglu",
  biases=("qkv",),
  position={"name": "rope", "theta": 1e6},
  init_stddev=0.02,
  tied=False,
)
QWEN2_LARGE = replace(QWEN2, norm_epsilon=1e-5)
QWEN3 = replace(QWEN2, biases=(), qk_norm=True)
QWEN3_MOE = replace(
  QWEN3, experts=Experts(experts=128, top_k=8, normalise=True, balance_loss=0.001, z_loss=0.0)
)
# All three are <|endoftext|>: the model has no start token of its own.
TOKENS = Tokens(pad=151_643, start=151_643, eos=151_643)


def _qwen(
  design, embed, mlp, heads, kv_heads, head_dim, layers, tied=False, vocab_size=151_936
) -> Variant:
  dims = Dims(embed, heads, kv_heads, head_dim, mlp, layers)
  return Variant(dims, replace(design, tied=tied), vocab_size, TOKENS)


VARIANTS = {
  #                                    embed    mlp heads kv head_dim layers tied
  "tiny":            _qwen(QWEN3,        256,   768,    4, 2,      64,     4, True),
  "qwen2.5-0.5b":    _qwen(QWEN2,        896,  4864,   14, 2,      64,    24, True),
  "qwen2.5-1.5b":    _qwen(QWEN2,       1536,  8960,   12, 2,     128,    28, True),
  "qwen2.5-3b":      _qwen(QWEN2,       2048, 11008,   16, 2,     128,    36, True),
  "qwen2.5-7b":      _qwen(QWEN2,       3584, 18944,   28, 4,     128,    28, vocab_size=152_064),
  "qwen2.5-14b":     _qwen(QWEN2_LARGE, 5120, 13824,   40, 8,     128,    48, vocab_size=152_064),
  "qwen2.5-32b":     _qwen(QWEN2_LARGE, 5120, 27648,   40, 8,     128,    64, vocab_size=152_064),
  "qwen2.5-72b":     _qwen(QWEN2_LARGE, 8192, 29568,   64, 8,     128,    80, vocab_size=152_064),
  "qwen3-0.6b":      _qwen(QWEN3,       1024,  3072,   16, 8,     128,    28, True),
  "qwen3-1.7b":      _qwen(QWEN3,       2048,  6144,   16, 8,     128,    28, True),
  "qwen3-4b":        _qwen(QWEN3,       2560,  9728,   32, 8,     128,    36, True),
  "qwen3-8b":        _qwen(QWEN3,       4096, 12288,   32, 8,     128,    36),
  "qwen3-14b":       _qwen(QWEN3,       5120, 17408,   40, 8,     128,    40),
  "qwen3-32b":       _qwen(QWEN3,       5120, 25600,   64, 8,     128,    64),
  "qwen3-30b-a3b":   _qwen(QWEN3_MOE,   2048,   768,   32, 4,     128,    48),
  "qwen3-235b-a22b": _qwen(QWEN3_MOE,   4096,  1536,   64, 4,     128,    94),
}  # fmt: skip


class Model(Decoder):
  """A Qwen in one of its `VARIANTS`, with the features and arguments of every decoder."""

  VARIANTS = VARIANTS
