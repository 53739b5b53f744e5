"""DeBERTa v3, the encoder: BERT with disentangled attention.

He et al. 2021, https://arxiv.org/abs/2111.09543.

Positions enter only as vectors of relative distances (`nn.disentangled`); there are neither
absolute positions nor token types. Fine-tune this encoder, or pretrain it as a masked language
model (DeBERTa v1's objective, but without v1's enhanced mask decoder). For the paper's pretraining,
see `models.deberta_rtd`.
"""

from dataclasses import dataclass, replace

from flax import nnx

from t5x_like.architectures.design import Tokens, Variant
from t5x_like.architectures.encoder import Encoder
from t5x_like.errors import UserError
from t5x_like.models import bert
from t5x_like.nn.dims import Dims
from t5x_like.nn.disentangled import DisentangledStack
from t5x_like.slots import PositiveInt

DESIGN = replace(bert.DESIGN, norm_epsilon=1e-7, position="none")
TOKENS = Tokens(pad=0, start=1, eos=2)  # [PAD], [CLS], [SEP]


@dataclass(frozen=True)
class DebertaVariant(Variant):
  """A variant with the sizes of a `nn.disentangled.DisentangledStack`.

  Attributes:
    buckets: number of buckets of distances on each side.
    max_distance: distance from which all tokens share the last bucket.
  """

  buckets: PositiveInt = 256
  max_distance: PositiveInt = 512

  def __post_init__(self):
    if self.max_distance <= self.buckets // 2 + 1 or self.buckets < 4:
      raise UserError(
        f"config.model.variant.max_distance: found {self.max_distance} with {self.buckets} "
        f"buckets, expected at least 4 buckets and a distance above {self.buckets // 2 + 1}"
      )


def _deberta(embed, mlp, heads, layers) -> DebertaVariant:
  dims = Dims(embed, heads, heads, embed // heads, mlp, layers)
  design = replace(DESIGN, attention_scale=(3 * dims.head_dim) ** -0.5)
  return DebertaVariant(dims, design, 128_100, TOKENS, head="mlm")


VARIANTS = {
  #                              embed   mlp heads layers
  "deberta-v3-tiny":   _deberta(  128,  512,  2,  2),  # for debugging
  "deberta-v3-xsmall": _deberta(  384, 1536,  6, 12),
  "deberta-v3-small":  _deberta(  768, 3072, 12,  6),
  "deberta-v3-base":   _deberta(  768, 3072, 12, 12),
  "deberta-v3-large":  _deberta( 1024, 4096, 16, 24),
}  # fmt: skip


class Model(Encoder):
  """A DeBERTa v3 in one of its `VARIANTS`, with the features and arguments of every encoder."""

  VARIANTS = VARIANTS
  VARIANT = DebertaVariant

  def build(self, rngs: nnx.Rngs, **options) -> None:
    super().build(rngs, **options)
    design = self.variant.design
    D = self.variant.dims.embed
    names = self.encoder.blocks.names
    if design.position not in ("none", {"name": "none"}) or names != ("self_attention", "mlp"):
      raise UserError(
        f"config.model.design: found position {design.position!r} and sublayers "
        f"{', '.join(names)}, expected position 'none' and sublayers self_attention, mlp"
      )
    self.encoder = DisentangledStack(
      self.encoder,
      rngs,
      init=design.table_init(),
      norm=design.make_norm(D, rngs),
      buckets=self.variant.buckets,
      max_distance=self.variant.max_distance,
    )
