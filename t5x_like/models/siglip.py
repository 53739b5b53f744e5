"""SigLIP: a ViT and a text encoder, trained on each pair by itself.

Zhai et al. 2023, https://arxiv.org/abs/2303.15343.

Unlike CLIP, the ViT has no class token: a learned query pools its patches by attention, and the
result is the image's embedding. Texts are read both ways, padding included, always at the length of
their training, 64; the state of the last position is projected, with a bias. So400m is the shape of
Alabdulmohsin et al. 2023 (arXiv:2305.13035).
"""

from dataclasses import replace

from flax import nnx

from t5x_like.architectures.design import Tokens, Variant
from t5x_like.architectures.dual_encoder import DualEncoder, DualVariant
from t5x_like.architectures.image_encoder import ImageVariant
from t5x_like.models import vit
from t5x_like.nn.dims import Dims

IMAGE = replace(vit.DESIGN, activation="gelu_tanh")
TEXT = replace(IMAGE, position={"name": "learned", "length": 64})
TOKENS = Tokens(pad=None, eos=1)


def _siglip(embed, mlp, heads, layers, patch, resolution) -> DualVariant:
  dims = Dims(embed, heads, heads, embed // heads, mlp, layers)
  image = ImageVariant(
    dims, IMAGE, patch, resolution, class_tokens=0, head="attention_pool", partial_patches="dropped"
  )
  return DualVariant(
    image, Variant(dims, TEXT, 32_000, TOKENS), embed, "last", projection_bias=True
  )


VARIANTS = {
  #                       embed   mlp heads layers patch
  "siglip-tiny":    _siglip(  64,  128,  4,  2,  8,  32),  # for debugging
  "siglip-b16":     _siglip( 768, 3072, 12, 12, 16, 224),
  "siglip-b16-256": _siglip( 768, 3072, 12, 12, 16, 256),
  "siglip-b16-384": _siglip( 768, 3072, 12, 12, 16, 384),
  "siglip-l16-256": _siglip(1024, 4096, 16, 24, 16, 256),
  "siglip-l16-384": _siglip(1024, 4096, 16, 24, 16, 384),
  "siglip-so400m":  _siglip(1152, 4304, 16, 27, 14, 384),
}  # fmt: skip


class Model(DualEncoder):
  """A SigLIP in one of its `VARIANTS`, with the features and arguments of every dual encoder.

  Args:
    scale, bias: as in `DualEncoder`; the defaults are the paper's (section 3.2).
  """

  VARIANTS = VARIANTS

  def __init__(self, rngs: nnx.Rngs, *, scale: float = 10.0, bias: float = -10.0, **options):
    super().__init__(rngs, scale=scale, bias=bias, **options)
