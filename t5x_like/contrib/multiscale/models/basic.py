"""BASIC: a CoAtNet and a text encoder, trained like CLIP.

Pham et al. 2021, https://arxiv.org/abs/2111.10050.

Texts of up to 64 tokens are read bidirectionally and represented by the mean of their tokens. The
paper gives little but the sizes of the text encoder; here its blocks are pre-norm, and positions
are learned.
"""

from dataclasses import dataclass, replace

from t5x_like.architectures.design import Design, Tokens, Variant
from t5x_like.architectures.dual_encoder import DualEncoder, DualVariant
from t5x_like.contrib.multiscale.hybrid_encoder import HybridVariant
from t5x_like.contrib.multiscale.models import coatnet
from t5x_like.nn.dims import Dims

TEXT = Design(
  norm="layernorm",
  norm_position="pre",
  activation="gelu",
  biases=("qkv", "out", "mlp"),
  position={"name": "learned", "length": 64},
  residual_init=True,
  embed_init=0.02,
)


@dataclass(frozen=True)
class BasicVariant(DualVariant):
  """One published size of a CoAtNet and a text encoder.

  Attributes:
    image: variant of the image encoder, whose head becomes a projection.
  """

  image: HybridVariant


def _basic(image, embed, layers, width, head_dim=64) -> BasicVariant:
  text = Variant(
    Dims(embed, embed // head_dim, embed // head_dim, head_dim, 4 * embed, layers),
    TEXT,
    32_000,
    Tokens(),
  )
  return BasicVariant(replace(coatnet.VARIANTS[image], head="projection"), text, width, "mean")


VARIANTS = {
  #                     image           text: embed layers width
  "basic-tiny": _basic("coatnet-tiny",         64,  2,     64),  # for debugging
  "basic-s":    _basic("coatnet-0",          1024,  6,   1024),
  "basic-m":    _basic("coatnet-3",          1024, 12,   1024),
  "basic-l":    _basic("coatnet-7",          2048, 12,   2048, 128),
}  # fmt: skip


class Model(DualEncoder):
  """A BASIC in one of its `VARIANTS`, with the features and arguments of every dual encoder."""

  VARIANTS = VARIANTS
  VARIANT = BasicVariant
  IMAGE_ENCODER = coatnet.Model
