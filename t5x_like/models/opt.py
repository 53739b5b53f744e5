"""OPT (Zhang et al. 2022, arXiv:2205.01068): the sizes of GPT-3 with ReLU.

Pre-norm, LayerNorm, biases everywhere, learned positions, a token table shared with the output.
Kernels start from N(0, 0.006^2), divided by sqrt(2 L) if they write to the residual stream (section
2.2). The checkpoint of 350M differs: it is post-norm, and its token vectors of width 512 are
projected to the stack and back without a bias.
"""

from dataclasses import replace

import jax
from flax import nnx

from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Design, Tokens, Variant
from t5x_like.nn.dims import Dims
from t5x_like.nn.linear import Linear

DESIGN = Design(
  norm="layernorm",
  norm_epsilon=1e-5,
  norm_position="pre",
  activation="relu",
  biases=("qkv", "out", "mlp"),
  position={"name": "learned", "length": 2048, "offset": 2},
  init_stddev=0.006,
  residual_init=True,
  tied=True,
  no_dropout=("inputs",),
)
POST_NORM = replace(DESIGN, norm_position="post")
TOKENS = Tokens(pad=1, start=2, eos=2)


def _opt(embed, heads, layers, design=DESIGN, table=None) -> Variant:
  dims = Dims(embed, heads, heads, embed // heads, 4 * embed, layers)
  return Variant(dims, design, 50_272, TOKENS, embed=table)


VARIANTS = {
  #              embed heads layers
  "tiny": _opt(    256,    4,     4),
  "125m": _opt(    768,   12,    12),
  "350m": _opt(   1024,   16,    24, POST_NORM, table=512),
  "1.3b": _opt(   2048,   32,    24),
  "2.7b": _opt(   2560,   32,    32),
  "6.7b": _opt(   4096,   32,    32),
  "13b":  _opt(   5120,   40,    40),
  "30b":  _opt(   7168,   56,    48),
  "66b":  _opt(   9216,   72,    64),
  "175b": _opt(  12288,   96,    96),
}  # fmt: skip


class Model(Decoder):
  """An OPT in one of its `VARIANTS`, with the features and arguments of every decoder."""

  VARIANTS = VARIANTS

  def build(self, rngs: nnx.Rngs, **options) -> None:
    super().build(rngs, **options)
    width = self.variant.embed
    D = self.variant.dims.embed
    if width:
      init = self.variant.design.kernel_init
      self.inputs = Projected(self.inputs, Linear((width, D), ("embed", None), init(width), rngs))
      self.head = Projected(self.head, Linear((D, width), ("embed", None), init(D), rngs))


class Projected(nnx.Module):
  """A module whose first argument passes a projection."""

  def __init__(self, inner: nnx.Module, project: Linear):
    self.inner = inner
    self.project = project

  @property
  def position(self):
    """The positions of projected inputs."""
    return self.inner.position

  def __call__(self, x_BTD: jax.Array, *args, **options):
    return self.inner(self.project(x_BTD), *args, **options)
