"""CoAtNet: convolutions on large grids, attention on small ones.

Dai et al. 2021, https://arxiv.org/abs/2106.04803.

Two stages of MBConv blocks with squeeze-excite, two of pre-norm blocks with relative positions;
sizes from table 3 and, for the largest, from appendix A.2. In CoAtNet-6 and 7, two thirds of a
stage's MBConv blocks begin the next stage. The paper's convolutions have batch norm; these
normalise the channels of each cell (LayerNorm, as in ConvNeXt, Liu et al. 2022). So outputs do not
depend on the other images of a batch, training keeps no running statistics, and the numbers of
parameters are the same.
"""

from t5x_like.architectures.design import Design
from t5x_like.contrib.multiscale.hybrid_encoder import HybridEncoder, HybridVariant

DESIGN = Design(
  norm="layernorm",
  norm_epsilon=1e-5,
  norm_position="pre",
  activation="gelu",
  biases=("qkv", "out", "mlp"),
  position="relative_2d",
)
_HEAD = {"name": "image_classification", "hidden": True}


def _coatnet(stem, widths, depths, head_dim=32, resolution=224, middle=None) -> HybridVariant:
  return HybridVariant(
    stem, widths, depths, DESIGN, head_dim, middle, resolution=resolution, head=_HEAD
  )


VARIANTS = {
  #                        stem  widths                  depths
  "coatnet-tiny": _coatnet(  16, ( 16,  32,  48,   64), (1, 1,  2, 2), 16, 32),  # for debugging
  "coatnet-0":    _coatnet(  64, ( 96, 192, 384,  768), (2, 3,  5, 2)),
  "coatnet-1":    _coatnet(  64, ( 96, 192, 384,  768), (2, 6, 14, 2)),
  "coatnet-2":    _coatnet( 128, (128, 256, 512, 1024), (2, 6, 14, 2)),
  "coatnet-3":    _coatnet( 192, (192, 384, 768, 1536), (2, 6, 14, 2)),
  "coatnet-4":    _coatnet( 192, (192, 384, 768, 1536), (2, 12, 28, 2)),
  "coatnet-5":    _coatnet( 192, (256, 512, 1280, 2048), (2, 12, 28, 2), 64),
  # The table's last width is 2048, but only 3072 gives its 1.47 billion parameters (2048: 1.35).
  "coatnet-6":    _coatnet( 192, (192, 384, 1536, 3072), (2, 4, 42, 2), 128, middle=(768, 8)),
  "coatnet-7":    _coatnet( 192, (256, 512, 2048, 3072), (2, 4, 42, 2), 128, middle=(1024, 8)),
}  # fmt: skip


class Model(HybridEncoder):
  """A CoAtNet in one of its `VARIANTS`, with the features and arguments of other image encoders."""

  VARIANTS = VARIANTS
