"""GPT-NeoX-20B and Pythia.

Black et al. 2022 (arXiv:2204.06745); Biderman et al. 2023 (arXiv:2304.01373).

Attention and feed-forward layer read the same input, each through its own norm, and their outputs
are added; LayerNorm, GELU, biases everywhere, rotary positions on a quarter of each head, an untied
output. Kernels start from N(0, 2/(5 D)); those that write to the residual stream are divided by
sqrt(2 L), while the papers' have a deviation of 2/(L sqrt(D)). 20B has the tanh form of GELU;
Pythia was trained with it too, but has the exact form as its published files do. Its sizes match
the checkpoints, whose tables are padded differently.
"""

from dataclasses import replace

from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Design, Variant
from t5x_like.nn.dims import Dims

DESIGN = Design(
  norm="layernorm",
  norm_epsilon=1e-5,
  norm_position="pre",
  parallel="two_norms",
  activation="gelu",
  biases=("qkv", "out", "mlp"),
  position={"name": "rope", "theta": 1e4, "fraction": 0.25},
  residual_init=True,
  tied=False,
)


def _neox(embed, heads, layers, vocab_size=50_304, **changes) -> Variant:
  dims = Dims(embed, heads, heads, embed // heads, 4 * embed, layers)
  return Variant(dims, replace(DESIGN, init_stddev=(0.4 / embed) ** 0.5, **changes), vocab_size)


VARIANTS = {
  #                     embed heads layers vocab
  "tiny":        _neox(   256,    4,    4),
  "neox-20b":    _neox(  6144,   64,   44, 50_432, activation="gelu_tanh"),
  "pythia-14m":  _neox(   128,    4,    6),
  "pythia-70m":  _neox(   512,    8,    6),
  "pythia-160m": _neox(   768,   12,   12),
  "pythia-410m": _neox(  1024,   16,   24),
  "pythia-1b":   _neox(  2048,    8,   16),
  "pythia-1.4b": _neox(  2048,   16,   24),
  "pythia-2.8b": _neox(  2560,   32,   32),
  "pythia-6.9b": _neox(  4096,   32,   32, 50_432),
  "pythia-12b":  _neox(  5120,   40,   36, 50_688),
}  # fmt: skip


class Model(Decoder):
  """A GPT-NeoX or Pythia, one of `VARIANTS`, with the features and arguments of every decoder."""

  VARIANTS = VARIANTS
