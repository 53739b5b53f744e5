"""ModernBERT: the encoder of Warner et al. 2024 (https://arxiv.org/abs/2412.13663).

Pre-norm without biases in the stack, exact GeGLU, rotary positions. Every third layer sees all
tokens (rotary base 160,000); the others see tokens at most 64 away (base 10,000). The first layer's
attention has no norm, because token vectors are already normalised (section 2.1.1). The layer
pattern therefore does not repeat, and the stack is one block of all its layers: it compiles
unrolled, and rematerialisation has no layer boundaries to keep.
"""

from dataclasses import replace
from itertools import cycle, islice

from flax import nnx

from t5x_like.architectures.design import Design, Tokens, Variant
from t5x_like.architectures.encoder import Encoder
from t5x_like.nn.dims import Dims
from t5x_like.nn.norm import Identity

# position schemes
GLOBAL = {"name": "rope", "theta": 160_000.0}
LOCAL = {"name": "rope", "theta": 10_000.0}
DESIGN = Design(
  norm="layernorm_no_bias",
  norm_epsilon=1e-5,
  norm_position="pre",
  activation="geglu",
  position=(GLOBAL, LOCAL, LOCAL),
  windows=(None, 65, 65),
  init_stddev=0.02,
  residual_init=True,
  embed_norm=True,
  no_dropout=("inputs", "mlp"),
  attention_dropout="none",
)
TOKENS = Tokens(pad=50283, start=50281, eos=50282)  # [PAD], [CLS], [SEP]


def _modernbert(embed, mlp, heads, layers) -> Variant:
  return Variant(Dims(embed, heads, heads, embed // heads, mlp, layers), DESIGN, 50368, TOKENS)


VARIANTS = {
  "modernbert-tiny":  _modernbert(  128,  192,   2,   3),  # for debugging
  #                               embed   mlp heads layers
  "modernbert-base":  _modernbert(  768, 1152,  12,  22),
  "modernbert-large": _modernbert( 1024, 2624,  16,  28),
}  # fmt: skip


class Model(Encoder):
  """A ModernBERT in one of its `VARIANTS`, with the features and arguments of every encoder.

  Layers cycle through `design.windows` and `design.position`, whose lengths need not divide the
  number of layers; the model's own design has one of each per layer.
  """

  VARIANTS = VARIANTS

  def build(self, rngs: nnx.Rngs, **options) -> None:
    self.variant = replace(
      self.variant, design=expand_pattern(self.variant.design, self.variant.dims.layers)
    )
    super().build(rngs, **options)
    first = self.encoder.blocks.names[0]
    getattr(self.encoder.blocks, first).in_norm = Identity()


def expand_pattern(design: Design, layers: int) -> Design:
  """Repeat the design's windows and positions until there is one for every layer."""
  position = design.position if isinstance(design.position, tuple) else (design.position,)
  return replace(
    design,
    windows=tuple(islice(cycle(design.windows), layers)),
    position=tuple(islice(cycle(position), layers)),
  )
