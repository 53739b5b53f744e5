"""ViT: the Vision Transformer of Dosovitskiy et al. 2021 (https://arxiv.org/abs/2010.11929).

Patches through a pre-norm encoder with biases everywhere and exact GELU (`gelu_tanh` in the
authors' code); a class token, and learned positions in raster order. `design.position` is any
scheme of `nn.image_positions` (the paper's table 8), `class_tokens=0` averages the patches instead.
S and Ti are DeiT's sizes (Touvron et al. 2021, table 1). The hybrids cut their patches out of a
ResNet's map (table 6; R26 of Steiner et al. 2021, arXiv:2106.10270).
"""

from t5x_like.architectures.design import Design
from t5x_like.architectures.image_encoder import ImageEncoder, ImageVariant
from t5x_like.nn.dims import Dims

DESIGN = Design(
  norm="layernorm",
  norm_epsilon=1e-6,
  norm_position="pre",
  activation="gelu",
  biases=("qkv", "out", "mlp"),
  position="learned_1d",
  embed_init=0.02,
  mlp_dropout=True,
  # section B.1: after dense layers other than the projections of queries, keys, values
  attention_dropout="none",
)


WIDTHS = (256, 512, 1024, 2048)
R50_16 = {"name": "bit"}
R50_32 = {"name": "bit", "widths": WIDTHS, "depths": (3, 4, 6, 3)}
R26_32 = {"name": "bit", "widths": WIDTHS, "depths": (2, 2, 2, 2)}


def _vit(embed, mlp, heads, layers, patch, resolution=224, backbone=None) -> ImageVariant:
  dims = Dims(embed, heads, heads, embed // heads, mlp, layers)
  return ImageVariant(dims, DESIGN, patch, resolution, backbone=backbone)


VARIANTS = {
  #                   embed   mlp heads layers patch
  "vit-tiny":    _vit(   64,  128,  4,  4,  4, 32),  # for debugging
  "vit-fashion": _vit(   96,  192,  3,  4,  4, 28),
  "vit-ti16":    _vit(  192,  768,  3, 12, 16),
  "vit-s16":     _vit(  384, 1536,  6, 12, 16),
  "vit-b16":     _vit(  768, 3072, 12, 12, 16),
  "vit-b32":     _vit(  768, 3072, 12, 12, 32),
  "vit-l16":     _vit( 1024, 4096, 16, 24, 16),
  "vit-l32":     _vit( 1024, 4096, 16, 24, 32),
  "vit-h14":     _vit( 1280, 5120, 16, 32, 14),
  "vit-r26-s32": _vit(  384, 1536,  6, 12, 32, backbone=R26_32),
  "vit-r50-b16": _vit(  768, 3072, 12, 12, 16, backbone=R50_16),
  "vit-r50-b32": _vit(  768, 3072, 12, 12, 32, backbone=R50_32),
  "vit-r50-l16": _vit( 1024, 4096, 16, 24, 16, backbone=R50_16),
  "vit-r50-l32": _vit( 1024, 4096, 16, 24, 32, backbone=R50_32),
}  # fmt: skip


class Model(ImageEncoder):
  """A ViT in one of its `VARIANTS`, with the features and arguments of every image encoder."""

  VARIANTS = VARIANTS
