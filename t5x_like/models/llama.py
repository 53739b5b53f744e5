"""Llama 2, Llama 3.1 and Mistral.

Touvron et al. 2023 (arXiv:2307.09288), Grattafiori et al. 2024 (arXiv:2407.21783), Jiang et al.
2023 (arXiv:2310.06825).

Pre-norm with RMSNorm, SwiGLU, rotary positions, no biases, an untied output; since Llama 2 70B with
grouped-query attention. Llama 3.1 stretches the long wavelengths of its positions by eight. Mistral
7B v0.1 sees a window of 4,096 tokens in every layer; v0.2 drops the window and has a larger rotary
base, v0.3 a larger vocabulary.
"""

from dataclasses import replace
from functools import partial

from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Design, Tokens, Variant
from t5x_like.nn.dims import Dims

LLAMA2 = Design(
  norm="rmsnorm",
  norm_epsilon=1e-5,
  norm_position="pre",
  activation="swiglu",
  position={"name": "rope", "theta": 1e4},
  init_stddev=0.02,
  tied=False,
)
LLAMA3_SCALING = {"factor": 8.0, "low": 1.0, "high": 4.0, "original_length": 8192}
LLAMA3_1 = replace(LLAMA2, position={"name": "rope", "theta": 5e5, "llama3": LLAMA3_SCALING})
MISTRAL = replace(LLAMA2, windows=(4096,))
MISTRAL_V0_2 = replace(LLAMA2, position={"name": "rope", "theta": 1e6})
TOKENS = Tokens(pad=0, start=1, eos=2)  # published without padding: id 0 is the unknown piece


def _llama(design, embed, mlp, heads, kv_heads, layers, vocab_size=32000, tokens=TOKENS) -> Variant:
  return Variant(
    Dims(embed, heads, kv_heads, embed // heads, mlp, layers), design, vocab_size, tokens
  )


# Id 0 is "!" in Llama 3: pack sequences of the published tokenizer, or pad them with an id they do
# not use.
LLAMA3_TOKENS = Tokens(pad=None, start=128_000, eos=128_001)
_llama3 = partial(_llama, LLAMA3_1, vocab_size=128_256, tokens=LLAMA3_TOKENS)

VARIANTS = {
  #                              embed    mlp heads kv layers
  "tiny":            _llama(LLAMA2,   256,   704,    4,  2,   4),
  "llama2-7b":       _llama(LLAMA2,  4096, 11008,   32, 32,  32),
  "llama2-13b":      _llama(LLAMA2,  5120, 13824,   40, 40,  40),
  "llama2-70b":      _llama(LLAMA2,  8192, 28672,   64,  8,  80),
  "llama3.1-8b":            _llama3( 4096, 14336,   32,  8,  32),
  "llama3.1-70b":           _llama3( 8192, 28672,   64,  8,  80),
  "llama3.1-405b":          _llama3(16384, 53248,  128,  8, 126),
  "mistral-7b-v0.1": _llama(MISTRAL,      4096, 14336, 32, 8, 32),
  "mistral-7b-v0.2": _llama(MISTRAL_V0_2, 4096, 14336, 32, 8, 32),
  "mistral-7b-v0.3": _llama(MISTRAL_V0_2, 4096, 14336, 32, 8, 32, vocab_size=32768),
}  # fmt: skip


class Model(Decoder):
  """A Llama or Mistral, one of `VARIANTS`, with the features and arguments of every decoder."""

  VARIANTS = VARIANTS
