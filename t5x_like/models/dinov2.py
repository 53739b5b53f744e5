"""DINOv2: ViTs trained without labels (Oquab et al. 2024, arXiv:2304.07193).

The model is a ViT with LayerScale (a learned factor on every sublayer's output) and patches of 14
pixels; ViT-g has SwiGLU instead of GELU. The models with registers (Darcet et al. 2024,
arXiv:2309.16588) have four more tokens. The classification head reads the class token concatenated
with the mean of the patches, as published classifiers do. DINOv2's self-supervised training is not
implemented: start from published weights.
"""

from dataclasses import replace

from t5x_like.architectures.image_encoder import ImageEncoder, ImageVariant
from t5x_like.models import vit
from t5x_like.nn.dims import Dims

DESIGN = replace(vit.DESIGN, layer_scale=1.0)
# In models with registers, positions resized to fewer patches are low-pass filtered.
ANTIALIASED = {"name": "learned_1d", "antialias": True}


def _dinov2(
  embed, mlp, heads, layers, activation="gelu", patch=14, resolution=518, registers=0
) -> ImageVariant:
  dims = Dims(embed, heads, heads, embed // heads, mlp, layers)
  position = ANTIALIASED if registers else "learned_1d"
  design = replace(DESIGN, activation=activation, position=position)
  head = {"name": "image_classification", "pooling": "both"}
  return ImageVariant(dims, design, patch, resolution, registers=registers, head=head)


SIZES = {
  #               embed   mlp heads layers
  "dinov2-tiny": (   64,  128,  4,  4, "gelu", 4, 32),  # for debugging
  "dinov2-s14":  (  384, 1536,  6, 12),
  "dinov2-b14":  (  768, 3072, 12, 12),
  "dinov2-l14":  ( 1024, 4096, 16, 24),
  "dinov2-g14":  ( 1536, 4096, 24, 40, "swiglu"),
}  # fmt: skip
VARIANTS = {name: _dinov2(*sizes) for name, sizes in SIZES.items()}
VARIANTS |= {f"{name}-registers": _dinov2(*sizes, registers=4) for name, sizes in SIZES.items()}


class Model(ImageEncoder):
  """A DINOv2 in one of its `VARIANTS`, with the features and arguments of every image encoder."""

  VARIANTS = VARIANTS
